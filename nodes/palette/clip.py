"""`SemanticClip`: a lazy sequence of class-id frames at 24 fps, with the palette they are numbered by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .errors import ClipError
from .palette import RACING, Palette
from .reader import FrameSource, Rate, StreamSource, open_source
from .reading import Reading, choose_reading
from .repair import clean_neighbour_repair
from .resize import REFERENCE_SIZE, Size, check_frame_size, check_reference_size, resize_labels
from .snap import EXACT, NEAR, colour_table, nearest_classes
from .translate import translation

if TYPE_CHECKING:
    import torch

REPAIRS = ("auto", "on", "off")


@dataclass(frozen=True)
class LabelFrame:
    """One frame: `ids` uint8 [H, W] in the clip's palette, `codes` uint16 [H, W] as the pixels were judged, `rgb` as read."""

    ids: np.ndarray
    codes: np.ndarray
    rgb: np.ndarray

    @property
    def doubtful(self) -> np.ndarray:
        """bool [H, W]: pixels whose colour belongs to no class."""
        return self.codes < NEAR << 8

    @property
    def exact(self) -> np.ndarray:
        """bool [H, W]: pixels of exactly a class colour."""
        return self.codes >= EXACT << 8


@dataclass(frozen=True)
class SemanticClip:
    """Frames of class ids at 24 fps, read again from the source on every pass; no frame is kept.

    `drawn_in` is the palette of the source's colours; ids are handed on in `palette`, which is the same unless that one is
    translated. `reference_size` is the (height, width) in pixels at which the network sees the clip: multiples of 32, at
    least 64. `repair`: "auto" mends blurred pixels and undoes colour mistakes, "on" also where compression is so heavy
    that small things may be painted over, "off" takes the nearest class of every pixel as it is.
    """

    source: FrameSource
    drawn_in: Palette
    reference_size: Size = REFERENCE_SIZE
    repair: str = "auto"

    def __post_init__(self) -> None:
        check_reference_size(self.reference_size)
        check_frame_size(self.size, self.source.name)
        if self.repair not in REPAIRS:
            raise ClipError(f"Repair is set to '{self.repair}'; it is one of {', '.join(REPAIRS)}. Set it to auto.")

    @cached_property
    def reading(self) -> Reading:
        """How the source's pixels are read, decided once from a few frames."""
        return choose_reading(self.source, self.drawn_in, fix=self.repair != "off")

    @property
    def palette(self) -> Palette:
        """The palette of the ids."""
        return translation(self.drawn_in)[0]

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
        for frame in self.label_frames():
            yield frame.ids

    def label_frames(self, wanted: Callable[[int], bool] | None = None) -> Iterator[LabelFrame]:
        """The frames (those `wanted` by number) with how sure their labels are; one shown again is not judged again."""
        reading, (_, table) = self.reading, translation(self.drawn_in)
        previous, frame = None, None
        for k, raw in enumerate(self.source.open()):
            if wanted is not None and not wanted(k):
                continue
            if frame is None or raw is not previous:
                previous, frame = raw, self._label(reading.to_rgb(raw), reading.seen, table)
            yield frame

    def _label(self, rgb: np.ndarray, seen: Palette, table: np.ndarray) -> LabelFrame:
        codes = colour_table(seen).judge(rgb)
        if self.repair == "off" or codes.min() >= EXACT << 8:
            ids = nearest_classes(codes)
        else:
            ids = clean_neighbour_repair(rgb, codes, seen, guard=self.repair == "auto")
        return LabelFrame(table.take(ids) if self.drawn_in.target else ids, codes, rgb)

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
    repair: str = "auto",
) -> SemanticClip:
    """A clip from a video file, an open binary file or a folder of images (`fps` is for folders; default 24)."""
    return SemanticClip(open_source(path, fps=fps), palette, reference_size, repair)


def clip_from_frames(
    frames: Any | Callable[[], Iterable[Any]],
    palette: Palette = RACING,
    reference_size: Size = REFERENCE_SIZE,
    *,
    fps: Rate = 24,
    count: int | None = None,
    repair: str = "auto",
) -> SemanticClip:
    """A clip from frames in memory [T, H, W, C], or from a function that starts an iterator over `count` frames."""
    source = StreamSource(frames, count or 0, fps=fps) if callable(frames) else open_source(frames, fps=fps)
    return SemanticClip(source, palette, reference_size, repair)
