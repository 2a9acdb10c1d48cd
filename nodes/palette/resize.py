"""Nearest resize of label frames by index gather, with the floor rule of the network's training data.

Target pixel x takes source pixel `x * source // target`, as `torch.nn.functional.interpolate(mode="nearest")` does.
Samplers that aim at pixel centres (PIL's NEAREST, torch's "nearest-exact") take another source pixel in most columns,
and any averaging sampler invents colours that belong to no class.
"""

from __future__ import annotations

import numpy as np

from .errors import ClipError

Size = tuple[int, int]

MIN_SIDE = 64
REFERENCE_MULTIPLE = 32
# Height, width of the semantic reference the released model was trained with.
REFERENCE_SIZE: Size = (480, 832)


def floor_indices(source: int, target: int) -> np.ndarray:
    """int64 [target]: the source position each target position reads."""
    return np.arange(target, dtype=np.int64) * source // target


def resize_labels(labels: np.ndarray, size: Size) -> np.ndarray:
    """Stretch `labels` [H, W, ...] to `size` (height, width) without inventing a value."""
    height, width = labels.shape[:2]
    if (height, width) == size:
        return labels
    return labels[floor_indices(height, size[0])].take(floor_indices(width, size[1]), axis=1)


def check_frame_size(size: Size, name: str) -> None:
    """Refuse frames too small to be told apart by the network: under 64 pixels on a side."""
    if min(size) < MIN_SIDE:
        raise ClipError(
            f"{name} has frames of {size[1]}x{size[0]} pixels; at least {MIN_SIDE} pixels on each side are needed. "
            f"Export it larger, for example 1344x768."
        )


def check_reference_size(size: Size) -> Size:
    """Refuse a reference size that is not a multiple of 32 or is under 64, naming the nearest valid one."""
    height, width = (int(value) for value in size)
    nearest = tuple(
        max(MIN_SIDE, (value + REFERENCE_MULTIPLE // 2) // REFERENCE_MULTIPLE * REFERENCE_MULTIPLE)
        for value in (height, width)
    )
    if nearest != (height, width):
        raise ClipError(
            f"The reference size is {width}x{height}; width and height must be multiples of {REFERENCE_MULTIPLE} "
            f"and at least {MIN_SIDE}. Set it to {nearest[1]}x{nearest[0]}, the nearest valid size."
        )
    return height, width
