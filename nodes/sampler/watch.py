"""Looks at every chunk as it comes and says which ones a person should look at, and why.

Thresholds are set so that ordinary footage and the example model's renders pass; what they catch are the ways in which
streaming video is known to fail: pulses at the codec's block starts, growing contrast or colour, flashes, jumps at chunk borders.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor

from . import figures

SINK_FRAMES = 9  # of the released schedule: the first two units, which every later chunk sees
TREND_CHUNKS = 8
BRIGHTNESS_TAIL = 5  # frames kept to judge a flash or a block start that lies across a border
MOTION_FRAMES = 48

FLASH_LEVELS = 25.0
FLICKER_LEVELS = 4.0
BLOCK_START_LEVELS = 4.0
SEAM_RATIO, SEAM_LEVELS = 5.0, 6.0
CONTRAST_RANGE = (0.55, 1.7)  # against the sink
CONTRAST_GROWTH, CONTRAST_FIT = 0.03, 0.85  # per chunk, and share of the variance that the trend explains
COLOUR_LEVELS = 20.0
SATURATION_RANGE, SATURATION_LEVELS = (0.5, 1.7), 12.0
CLIPPED_SHARE = 0.25


@dataclass(frozen=True)
class ChunkFigures:
    """What one chunk looks like. Levels are 0 to 255; ratios are against the sink (the clip's or the look's first frames).

    `suspect` names what is unusual, in words for people; empty for an ordinary chunk.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    contrast_ratio: float = 1.0
    colour_drift: float = 0.0
    saturation: float = 0.0
    saturation_ratio: float = 1.0
    clipped: float = 0.0
    flicker: float = 0.0
    flash: float = 0.0
    block_start: float = 0.0  # the largest, signed
    seam: float = 0.0  # difference across the border to the chunk before, over the usual difference of frames
    suspect: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Rounded, for JSON; the reasons apart."""
        return {name: round(value, 3) for name, value in asdict(self).items() if name != "suspect"}


@dataclass
class Watch:
    """State across chunks. `add` takes the frames of each, in order; `state` and `restore` carry it over an interruption."""

    frames: int = 0
    _tail: list[float] = field(default_factory=list)  # brightness of the last frames
    _motion: deque[float] = field(default_factory=lambda: deque(maxlen=MOTION_FRAMES))
    _contrasts: deque[float] = field(default_factory=lambda: deque(maxlen=TREND_CHUNKS))  # logarithms
    _sink: dict[str, float] = field(default_factory=dict)
    _last: Tensor | None = None  # luma of the last frame, small

    def add(self, frames: Tensor, *, new_look: bool = False) -> ChunkFigures:
        """Figures of frames [n, 3, H, W] in [0, 1]; with `new_look` the chunk becomes what later ones are measured against."""
        if not len(frames):
            return ChunkFigures()
        small = figures.small(frames)
        light = figures.luma(small)
        if new_look:
            self._sink, self._last, self._tail = {}, None, []
            self._contrasts.clear()
        if not self._sink:
            self._sink = self._measure(small[:SINK_FRAMES], light[:SINK_FRAMES])
        found = self._judge(small, light)
        self.frames += len(frames)
        return found

    def _judge(self, small: Tensor, light: Tensor) -> ChunkFigures:
        now, sink = self._measure(small, light), self._sink
        levels = [*self._tail, *figures.brightness(light).tolist()]
        known = len(self._tail)
        near = levels[max(0, known - 2) :]  # a frame is compared with its neighbours when the later one has come
        first = self.frames - min(known, 2)
        starts = figures.block_starts(near, first)
        self._contrasts.append(math.log(max(now["contrast"], 0.1)))
        found = ChunkFigures(
            brightness=levels[-1],
            contrast=now["contrast"],
            contrast_ratio=now["contrast"] / max(sink["contrast"], 1.0),
            colour_drift=max(abs(now[name] - sink[name]) for name in ("red", "blue")),
            saturation=now["saturation"],
            saturation_ratio=now["saturation"] / max(sink["saturation"], 1.0),
            clipped=now["clipped"],
            flicker=figures.flicker(near, first),
            flash=figures.flash(levels, since=known),
            block_start=max(starts, key=abs, default=0.0),
            seam=self._seam(light),
        )
        self._tail, self._last = levels[-BRIGHTNESS_TAIL:], light[-1].clone()
        return ChunkFigures(**{**asdict(found), "suspect": tuple(self._reasons(found, now))})

    def _seam(self, light: Tensor) -> float:
        inside = figures.motion(light).tolist()
        self._border = float((light[0] - self._last).abs().mean()) if self._last is not None else 0.0
        usual = median([*self._motion, *inside]) if self._motion or inside else 0.0
        self._motion.extend(inside)
        return self._border / max(usual, 0.5) if self._last is not None else 0.0

    def _reasons(self, found: ChunkFigures, now: Mapping[str, float]) -> list[str]:
        reasons = []
        if found.flash > FLASH_LEVELS:
            reasons.append(f"flash of {found.flash:.0f} levels")
        if abs(found.block_start) > BLOCK_START_LEVELS:
            reasons.append(f"first frame of a block of 17 is {found.block_start:+.1f} levels off its neighbours")
        if found.flicker > FLICKER_LEVELS:
            reasons.append(f"brightness flickers by {found.flicker:.1f} levels")
        if found.seam > SEAM_RATIO and self._border > SEAM_LEVELS:
            reasons.append(f"jump at the chunk border, {found.seam:.1f} times the usual change between frames")
        growth, fit = figures.slope(list(self._contrasts))
        if len(self._contrasts) >= TREND_CHUNKS - 2 and growth > CONTRAST_GROWTH and fit > CONTRAST_FIT:
            reasons.append(f"contrast grows by {100 * growth:.0f} % per chunk")
        if not CONTRAST_RANGE[0] <= found.contrast_ratio <= CONTRAST_RANGE[1]:
            reasons.append(f"contrast is {found.contrast_ratio:.2f} times that of the first frames")
        if found.colour_drift > COLOUR_LEVELS:
            reasons.append(f"colour is {found.colour_drift:.0f} levels off that of the first frames")
        off = abs(now["saturation"] - self._sink["saturation"])
        if not SATURATION_RANGE[0] <= found.saturation_ratio <= SATURATION_RANGE[1] and off > SATURATION_LEVELS:
            reasons.append(f"saturation is {found.saturation_ratio:.2f} times that of the first frames")
        if found.clipped > self._sink["clipped"] + CLIPPED_SHARE:
            reasons.append(f"{100 * found.clipped:.0f} % of the picture is pure black or white")
        return reasons

    @staticmethod
    def _measure(small: Tensor, light: Tensor) -> dict[str, float]:
        red, blue = figures.colour(small)
        return {
            "contrast": figures.contrast(light),
            "red": red,
            "blue": blue,
            "saturation": figures.saturation(small),
            "clipped": figures.clipped(small),
        }

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """(values for JSON, tensors) from which `restore` goes on."""
        values = {
            "frames": self.frames,
            "tail": self._tail,
            "motion": list(self._motion),
            "contrasts": list(self._contrasts),
            "sink": self._sink,
        }
        return values, {} if self._last is None else {"watch.last": self._last}

    def restore(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.frames, self._tail, self._sink = values["frames"], list(values["tail"]), dict(values["sink"])
        self._motion.extend(values["motion"])
        self._contrasts.extend(values["contrasts"])
        self._last = tensors.get("watch.last")


def peak_memory() -> dict[str, int]:
    """Peak bytes of this process so far, and of PyTorch on the GPU since the render began, where they can be told."""
    found = {}
    try:
        import resource
        import sys

        unit = 1 if sys.platform == "darwin" else 1024
        found["process_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    except ImportError:  # Windows
        pass
    if torch.cuda.is_available():
        found["gpu_bytes"] = torch.cuda.max_memory_allocated()
    return found
