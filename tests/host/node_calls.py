"""Calls of node classes in this process against ComfyUI's own modules: a host, good inputs, and how a call may end."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streamrender_h3.nodes.model import H3
from streamrender_h3.nodes.palette import RACING
from streamrender_h3.nodes.preview import playable_frames
from streamrender_h3.workflows.nano.weights import TINY, WeightFiles

SIZE, MAP_SIZE = (64, 96), (64, 64)
FRAMES = 46  # three chunks
SAMPLER = {
    "seed": 1,
    "steps": 2,
    "guidance": "fitted (one call)",
    "text_scale": 1.5,
    "structure_scale": 3.0,
    "attention": "prefix bank",
}


@dataclass(frozen=True)
class Host:
    """ComfyUI's modules in this process, with folders of their own, and the pack's nodes."""

    base: Path
    weights: WeightFiles
    nodes: dict[str, Any]

    def run(self, node: str, **inputs: Any) -> Any:
        """What the node's outputs are, called as ComfyUI calls it."""
        kind = self.nodes[f"SRH3_{node}"]
        return kind.PREPARE_CLASS_CLONE({}).execute(**inputs).args

    @property
    def temporary(self) -> list[Path]:
        return [path for path in (self.base / "temp").rglob("*") if path.is_file()]

    @property
    def journals(self) -> Path:
        return self.base / "user" / "streamrender_h3" / "journals"

    @property
    def partials(self) -> list[Path]:
        return sorted((self.base / "output").rglob("*.mp4"))


def class_frames(count: int, size: tuple[int, int] = MAP_SIZE) -> torch.Tensor:
    """IMAGE batch: sky over road, a car that drives."""
    frames = np.empty((count, *size, 3), np.uint8)
    frames[:, :30], frames[:, 30:] = RACING.colours[11], RACING.colours[1]
    for k in range(count):
        frames[k, 40:52, k % 50 : k % 50 + 12] = RACING.colours[12]
    return torch.from_numpy(frames).float() / 255


PICTURE = torch.full((1, *SIZE, 3), 0.4)
PALETTE_ENCODE = {"palette": "racing", "reference_width": 64, "reference_height": 64, "fps": 24.0}
LOOK = {"picture": PICTURE, "prompt": "a road by the sea", "width": 96, "height": 64, "text_encoder": "none"}


def conditioning(rows: int = 9, width: int = TINY.text_dim, **extras: Any) -> list[list[Any]]:
    """CONDITIONING as native H3 nodes make it: four picture rows, then text."""
    text = torch.randn(1, rows, width, generator=torch.Generator().manual_seed(0))
    tags = torch.tensor([0 if 0 < k < 4 else 1 for k in range(rows)])
    return [[text, {"minimax_token_tags": tags, **extras}]]


def refused(host: Host, node: str, *words: str, kind: type[Exception] = ValueError, **inputs: Any) -> None:
    with pytest.raises(kind) as caught:
        host.run(node, **inputs)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


def open_files(folder: Path) -> list[str]:
    """Paths below `folder` that this process holds open or mapped (Linux)."""
    links = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    return [link for link in links if link.startswith(str(folder))]


def stopped(host: Host, inputs: dict[str, Any], kind: type[BaseException], match: str | None = None) -> None:
    """Run the sampler, which must stop with `kind`; no temporary file, open file or thread may be left."""
    threads = threading.active_count()
    with pytest.raises(kind, match=match):
        host.run("StreamSampler", **inputs)
    assert host.temporary == []
    assert threading.active_count() == threads
    if Path("/proc/self/fd").exists():
        assert open_files(host.base / "temp") == []


def at_forward(monkeypatch: pytest.MonkeyPatch, number: int, deed: Any) -> None:
    original, calls = H3.forward, []

    def counting(self: H3, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            deed()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(H3, "forward", counting)


def resumed(host: Host, inputs: dict[str, Any]) -> list[int]:
    """Run the sampler, which must end like an undisturbed one; the chunks at which it went on. No journal is left."""
    video, _, metrics, _ = host.run("StreamSampler", **inputs)
    undisturbed = json.loads(host.run("StreamSampler", **inputs, resume=False)[2])
    assert playable_frames(Path(video.get_stream_source())) == FRAMES
    assert json.loads(metrics)["latents_sha256"] == undisturbed["latents_sha256"]
    assert undisturbed["resumed_at_chunks"] == [] and not list(host.journals.iterdir())
    return json.loads(metrics)["resumed_at_chunks"]
