"""What a render tells about itself: times by part, counts and a fingerprint, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ..schedule import FPS
from .render import RenderedChunk, Settings


@dataclass
class RenderReport:
    """Collects figures chunk by chunk."""

    settings: Settings
    clip_frames: int
    chunks: list[dict[str, Any]] = field(default_factory=list)
    frames: int = 0
    prefills: int = 0

    def add(self, chunk: RenderedChunk) -> None:
        self.frames += len(chunk.frames)
        self.prefills = chunk.prefills
        self.chunks.append(
            {
                "chunk": chunk.index,
                "latents": chunk.video.shape[1],
                "frames": len(chunk.frames),
                "encode_ms": round(chunk.encode_ms, 2),
                "step_ms": [round(ms, 2) for ms in chunk.step_ms],
                "decode_ms": round(chunk.decode_ms, 2),
            }
        )

    def as_dict(self, fingerprint: str) -> dict[str, Any]:
        """Everything, with `fingerprint`, the sha256 of the latents."""
        seconds = sum(c["encode_ms"] + sum(c["step_ms"]) + c["decode_ms"] for c in self.chunks) / 1000
        return {
            "frames": self.frames,
            "fps": FPS,
            "render_seconds": round(seconds, 3),
            "frames_per_second": round(self.frames / seconds, 3) if seconds else 0.0,
            **self.settings.facts(),
            "calls_per_step": len(self.settings.branches),
            "prefix_prefills": self.prefills,
            "latents_sha256": fingerprint,
            "chunks": self.chunks,
        }

    def as_json(self, fingerprint: str) -> str:
        return json.dumps(self.as_dict(fingerprint), indent=1)
