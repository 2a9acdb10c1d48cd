"""What can be seen in frames without knowing what they should show: pure functions on RGB, levels are 0 to 255.

Everything works on a small copy of the frames, so that looking costs little beside rendering.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 255.0
LUMA = (0.2126, 0.7152, 0.0722)  # BT.709
BLOCK_FRAMES = 17  # the codec starts anew at every 17th frame
SMALL_HEIGHT = 96
SATURATED = 0.998  # of full scale: what is written as 255; its counterpart below is written as 0


def small(frames: Tensor) -> Tensor:
    """Frames [n, 3, H, W] in [0, 1] -> about 96 rows high, every cell the mean of whole pixels, float32."""
    step = max(1, frames.shape[-2] // SMALL_HEIGHT)
    return F.avg_pool2d(frames.float(), step) if step > 1 else frames.float()


def luma(frames: Tensor) -> Tensor:
    """Frames [n, 3, h, w] -> luma [n, h, w] in levels."""
    weights = frames.new_tensor(LUMA).view(1, 3, 1, 1)
    return (frames * weights).sum(1) * LEVELS


def brightness(light: Tensor) -> Tensor:
    """Luma [n, h, w] -> mean of each frame [n], in levels."""
    return light.mean(dim=(1, 2))


def contrast(light: Tensor) -> float:
    """Luma [n, h, w] -> standard deviation within a frame, averaged over the frames, in levels."""
    return float(light.flatten(1).std(dim=1).mean())


def colour(frames: Tensor) -> tuple[float, float]:
    """Frames [n, 3, h, w] -> mean (red - green, blue - green), in levels: the cast, free of brightness."""
    red, green, blue = (frames.mean(dim=(0, 2, 3)) * LEVELS).tolist()
    return red - green, blue - green


def saturation(frames: Tensor) -> float:
    """Frames [n, 3, h, w] -> mean of (largest - smallest channel), in levels."""
    return float((frames.amax(1) - frames.amin(1)).mean()) * LEVELS


def clipped(frames: Tensor) -> float:
    """Share of pixels whose three channels are all black or all white."""
    return float(((frames >= SATURATED).all(1) | (frames <= 1 - SATURATED).all(1)).float().mean())


def motion(light: Tensor) -> Tensor:
    """Luma [n, h, w] -> mean absolute difference of consecutive frames [n - 1], in levels."""
    return (light[1:] - light[:-1]).abs().mean(dim=(1, 2))


def deviations(levels: Sequence[float]) -> list[float]:
    """How far each inner value of n is off the mean of its neighbours: n - 2 numbers."""
    return [b - (a + c) / 2 for a, b, c in zip(levels, levels[1:], levels[2:], strict=False)]


def flicker(levels: Sequence[float], first: int) -> float:
    """Mean absolute deviation of brightness from the neighbours, block starts left out; `first` is the first frame's number."""
    off = [abs(d) for k, d in enumerate(deviations(levels), start=first + 1) if k % BLOCK_FRAMES not in (0, 1, 16)]
    return sum(off) / len(off) if off else 0.0


def block_starts(levels: Sequence[float], first: int) -> list[float]:
    """Brightness of the first frame of each block against its neighbours, signed; `first` is the first frame's number."""
    return [d for k, d in enumerate(deviations(levels), start=first + 1) if k % BLOCK_FRAMES == 0]


def flash(levels: Sequence[float], since: int = 0) -> float:
    """The largest rise of brightness that is gone again: over the brighter of the frames before and after, in levels.

    A flash may last up to three frames; a change that stays is none. Only flashes that are over at index `since` or later.
    """
    found = 0.0
    for length in (1, 2, 3):
        for start in range(max(1, since - length), len(levels) - length):
            inside = min(levels[start : start + length])
            found = max(found, inside - max(levels[start - 1], levels[start + length]))
    return found


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Least-squares slope per step and the share of the variance it explains (0 for fewer than three values)."""
    if len(values) < 3:
        return 0.0, 0.0
    y = torch.tensor(values, dtype=torch.float64)
    x = torch.arange(len(values), dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    total = float((y * y).sum())
    rise = float((x * y).sum() / (x * x).sum())
    return rise, (rise * float((x * y).sum()) / total if total > 0 else 0.0)


def non_finite(values: Tensor) -> int:
    """How many values are NaN or infinite."""
    return int((~torch.isfinite(values)).sum())
