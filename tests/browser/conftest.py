"""A real Chromium on a real ComfyUI. In CI (CI=true) nothing here may be missing; elsewhere the tests are skipped."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "host"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import comfy_server
import fetch_comfyui
from bench import write_clip, write_picture
from tab import FLAGS, Tab

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FRAMES = 64  # of the short clip: 30 + 4 x 8.5
INPUTS = "input/streamrender_h3"  # where the shipped graph looks for its clip and picture


def missing(words: str) -> NoReturn:
    """Skip, or fail in CI."""
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(words, pytrace=False)
    pytest.skip(words)


def program(names: tuple[str, ...], install: str) -> str:
    """The first of these programs that is installed."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found or missing(f"{names[0]} is not installed; run: apt-get install -y {install}")


@pytest.fixture(scope="session")
def node() -> str:
    """Node.js, for the tests of the browser modules alone."""
    return program(("node", "nodejs"), "nodejs")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the tests of a file; every test has pages of its own.

    Not for longer: the driver keeps an event loop running, in which tests of other folders could not start theirs.
    """
    executable = program(CHROMIUM, "chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("the Python package playwright is not installed; run: pip install playwright==1.65.2")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield made
        made.close()


@pytest.fixture(scope="session")
def servers(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[bool], comfy_server.ComfyServer]]:
    """`servers(policy)`: a ComfyUI with or without the content policy; started once each, with random tiny weights."""
    from streamrender_h3.workflows.nano.weights import write_weights

    comfyui = fetch_comfyui.find_comfyui(repository, tmp_path_factory.mktemp("comfyui"))
    if comfyui is None:
        missing("no ComfyUI: set COMFYUI_PATH or run python tests/host/fetch_comfyui.py")
    weights = tmp_path_factory.mktemp("weights")
    write_weights(weights, seed=1)
    running: dict[bool, comfy_server.ComfyServer] = {}

    def server(policy: bool) -> comfy_server.ComfyServer:
        if policy not in running:
            base = tmp_path_factory.mktemp("base")
            shutil.copytree(weights, base / "models")
            (base / INPUTS).mkdir(parents=True)
            write_clip(base / INPUTS / "semantic_clip.mp4", FRAMES)
            write_picture(base / INPUTS / "picture.jpg")
            running[policy] = comfy_server.start(comfyui, base, api_nodes=not policy)
        return running[policy]

    try:
        yield server
    finally:
        for one in running.values():
            one.stop()


@pytest.fixture(scope="session")
def workflow(repository: Path) -> dict[str, Any]:
    """The shipped graph as it is."""
    return json.loads((repository / "workflows" / "semantic_to_video.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def quick(workflow: dict[str, Any]) -> dict[str, Any]:
    """The shipped graph with the tiny weights and small pictures: a chunk takes a fraction of a second."""
    names = {
        "SRH3_LoadModel": {0: "h3_example.safetensors"},
        "SRH3_LoadEncoder": {0: "taeh3_example.safetensors"},
        "SRH3_LoadDecoder": {0: "taeh3_example.safetensors"},
        "SRH3_Look": {0: "a drive", 1: 128, 2: 128, 3: "qwen3vl_example"},
        "SRH3_SemanticPaletteEncode": {1: 64, 2: 64},
    }
    graph = json.loads(json.dumps(workflow))
    for one in graph["nodes"]:
        for place, value in names.get(one["type"], {}).items():
            one["widgets_values"][place] = value
    return graph


@pytest.fixture
def tabs(browser: Any, servers: Callable[[bool], comfy_server.ComfyServer]) -> Iterator[Callable[..., Tab]]:
    """`tabs(policy=..., vue=...)` opens a page; at the end no page may have complained about our files."""
    opened: list[Tab] = []

    def make(*, policy: bool = False, vue: bool = False, beside: Tab | None = None, light: bool = False) -> Tab:
        context = beside.page.context if beside else browser.new_context(viewport={"width": 900, "height": 960})
        tab = Tab(context.new_page(), servers(policy), vue=vue, light=light)
        opened.append(tab)
        return tab

    yield make
    complaints = [line for tab in opened for line in tab.complaints]
    for context in {tab.page.context for tab in opened}:
        context.close()
    assert complaints == []
