"""One page of ComfyUI in the browser, and the player on it, as the tests use them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from comfy_server import PACK, ComfyServer

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SAMPLER = "SRH3_StreamSampler"
READY = f"() => !!(window.app?.graph && window.LiteGraph?.registered_node_types?.{SAMPLER} && app.api.clientId)"
SHOTS = os.environ.get("SRH3_SCREENSHOTS")  # a folder: pictures of what the tests saw

# Every event of a preview with its time, the end of each prompt, and every new frame that a player shows with its time.
WATCH = """() => {
  window.seen = { events: [], frames: [], ends: [] };
  app.api.addEventListener("streamrender_h3.preview", (e) => seen.events.push({ ...e.detail, now: performance.now() }));
  for (const end of ["execution_success", "execution_error", "execution_interrupted"])
    app.api.addEventListener(end, (e) => seen.ends.push({ kind: end, now: performance.now(), ...e.detail }));
  let last = null;
  const look = () => {
    const frame = document.querySelector(".srh3-player")?.dataset.frame;
    if (frame && frame !== last) seen.frames.push({ frame: Number(frame), now: performance.now() });
    last = frame;
    requestAnimationFrame(look);
  };
  look();
}"""


class Tab:
    """A page with the graph editor. `complaints` are page errors and console messages that come from our files."""

    def __init__(self, page: Any, server: ComfyServer, *, vue: bool, light: bool = False):
        self.page, self.server, self.complaints, self.vue, self.light = page, server, [], vue, light
        page.on("console", self._console)
        page.on("pageerror", self._error)
        page.add_init_script('localStorage.setItem("vueNodesBannerDismissed", "true")')
        self.go()

    def go(self) -> None:
        """Load the page and wait for the editor."""
        self.page.goto(self.server.url, wait_until="domcontentloaded")
        self.wait(READY, 60)
        self.page.evaluate(f"() => app.extensionManager.setting.set('Comfy.VueNodes.Enabled', {str(self.vue).lower()})")
        if self.light:
            self.page.evaluate("() => app.extensionManager.setting.set('Comfy.ColorPalette', 'light')")
        self.page.evaluate(WATCH)

    def reload(self) -> None:
        self.page.reload(wait_until="domcontentloaded")
        self.wait(READY, 60)
        self.page.evaluate(WATCH)

    def load(self, graph: dict[str, Any], name: str = "test") -> None:
        self.page.evaluate("([graph, name]) => app.loadGraphData(graph, true, true, name)", [graph, name])
        self.wait("() => document.querySelectorAll('.srh3-player').length > 0")
        self.front()

    def set(self, kind: str, **values: Any) -> None:
        """Set widgets of the first node of a type, as a person would."""
        self.page.evaluate(
            """([kind, values]) => {
              const node = app.graph._nodes.find((one) => one.type === kind);
              for (const [name, value] of Object.entries(values)) node.widgets.find((w) => w.name === name).value = value;
            }""",
            [kind, values],
        )

    def queue(self, seed: int, steps: int = 2) -> None:
        """Queue the graph as the Run button does."""
        self.set(SAMPLER, seed=seed, steps=steps)
        self.page.evaluate("() => { app.queuePrompt(0, 1); }")

    def wait(self, condition: str, seconds: float = 120) -> None:
        self.page.wait_for_function(condition, timeout=1000 * seconds)

    def wait_end(self, count: int = 1, seconds: float = 120) -> dict[str, Any]:
        """Wait for the end of a prompt and return the message."""
        self.wait(f"() => seen.ends.length >= {count}", seconds)
        return self.page.evaluate(f"() => seen.ends[{count - 1}]")

    def events(self, name: str) -> list[dict[str, Any]]:
        return self.page.evaluate("(name) => seen.events.filter((one) => one.event === name)", name)

    def player(self, number: int = 0) -> dict[str, str]:
        """What a player says about itself: session, source, frame, chunks, end, playing."""
        return self.page.evaluate("(n) => ({ ...document.querySelectorAll('.srh3-player')[n].dataset })", number)

    def wait_player(self, condition: str, seconds: float = 120, number: int = 0) -> None:
        """Wait until a condition on `p`, the player's data, holds."""
        self.wait(
            f"() => {{ const p = document.querySelectorAll('.srh3-player')[{number}]?.dataset; return !!p && ({condition}); }}",
            seconds,
        )

    def press(self, action: str, number: int = 0) -> None:
        self.page.locator(".srh3-player").nth(number).locator(f'[data-action="{action}"]').click()

    def pixels(self, number: int = 0) -> list[list[int]]:
        """RGB of 16 x 16 points of what is seen."""
        return self.page.evaluate(
            """(n) => {
              const canvas = document.querySelectorAll(".srh3-player")[n].querySelector(".srh3-canvas");
              const { width, height } = canvas;
              const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
              const out = [];
              for (let y = 0; y < 16; y++) for (let x = 0; x < 16; x++) {
                const at = 4 * (Math.floor((y + 0.5) * height / 16) * width + Math.floor((x + 0.5) * width / 16));
                out.push([data[at], data[at + 1], data[at + 2]]);
              }
              return out;
            }""",
            number,
        )

    def front(self, number: int = 0, scale: float = 0.9) -> None:
        """Move the graph so that a sampler and its player are in view."""
        self.page.evaluate(
            f"""([number, scale]) => {{
              const shown = app.canvas.graph ?? app.graph; // the subgraph that is open
              const node = shown._nodes.filter((one) => one.type === "{SAMPLER}")[number];
              app.canvas.ds.scale = scale;
              app.canvas.ds.offset = [80 / scale - node.pos[0], 80 / scale - node.pos[1]];
              app.canvas.setDirty(true, true);
            }}""",
            [number, scale],
        )
        self.page.wait_for_timeout(300)

    def layout(self) -> list[int]:
        """Where the parts of the player lie in it, and their sizes, whatever the zoom is."""
        return self.page.evaluate(
            """() => {
              const player = document.querySelector(".srh3-player");
              const parts = [player, ...player.querySelectorAll(".srh3-stage, .srh3-timeline, .srh3-controls, dl, dd")];
              return parts.flatMap((one) => [one.offsetTop, one.offsetWidth, one.offsetHeight]).slice(1);
            }"""
        )

    def shot(self, name: str) -> None:
        """A picture of the sampler node, when SRH3_SCREENSHOTS names a folder."""
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.front()
            time.sleep(0.4)
            self.page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))

    def _console(self, message: Any) -> None:
        if f"/extensions/{PACK}/" in message.text + str(message.location):
            self.complaints.append(f"console {message.type}: {message.text} {message.location}")

    def _error(self, error: Any) -> None:
        if f"/extensions/{PACK}/" in f"{error} {error.stack}":
            self.complaints.append(f"page error: {error}")
