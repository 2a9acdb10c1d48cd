"""ComfyUI's modules in this process with folders of their own, and the good inputs of a tiny render."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from node_calls import (
    FRAMES,
    LOOK,
    PALETTE_ENCODE,
    SAMPLER,
    Host,
    class_frames,
    conditioning,
)
from streamrender_h3.nodes.model import H3
from streamrender_h3.workflows.nano.weights import write_weights


@pytest.fixture(scope="session")
def host(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> Host:
    base = tmp_path_factory.mktemp("base")
    for folder in ("input", "output", "temp", "user", "models"):
        (base / folder).mkdir()
    weights = write_weights(base / "models", seed=4)
    sys.path.insert(0, str(comfyui))
    try:
        args = importlib.import_module("comfy.cli_args").args
        args.cpu, args.base_directory = True, str(base)
        folder_paths = importlib.import_module("folder_paths")
        for kind in ("input", "output", "temp", "user"):
            getattr(folder_paths, f"set_{kind}_directory")(str(base / kind))
        room = importlib.import_module("streamrender_h3.nodes.node")
    finally:
        sys.path.remove(str(comfyui))
    sys.path.append(str(comfyui))  # ComfyUI imports more of itself later
    return Host(base, weights, {node.GET_SCHEMA().node_id: node for node in room.NODES})


@pytest.fixture(autouse=True)
def clean(host: Host) -> None:
    for path in [*host.temporary, *host.partials]:
        path.unlink()
    shutil.rmtree(host.journals, ignore_errors=True)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every forward of the transformer."""
    original, ran = H3.forward, []

    def watched(self: H3, *args: Any, **kwargs: Any) -> Any:
        ran.append(1)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(H3, "forward", watched)
    return ran


@pytest.fixture(scope="session")
def inputs(host: Host) -> dict[str, Any]:
    """Good inputs of the sampler."""
    codec = host.weights.codec.name
    return {
        "model": host.run("LoadModel", model_name=host.weights.model.name, dtype="fp32", qkv_order="auto")[0],
        "clip": host.run("SemanticPaletteEncode", **PALETTE_ENCODE, images=class_frames(FRAMES))[0],
        "look": host.run("Look", **LOOK, positive=conditioning())[0],
        "schedule": host.run("StreamSchedule", preset="release (2, 2, 2, 7)", sink=0, window=0, chunk=1, bootstrap=1)[
            0
        ],
        "encoder": host.run("LoadEncoder", encoder_name=codec, dtype="auto")[0],
        "decoder": host.run("LoadDecoder", decoder_name=codec, dtype="auto")[0],
        **SAMPLER,
    }
