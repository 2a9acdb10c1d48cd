"""Good inputs of a small render on the command line, what spoils them, and the command itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import streamrender_h3.cli as cli
from safetensors.torch import load_file, save_file
from streamrender_h3.nodes.palette import RACING
from streamrender_h3.workflows.nano.weights import WeightFiles

FRAMES = 34  # two chunks


@dataclass(frozen=True)
class Inputs:
    """Good inputs of a small render; every test spoils one of them."""

    folder: Path
    weights: WeightFiles

    def options(self, out: Path) -> dict[str, Any]:
        return {
            "picture": self.folder / "picture.png",
            "prompt-file": self.folder / "prompt.txt",
            "text-encoder": self.weights.text_encoder,
            "model": self.weights.model,
            "encoder": self.weights.codec,
            "decoder": self.weights.codec,
            "out": out,
            "size": "96x64",
            "reference-size": "64x64",
            "device": "cpu",
        }


def write_clip(path: Path, frames: int, size: tuple[int, int] = (64, 64)) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=24, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = size[1], size[0], "rgb24"
        for k in range(frames):
            picture = np.empty((*size, 3), np.uint8)
            picture[:30], picture[30:] = RACING.colours[11], RACING.colours[1]
            picture[40:52, k : k + 12] = RACING.colours[12]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode(None))
    return path


def write_sound(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", layout="mono")
        frame.rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_picture(path: Path, size: tuple[int, int] = (64, 96)) -> Path:
    from PIL import Image

    Image.fromarray(np.full((*size, 3), 90, np.uint8)).save(path)
    return path


@dataclass
class Command:
    """Runs `render` in this process with good inputs but for the changes; keeps what was printed."""

    inputs: Inputs
    folder: Path
    capture: pytest.CaptureFixture[str]
    printed: str = ""

    @property
    def out(self) -> Path:
        return self.folder / "o.mp4"

    def run(self, clip: Path | None = None, **changes: Any) -> tuple[int, str]:
        options = self.inputs.options(self.out) | {name.replace("_", "-"): value for name, value in changes.items()}
        words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]
        self.capture.readouterr()
        try:
            code = cli.main(["render", str(clip or self.inputs.folder / "clip.mp4"), *words])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        self.printed, error = self.capture.readouterr()
        return code, error


def rewritten(source: Path, target: Path, change: Any) -> Path:
    state = load_file(source)
    change(state)
    save_file(state, target)
    return target
