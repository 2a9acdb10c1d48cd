"""A real ComfyUI for the tests of this folder, and a small render to run in it.

Order of search: COMFYUI_PATH, `.cache/ComfyUI`, an installed wheel; without any the tests are skipped, or fail when
REQUIRE_COMFYUI=1. A failed test shows what the servers logged while it ran.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import comfy_server
import fetch_comfyui
from bench import Bench, write_clip, write_picture

SERVERS: list[comfy_server.ComfyServer] = []
OFFSETS = pytest.StashKey[dict[int, int]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[OFFSETS] = {id(server): server.log.stat().st_size for server in SERVERS}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for server in SERVERS:
            text = server.log_text(item.stash.get(OFFSETS, {}).get(id(server), 0))
            if text.strip():
                report.sections.append((f"ComfyUI log ({server.url})", text[-8000:]))


@pytest.fixture(scope="session")
def comfyui(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ComfyUI folder that the host tests run."""
    found = fetch_comfyui.find_comfyui(repository, tmp_path_factory.mktemp("comfyui"))
    if found is None:
        words = "no ComfyUI: set COMFYUI_PATH or run python tests/host/fetch_comfyui.py"
        if os.environ.get("REQUIRE_COMFYUI") == "1":
            pytest.fail(words, pytrace=False)
        pytest.skip(words)
    return found


@pytest.fixture(scope="session")
def comfy_server_factory(
    comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., comfy_server.ComfyServer]]:
    """Starts servers (keywords of comfy_server.start); all of them are stopped at the end of the session."""

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupted)

    def make(**options: Any) -> comfy_server.ComfyServer:
        server = comfy_server.start(comfyui, tmp_path_factory.mktemp("base"), **options)
        SERVERS.append(server)
        return server

    try:
        yield make
    finally:
        for server in SERVERS:
            server.stop()
        SERVERS.clear()
        signal.signal(signal.SIGTERM, previous)


@pytest.fixture(scope="session")
def comfy(comfy_server_factory: Callable[..., comfy_server.ComfyServer]) -> comfy_server.ComfyServer:
    """The server that tests share as long as they change nothing global; a helper pack writes latents to files."""
    return comfy_server_factory(packs={"srh3_test_probe": Path(__file__).resolve().parent / "probe_pack"})


@pytest.fixture(scope="session")
def object_info(comfy: comfy_server.ComfyServer) -> dict[str, Any]:
    """Every node the shared server knows."""
    return comfy.get("/object_info")


@pytest.fixture(scope="session")
def shipped(repository: Path) -> dict[str, Any]:
    """The example graph as people open it."""
    return json.loads((repository / "workflows" / "semantic_to_video.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def bench(comfy: comfy_server.ComfyServer, object_info: dict[str, Any], shipped: dict[str, Any]) -> Bench:
    """The shared server with a short clip and the example graph cut down to it."""
    return Bench.prepare(comfy, object_info, shipped)


@dataclass(frozen=True)
class Headless:
    """Renders of `cli.py render` with the inputs of `Bench`, one per seed."""

    root: Path
    folder: Path
    graph: dict[str, Any]
    done: dict[int, str]

    def latents_sha256(self, seed: int) -> str:
        """The fingerprint of the latents that the engine makes outside ComfyUI."""
        if seed not in self.done:
            self.done[seed] = self._render(seed)
        return self.done[seed]

    def latents(self, seed: int) -> Path:
        """The file of `--save-latents`."""
        self.latents_sha256(seed)
        return self.folder / f"{seed}.safetensors"

    def _example(self, folder: str, node: str, field: str) -> Path:
        name = Bench.inputs_of(self.graph, node)[field].removeprefix("example/")
        return self.root / "workflows" / "assets" / folder / name

    def _render(self, seed: int) -> str:
        words = Bench.inputs_of(self.graph, "SRH3_Look")["prompt"]
        (self.folder / "prompt.txt").write_text(words, encoding="utf-8")
        clip, picture = write_clip(self.folder / "clip.mp4"), write_picture(self.folder / "picture.png")
        options = {
            "--picture": picture,
            "--prompt-file": self.folder / "prompt.txt",
            "--text-encoder": self._example("text_encoders", "SRH3_Look", "text_encoder"),
            "--model": self._example("diffusion_models", "SRH3_LoadModel", "model_name"),
            "--encoder": self._example("vae_approx", "SRH3_LoadEncoder", "encoder_name"),
            "--decoder": self._example("vae_approx", "SRH3_LoadDecoder", "decoder_name"),
            "--out": self.folder / f"{seed}.mp4",
            "--save-latents": self.folder / f"{seed}.safetensors",
            "--seed": seed,
            "--size": Bench.SIZE,
            "--reference-size": Bench.REFERENCE,
            "--device": "cpu",
        }
        arguments = [str(word) for pair in options.items() for word in pair]
        run = subprocess.run(
            [sys.executable, str(self.root / "cli.py"), "render", str(clip), *arguments], capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.split("latents sha256")[1].split()[0]


@pytest.fixture(scope="session")
def headless(repository: Path, tmp_path_factory: pytest.TempPathFactory, bench: Bench) -> Headless:
    """The same engine without ComfyUI, to compare with."""
    return Headless(repository, tmp_path_factory.mktemp("headless"), bench.base, {})
