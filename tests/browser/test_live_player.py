"""The live player in a real Chromium on a real ComfyUI: with and without the content policy, in both node modes."""

from __future__ import annotations

import os

import numpy as np
import pytest
from streamrender_h3.nodes.palette import RACING
from streamrender_h3.nodes.schedule import RELEASE

FRAMES = 64
CHUNKS = RELEASE.chunks_for(FRAMES)
COLOURS = np.array([entry.rgb for entry in RACING.entries])
WAYS = [  # content policy, Vue nodes; the other two pairs take another minute each
    pytest.param(True, False, id="policy-canvas"),
    pytest.param(False, True, id="open-vue"),
    *(
        pytest.param(
            policy, vue, id=name, marks=pytest.mark.skipif(os.environ.get("SRH3_LONG") != "1", reason="SRH3_LONG=1")
        )
        for policy, vue, name in ((False, False, "open-canvas"), (True, True, "policy-vue"))
    ),
]
PLAYING = "p.frame !== '' && Number(p.frame) > 0"


def distance_to_palette(points):
    """Mean over points of the distance to the nearest class colour."""
    points = np.array(points)
    return float(np.abs(points[:, None] - COLOURS[None]).max(-1).min(-1).mean())


def set_wipe(tab, key):
    tab.page.locator(".srh3-wipe").first.focus()
    tab.page.keyboard.press(key)


def open_template(tab):
    """Through the template dialog, as a person: command, the pack's name, the graph's card."""
    tab.page.evaluate("() => { app.extensionManager.command.execute('Comfy.BrowseTemplates'); }")
    dialog = tab.page.get_by_role("dialog").first
    dialog.get_by_text("streamrender_h3", exact=True).first.click()
    card = dialog.get_by_text("semantic_to_video").first
    card.wait_for()
    tab.wait(
        "() => [...document.querySelectorAll('[role=dialog] img')].some((one) => one.naturalWidth > 0)"
    )  # the thumbnail
    card.click()
    tab.wait("() => document.querySelectorAll('.srh3-player').length === 1")
    tab.front()


@pytest.mark.parametrize(("policy", "vue"), WAYS)
def test_the_shipped_graph_plays_its_first_chunk_before_the_last_is_rendered(tabs, policy, vue):
    tab = tabs(policy=policy, vue=vue)
    open_template(tab)
    tab.set("SRH3_Look", width=128, height=128)
    tab.set("SRH3_SemanticPaletteEncode", reference_width=64, reference_height=64)
    layout = tab.layout()
    tab.page.get_by_role("button", name="Run", exact=True).first.click()
    tab.wait_player(PLAYING, 120)
    tab.shot(f"first_chunk_{policy}_{vue}")
    assert tab.wait_end(seconds=180)["kind"] == "execution_success"
    tab.wait_player("p.end === 'complete'")

    chunks = tab.events("chunk")
    assert [one["chunk"]["index"] for one in chunks] == list(range(CHUNKS))
    shown = tab.page.evaluate("() => seen.frames.map((one) => one.now)")
    assert chunks[0]["now"] < shown[0] < chunks[-1]["now"]  # played while the rest was still being made
    assert [one["event"] for one in tab.page.evaluate("() => seen.events")][:1] == ["open"]
    assert tab.player()["source"] == ("pictures" if policy else "video")

    # it plays on and loops what exists
    tab.page.evaluate("() => { seen.frames.length = 0; }")
    tab.wait(
        "() => seen.frames.filter((one, k) => k && one.frame < seen.frames[k - 1].frame).length > 1"
    )  # a whole round
    frames = [one["frame"] for one in tab.page.evaluate("() => seen.frames")]
    assert set(frames) <= set(range(FRAMES)) and len(set(frames)) > 4
    assert max(frames) > FRAMES - 12  # the last chunk too

    # seek, step, pause
    tab.press("play")
    assert tab.player()["playing"] == "false"
    strip = tab.page.locator(".srh3-timeline").first
    size = strip.bounding_box()
    strip.click(position={"x": size["width"] * 40.5 / FRAMES, "y": 6})
    tab.wait_player("Math.abs(Number(p.frame) - 40) <= 1")
    here = int(tab.player()["frame"])
    tab.press("forward")
    tab.wait_player(f"p.frame === '{here + 1}'")
    tab.press("back")
    tab.wait_player(f"p.frame === '{here}'")
    first_view = tab.pixels()
    strip.focus()
    tab.page.keyboard.press("Home")
    tab.wait_player("p.frame === '0'")
    other_view = tab.pixels()
    assert np.abs(np.array(first_view) - np.array(other_view)).mean() > 2  # the picture changes over time

    # the wipe uncovers the map of the same frame
    set_wipe(tab, "End")
    tab.wait(
        "() => document.querySelector('.srh3-wipe').getAttribute('aria-valuenow') === '100'"
        " && new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))"
    )
    assert distance_to_palette(other_view) > 20
    assert distance_to_palette(tab.pixels()) < 12
    tab.page.keyboard.press("Home")
    for _ in range(5):
        tab.page.keyboard.press("PageUp")
    tab.page.wait_for_timeout(100)
    half = np.array(tab.pixels()).reshape(16, 16, 3)
    assert distance_to_palette(half[:, :7].reshape(-1, 3)) < 12 < distance_to_palette(half[:, 9:].reshape(-1, 3))
    tab.shot(f"wipe_{policy}_{vue}")

    # calm: the player is where and as large as it was; figures are filled; the host's still does not push in below
    assert tab.layout() == pytest.approx(layout, abs=16)  # the host's own line of text below takes a little
    values = tab.page.locator(".srh3-figures dd").all_inner_texts()
    assert all(value and value != "–" for value in values)
    assert tab.page.evaluate("() => Object.keys(app.nodePreviewImages ?? {}).length") == 0

    # the finished file can be opened
    with tab.page.context.expect_page() as popup:
        tab.press("open")
    assert "/view?" in popup.value.url and "type=temp" in popup.value.url
    popup.value.close()
