"""The picture of a preview: the render above, the map it was made from below, in one frame so that they never part.

Planes all the way, as tensors and encoders have them, and numpy instead of torch: torch's threads would fight with those
of the render, which wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from .video_file import BT709, FULL_RANGE, LIMITED_RANGE

MAX_WIDTH = 832  # of the preview; a 1344 wide render is scaled down, small ones stay as they are
PLANES = (1, 2, 0)  # gbrp: green, blue, red


def preview_size(height: int, width: int) -> tuple[int, int]:
    """(height, width) of the render's half: at most `MAX_WIDTH` wide, same shape, both even."""
    scale = min(1.0, MAX_WIDTH / width)
    return max(2, 2 * round(height * scale / 2)), max(2, 2 * round(width * scale / 2))


def nearest(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Class colours [3, h, w] resized to `size` without mixing them: source index floor(i * source / target)."""
    rows = np.arange(size[0]) * maps.shape[1] // size[0]
    columns = np.arange(size[1]) * maps.shape[2] // size[1]
    return maps.take(columns, axis=2).take(rows, axis=1)


def rounded(frame: np.ndarray) -> np.ndarray:
    """A frame [3, H, W] float in [0, 1] as uint8, rounded."""
    scaled = frame * np.float32(255)
    scaled += np.float32(0.5)
    return np.clip(scaled, 0, 255, out=scaled).astype(np.uint8)


def stacked(frames: Tensor, maps: Tensor, size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Pictures [3, 2 * height, width] uint8: frame above, map below.

    `frames` [m, 3, H, W] float32 in [0, 1]; `maps` [m, 3, h', w'] uint8; `size` (height, width) from `preview_size`.
    One at a time, so that a chunk is never held a second time in full.
    """
    height, width = size
    for frame, classes in zip(frames.numpy(), maps.numpy(), strict=True):
        pixels = rounded(frame)
        if pixels.shape[1:] != size:
            small = planar_frame(pixels).reformat(width=width, height=height, interpolation="AREA")
            pixels = np.stack([plane_of(small, PLANES.index(channel)) for channel in range(3)])
        picture = np.empty((3, 2 * height, width), np.uint8)
        picture[:, :height] = pixels
        picture[:, height:] = nearest(classes, size)
        yield picture


def plane_of(frame: Any, number: int) -> np.ndarray:
    """Plane `number` of an av.VideoFrame with one byte a pixel, [H, W], writable, without padding."""
    plane = frame.planes[number]
    return np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]


def planar_frame(pixels: np.ndarray) -> Any:
    """Pixels [3, H, W] uint8 (red, green, blue) as an av.VideoFrame of planar RGB."""
    import av

    frame = av.VideoFrame(pixels.shape[2], pixels.shape[1], "gbrp")
    for number, channel in enumerate(PLANES):
        plane_of(frame, number)[:] = pixels[channel]
    return frame


class Converter:
    """Pixels [3, H, W] uint8 -> av.VideoFrame of yuv420p, BT.709 limited range. Keeps the scaler's tables from frame to
    frame: making them costs more than using them.
    """

    def __init__(self) -> None:
        from av.video.reformatter import VideoReformatter

        self._reformatter: Any = VideoReformatter()

    def __call__(self, pixels: np.ndarray) -> Any:
        return self._reformatter.reformat(
            planar_frame(pixels),
            format="yuv420p",
            dst_colorspace=BT709,
            src_color_range=FULL_RANGE,
            dst_color_range=LIMITED_RANGE,
            interpolation="BILINEAR",
        )
