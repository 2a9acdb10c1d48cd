"""`SemanticClip`: a lazy sequence of class-id frames at 24 fps, with the palette they are numbered by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .palette import RACING, Palette
from .pixels import to_rgb
from .reader import FrameSource, Rate, StreamSource, open_source
from .resize import REFERENCE_SIZE, Size, check_frame_size, check_reference_size, resize_labels
from .snap import snap

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SemanticClip:
    """Frames of class ids at 24 fps, read again from the source on every pass; no frame is kept.

    `reference_size` is the (height, width) in pixels at which the network sees the clip: multiples of 32, at least 64.
    """

    source: FrameSource
    palette: Palette
    reference_size: Size

    def __post_init__(self) -> None:
        check_reference_size(self.reference_size)
        check_frame_size(self.size, self.source.name)

    @property
    def frames(self) -> int:
        """Number of frames at 24 fps."""
        return self.source.timeline.frames

    @property
    def size(self) -> Size:
        """(height, width) of the source in pixels."""
        return self.source.size

    def open(self) -> Iterator[np.ndarray]:
        """Class ids uint8 [H, W] of every frame at source size, from frame 0."""
        for ids, _ in self.labels():
            yield ids

    def labels(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(ids uint8 [H, W], doubtful bool [H, W]) of every frame; a frame shown again is not judged again."""
        previous, labels = None, None
        for raw in self.source.open():
            if labels is None or raw is not previous:
                previous, labels = raw, snap(to_rgb(raw), self.palette)
            yield labels

    def reference_frames(self) -> Iterator[torch.Tensor]:
        """What the encoder is fed: float32 [3, h, w] in [0, 1] at the reference size, exact palette colours / 255."""
        import torch

        colours = np.ascontiguousarray(self.palette.colours.T.astype(np.float32) / np.float32(255))  # [3, classes]
        for ids in self.open():
            yield torch.from_numpy(colours.take(resize_labels(ids, self.reference_size), axis=1))


def clip_from_video(
    path: str | Path | BinaryIO,
    palette: Palette = RACING,
    reference_size: Size = REFERENCE_SIZE,
    *,
    fps: Rate | None = None,
) -> SemanticClip:
    """A clip from a video file, an open binary file or a folder of images (`fps` is for folders; default 24)."""
    return SemanticClip(open_source(path, fps=fps), palette, reference_size)


def clip_from_frames(
    frames: Any | Callable[[], Iterable[Any]],
    palette: Palette = RACING,
    reference_size: Size = REFERENCE_SIZE,
    *,
    fps: Rate = 24,
    count: int | None = None,
) -> SemanticClip:
    """A clip from frames in memory [T, H, W, C], or from a function that starts an iterator over `count` frames."""
    source = StreamSource(frames, count or 0, fps=fps) if callable(frames) else open_source(frames, fps=fps)
    return SemanticClip(source, palette, reference_size)
