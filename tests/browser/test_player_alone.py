"""The player on an empty page, fed by hand: sound, gaps, suspect chunks, and a browser that refuses the video."""

from __future__ import annotations

import base64
import json
import os

import numpy as np
import pytest
from streamrender_h3.nodes.preview.fragment import SOUND_RATE, FragmentEncoder
from streamrender_h3.nodes.preview.picture import Converter
from streamrender_h3.nodes.preview.stills import bundle

LONG = os.environ.get("SRH3_LONG") == "1"
SIZE = (48, 64)  # of one half
COUNTS = (12, 8, 8, 8)

SETUP = """async ([session, files]) => {
  const { Player } = await import("/extensions/streamrender_h3/player/player.mjs");
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  window.loads = [];
  const host = {
    load: async (_, path) => (loads.push(path), files[path] ? bytes(files[path]) : null),
    policy: async () => window.policy ?? null,
    view: () => "about:blank",
    say: (text) => (window.said = text),
  };
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = "/extensions/streamrender_h3/player/player.css";
  document.body.replaceChildren(link);
  document.body.style.width = "420px";
  window.player = new Player(host);
  window.session = session;
  document.body.append(player.root);
  window.frames = [];
  let last = null;
  const look = () => {
    const frame = player.root.dataset.frame;
    if (frame !== last && frame !== "") frames.push(Number(frame));
    last = frame;
    requestAnimationFrame(look);
  };
  look();
  player.show(session);
}"""


def pictures(first, count):
    """The render half is grey of the frame's number, the map half red."""
    out = []
    for number in range(first, first + count):
        picture = np.empty((3, 2 * SIZE[0], SIZE[1]), np.uint8)
        picture[:, : SIZE[0]] = 30 + (5 * number) % 225
        picture[:, SIZE[0] :] = np.array((220, 20, 20))[:, None, None]
        out.append(picture)
    return out


def material(counts=COUNTS, sound=False):
    """(state of the preview, files by path) of a finished preview."""
    encoder, first, chunks, files = FragmentEncoder((2 * SIZE[0], SIZE[1]), sound=sound), 0, [], {}
    for index, count in enumerate(counts):
        moments = np.arange(count * SOUND_RATE // 24) + first * SOUND_RATE // 24
        samples = np.repeat(0.2 * np.sin(moments * 2 * np.pi * 440 / SOUND_RATE)[None], 2, axis=0) if sound else None
        made = encoder.encode(first, map(Converter(), pictures(first, count)), samples)
        files |= {"init.mp4": made.init, f"seg/{index}.m4s": made.segment}
        files[f"frames/{index}"] = bundle(pictures(first, count))
        facts = {"index": index, "first": first, "frames": count, "bytes": 1, "encode_ms": 40, "step_ms": [100, 100]}
        chunks.append({**facts, "decode_ms": 60, "preview_ms": 5, "at": 1, "dropped": False, "suspect": []})
        first += count
    state = {"session": "s", "node": "9", "height": SIZE[0], "width": SIZE[1], "fps": 24, "frames": first, "steps": 2}
    state |= {"chunk_frames": list(counts), "sound": sound, "transport": "fmp4", "mime": made.mime, "oldest": 0}
    state |= {
        "chunks": chunks,
        "phase": {"chunk": 0, "step": 0},
        "memory": None,
        "end": {"reason": "complete", "file": None},
    }
    return state, {path: base64.b64encode(data).decode() for path, data in files.items()}


@pytest.fixture
def stage(browser, servers):
    """`stage(state, files)` shows a preview on a page of the server that holds nothing else."""
    page = browser.new_page(viewport={"width": 460, "height": 460})
    faults: list[str] = []
    page.on("console", lambda message: faults.append(f"{message.text} {message.location}"))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(servers(False).url + "/extensions/streamrender_h3/player/player.css")

    def show(state, files, before="() => {}"):
        page.evaluate(before)
        page.evaluate(SETUP, [state, files])
        return page

    yield show
    page.close()
    ours = [
        fault for fault in faults if "favicon" not in fault and "getImageData" not in fault
    ]  # the tests read pixels
    assert ours == []


def wait(page, condition):
    page.wait_for_function(f"() => {condition}", timeout=60000)


def grey(page, left=0.5):
    """Brightness of the canvas at a share of its width."""
    return page.evaluate(
        """(share) => {
          const canvas = player.parts.canvas;
          const x = Math.floor(canvas.width * share);
          return [...canvas.getContext("2d").getImageData(x, canvas.height / 2, 1, 1).data.slice(0, 3)];
        }""",
        left,
    )


@pytest.mark.parametrize("kind", ["video", "pictures"])
def test_every_single_step_shows_exactly_its_own_frame(stage, kind):
    state, files = material((4, 3))
    policy = "default-src 'self'" if kind == "pictures" else ""
    page = stage(state, files, f"() => {{ window.policy = {json.dumps(policy)}; }}")
    wait(page, "frames.length > 1")
    assert page.evaluate("() => player.root.dataset.source") == kind
    page.evaluate("() => { player.play(false); player.seek(0); }")
    for frame in range(7):
        wait(page, f"player.root.dataset.frame === '{frame}' && !player.source.video?.seeking")
        page.wait_for_timeout(60)
        assert np.abs(np.array(grey(page)) - (30 + 5 * frame)).max() <= 3
        page.evaluate("() => player.step(1)")
    wait(page, "player.root.dataset.frame === '0'")  # round the end


def test_sound_plays_and_can_be_muted(stage):
    page = stage(*material((24, 24), sound=True))
    wait(page, "player.root.dataset.source === 'video' && frames.length > 2")
    button = page.locator('[data-action="mute"]')
    assert button.is_enabled() and button.get_attribute("aria-label") == "sound on"
    assert page.evaluate("() => player.source.video.muted")
    button.click()
    assert not page.evaluate("() => player.source.video.muted")
    assert button.get_attribute("aria-label") == "mute"
    wait(page, "player.source.video.webkitAudioDecodedByteCount > 1000")


def test_playback_passes_over_a_chunk_that_was_left_out(stage):
    state, files = material()
    state["chunks"][1] |= {"frames": 0, "dropped": True}
    page = stage(state, files)
    wait(page, "frames.some((one) => one >= 28) && frames.some((one, k) => k && one < frames[k - 1])")
    seen = set(page.evaluate("() => frames"))
    assert not seen & set(range(12, 20))
    assert page.evaluate("() => player.parts.timeline.dataset.states") == "ready gone ready ready"
    assert "seg/1.m4s" not in page.evaluate("() => loads")


def test_suspect_chunks_say_why_and_are_painted_so(stage):
    state, files = material()
    state["chunks"][2]["suspect"] = ["flash: brightness jumps by 0.4"]
    page = stage(state, files)
    wait(page, "frames.length > 1")
    assert page.evaluate("() => player.parts.timeline.dataset.states") == "ready ready suspect ready"
    box = page.locator(".srh3-timeline").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 24 / 36, box["y"] + 5)
    assert page.locator(".srh3-timeline").get_attribute("title").endswith("suspect: flash: brightness jumps by 0.4")
    top, bottom = page.evaluate(
        """() => {
          const strip = player.parts.strip;
          const at = (y) => [...strip.getContext("2d").getImageData(strip.width * 24 / 36, y, 1, 1).data.slice(0, 3)];
          return [at(1), at(strip.height - 2)];
        }"""
    )
    assert top == [216, 65, 90] and bottom != top


def test_a_browser_that_refuses_the_video_gets_pictures(stage):
    state, files = material()
    files["seg/0.m4s"] = base64.b64encode(bytes(1000)).decode()
    page = stage(state, files)
    wait(page, "player.root.dataset.source === 'pictures' && frames.some((one) => one > 20)")


def test_the_browser_holds_a_bounded_part_of_a_long_render(stage):
    """The whole is on the server; here the eight seconds ahead, and what fits beside them."""
    count = 400 if LONG else 60
    page = stage(*material((8,) * count))
    page.evaluate("() => { player.source?.play(false); }")
    wait(page, "player.source && loads.length > 20")
    page.wait_for_timeout(500)
    assert len(page.evaluate("() => loads")) < 40
    page.evaluate(f"() => player.seek({8 * (count - 2) + 3})")
    wait(page, f"player.root.dataset.frame === '{8 * (count - 2) + 3}'")


def test_the_frame_can_be_copied_and_the_player_fills_the_screen(stage):
    page = stage(*material())
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wait(page, "frames.length > 1")
    page.locator('[data-action="copy"]').click()
    wait(page, "window.said")
    assert page.evaluate("() => said") == "Frame copied"
    assert page.evaluate("async () => (await navigator.clipboard.read())[0].types") == ["image/png"]
    page.locator('[data-action="full"]').click()
    wait(page, "document.fullscreenElement === player.root")
    page.locator('[data-action="full"]').click()
    wait(page, "!document.fullscreenElement")


def test_the_wipe_follows_the_pointer_and_a_double_click(stage):
    page = stage(*material())
    wait(page, "frames.length > 1")
    box = page.locator(".srh3-frame").bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 20, steps=3)
    page.mouse.up()
    page.wait_for_timeout(150)
    assert page.locator(".srh3-wipe").get_attribute("aria-valuenow") == "70"
    assert grey(page, 0.4)[0] > 180 > 80 > grey(page, 0.4)[1]  # the map is red
    assert len({value // 8 for value in grey(page, 0.9)}) == 1  # the render is grey
    page.mouse.dblclick(box["x"] + 200, box["y"] + 20)
    assert page.locator(".srh3-wipe").get_attribute("aria-valuenow") == "0"
