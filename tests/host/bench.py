"""A short render for the host tests: the shipped graph with a 50-frame clip, small sizes and a seed of one's own."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from comfy_server import ComfyServer
from streamrender_h3.nodes.palette import RACING
from streamrender_h3.workflows import run as graphs

SAMPLER = "SRH3_StreamSampler"


def write_clip(path: Path, frames: int = 50, size: tuple[int, int] = (128, 128)) -> Path:
    """A class-colour video in which two boxes move over two halves; (height, width), 24 fps, lossless H.264."""
    import av

    colours = [entry.rgb for entry in RACING.entries]
    height, width = size
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=24, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = width, height, "rgb24"
        for number in range(frames):
            picture = np.empty((height, width, 3), np.uint8)
            picture[: height // 2], picture[height // 2 :] = colours[0], colours[1]
            left = 2 * number % (width - 40)
            picture[70:100, left : left + 36], picture[30:60, width - 40 - left : width - left] = colours[2], colours[3]
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return path


def write_picture(path: Path, size: tuple[int, int] = (128, 128)) -> Path:
    """A smooth picture, (height, width)."""
    from PIL import Image

    height, width = size
    y, x = np.mgrid[0:height, 0:width]
    Image.fromarray(np.stack([2 * x, 2 * y, 128 + 0 * x], axis=-1).clip(0, 255).astype(np.uint8)).save(path)
    return path


def add(prompt: dict[str, Any], kind: str, /, **inputs: Any) -> str:
    """Put one more node into an API graph; its id."""
    key = f"added{len(prompt)}"
    prompt[key] = {"class_type": kind, "inputs": inputs}
    return key


def key_of(prompt: Mapping[str, Any], kind: str) -> str:
    """The id of the only node of this type."""
    (key,) = (key for key, node in prompt.items() if node["class_type"] == kind)
    return key


@dataclass(frozen=True)
class Render:
    """A finished short render: how it ended, its metrics and its video file."""

    result: graphs.Result
    metrics: dict[str, Any]
    video: Path


@dataclass(frozen=True)
class Bench:
    """One server, and the graph of a short render as API format in `base`."""

    SIZE = "128x128"
    REFERENCE = "64x64"
    FRAMES = 50

    server: ComfyServer
    base: dict[str, Any]

    @classmethod
    def prepare(cls, server: ComfyServer, object_info: Mapping[str, Any], workflow: Mapping[str, Any]) -> Bench:
        folder = server.base / "input" / "short"
        if not folder.exists():
            folder.mkdir(parents=True)
            write_clip(folder / "clip.mp4")
            write_picture(folder / "picture.png")
        bench = cls(server, graphs.to_api(workflow, object_info))
        bench.inputs_of(bench.base, "LoadVideo")["file"] = "short/clip.mp4"
        bench.inputs_of(bench.base, "LoadImage")["image"] = "short/picture.png"
        bench.inputs_of(bench.base, "SRH3_SemanticPaletteEncode").update(reference_width=64, reference_height=64)
        bench.inputs_of(bench.base, "SRH3_Look").update(width=128, height=128)
        return bench

    @staticmethod
    def inputs_of(prompt: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """The inputs of the only node of this type, to change in place."""
        return prompt[key_of(prompt, kind)]["inputs"]

    def prompt(self, seed: int, **changes: Any) -> dict[str, Any]:
        """A copy of the short graph with this seed and these sampler inputs; its metrics are shown by PreviewAny."""
        prompt = copy.deepcopy(self.base)
        self.inputs_of(prompt, SAMPLER).update(seed=seed, **changes)
        add(prompt, "PreviewAny", source=[key_of(prompt, SAMPLER), 2])
        return prompt

    def run(self, prompt: Mapping[str, Any], **options: Any) -> graphs.Result:
        """Queue a graph and wait for its end, whatever that is."""
        return asyncio.run(graphs.run_prompt(self.server.url, prompt, **{"timeout": 300, **options}))

    def render(self, prompt: Mapping[str, Any], **options: Any) -> Render:
        """Queue a graph that must succeed."""
        return self.finished(prompt, self.run(prompt, **options))

    def finished(self, prompt: Mapping[str, Any], result: graphs.Result) -> Render:
        """The render of a result that must be a success."""
        result.raise_for_failure()
        shown = result.history["outputs"][key_of(prompt, "PreviewAny")]["text"][0]
        (video,) = (entry for entry in result.files() if entry["filename"].endswith(".mp4"))
        return Render(result, json.loads(shown), self.server.base / "output" / video["subfolder"] / video["filename"])


def frames_of(video: Path) -> tuple[int, float, tuple[int, int]]:
    """Decoded frames, frames per second, (width, height) of a video file."""
    import av

    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        count = sum(1 for _ in container.decode(stream))
        return count, float(stream.average_rate), (stream.width, stream.height)
