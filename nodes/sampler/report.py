"""What a render tells about itself, as JSON of bounded size: times by part, memory, what was rendered, what looks unusual."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from ..schedule import FPS
from .guidance import Branch
from .render import RenderedChunk
from .watch import ChunkFigures, Watch, peak_memory

MAX_ROWS = 128  # a row per chunk up to here, 45 s of video; longer renders have rows of 2, 4, ... chunks
MAX_SUSPECTS = 60
TIMES = ("encode_ms", "decode_ms", "write_ms")
WORST = ("flicker", "flash", "block_start", "seam", "colour_drift", "clipped")


class Recorded(Protocol):
    """What is known of how a render is made: the settings of a stream or of a whole clip."""

    @property
    def branches(self) -> tuple[Branch, ...]: ...

    def facts(self) -> dict[str, Any]: ...

    def latent_counts(self, frames: int) -> tuple[int, int]:
        """Video latents and sound latents per channel of a clip of `frames` frames."""


@dataclass
class RenderReport:
    """Collects figures chunk by chunk."""

    settings: Recorded
    clip_frames: int
    facts: Mapping[str, Any] = field(default_factory=dict)  # further entries: hashes of inputs, versions, look changes
    chunks: list[dict[str, Any]] = field(default_factory=list)
    frames: int = 0
    prefills: int = 0
    suspects: list[dict[str, Any]] = field(default_factory=list)
    suspect_count: int = 0
    resumed_at: list[int] = field(default_factory=list)  # chunks at which an interrupted render went on
    stopped: dict[str, Any] | None = None
    _count: int = 0
    _span: int = 1  # chunks per row
    _watch: Watch = field(default_factory=Watch)

    def add(self, chunk: RenderedChunk, write_ms: float = 0.0, *, new_look: bool = False) -> ChunkFigures:
        """Take in one chunk; its figures, with the reasons why a person should look at it in `suspect`."""
        start = self.frames
        self.frames += len(chunk.frames)
        self.prefills = chunk.prefills
        found = self._watch.add(chunk.frames, new_look=new_look)
        row = {
            "chunk": chunk.index,
            "latents": chunk.video.shape[1],
            "frames": len(chunk.frames),
            "encode_ms": round(chunk.encode_ms, 2),
            "step_ms": [round(ms, 2) for ms in chunk.step_ms],
            "decode_ms": round(chunk.decode_ms, 2),
            "write_ms": round(write_ms, 2),
            **found.as_dict(),
        }
        self._add_row(row)
        if found.suspect:
            self.suspect_count += 1
            if len(self.suspects) < MAX_SUSPECTS:
                reasons = list(found.suspect)
                self.suspects.append({"chunk": chunk.index, "frames": [start, self.frames], "reasons": reasons})
        return found

    def _add_row(self, row: dict[str, Any]) -> None:
        if self._count % self._span:
            self.chunks[-1] = merged(self.chunks[-1], row)
        else:
            self.chunks.append({**row, "chunks": 1})
        self._count += 1
        if len(self.chunks) > MAX_ROWS:
            pairs = zip(self.chunks[::2], [*self.chunks[1::2], None], strict=False)
            self.chunks = [merged(a, b) if b else a for a, b in pairs]
            self._span *= 2

    def stop(self, error: BaseException) -> None:
        """Note what ended the render early."""
        self.stopped = {
            "after_chunk": self._count - 1,
            "stage": getattr(error, "stage", None),
            "reason": " ".join(str(error).split()) or type(error).__name__,
        }

    @property
    def seconds(self) -> float:
        """Time spent in chunks."""
        return sum(row["chunks"] * (sum(row[t] for t in TIMES) + sum(row["step_ms"])) for row in self.chunks) / 1000

    def figures(self) -> dict[str, Any]:
        """The whole clip in a few numbers: the worst of each kind, and how far its end is from its beginning."""
        if not self.chunks:
            return {}
        last = self.chunks[-1]
        found = {f"worst_{name}": max((row[name] for row in self.chunks), key=abs) for name in WORST}
        found |= {f"last_{name}": last[name] for name in ("contrast_ratio", "saturation_ratio", "colour_drift")}
        return found

    def as_dict(self, fingerprint: str) -> dict[str, Any]:
        """Everything, with `fingerprint`, the sha256 of the latents."""
        seconds = self.seconds
        return {
            "complete": self.frames == self.clip_frames and self.stopped is None,
            "frames": self.frames,
            "fps": FPS,
            "render_seconds": round(seconds, 3),
            "frames_per_second": round(self.frames / seconds, 3) if seconds else 0.0,
            **self.settings.facts(),
            "calls_per_step": len(self.settings.branches),
            "prefix_prefills": self.prefills,
            "latents_sha256": fingerprint,
            **self.facts,
            "peak_memory": peak_memory(),
            "resumed_at_chunks": self.resumed_at,
            "stopped": self.stopped,
            "suspect_chunks": self.suspect_count,
            "suspects": self.suspects,
            "figures": self.figures(),
            "chunks_per_row": self._span,
            "chunks": self.chunks,
        }

    def as_json(self, fingerprint: str) -> str:
        return json.dumps(self.as_dict(fingerprint), indent=1)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """(values for JSON, tensors) from which `restore` goes on after an interruption."""
        values, tensors = self._watch.state()
        names = ("chunks", "frames", "prefills", "suspects", "suspect_count", "resumed_at", "_count", "_span")
        return {"watch": values, **{name: getattr(self, name) for name in names}}, tensors

    def restore(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on after the chunks of an earlier run, which is noted."""
        for name, value in values.items():
            if name != "watch":
                setattr(self, name, value)
        self._watch.restore(values["watch"], tensors)
        self.resumed_at = [*self.resumed_at, self._count][-MAX_SUSPECTS:]


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """One row of two: times and ratios averaged by the chunks they stand for, the worst of what should be small kept."""
    chunks = first["chunks"], second.get("chunks", 1)
    share = [count / sum(chunks) for count in chunks]
    row: dict[str, Any] = {"chunk": first["chunk"], "chunks": sum(chunks)}
    for name, value in first.items():
        other = second.get(name, value)
        if name in ("chunk", "chunks"):
            continue
        if name in ("latents", "frames"):
            row[name] = value + other
        elif name in WORST:
            row[name] = max(value, other, key=abs)
        elif name == "step_ms":
            row[name] = [round(a * share[0] + b * share[1], 2) for a, b in zip(value, other, strict=True)]
        else:
            row[name] = round(value * share[0] + other * share[1], 3)
    return row
