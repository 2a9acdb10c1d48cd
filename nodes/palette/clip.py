"""`SemanticClip`: a lazy sequence of class-id frames at 24 fps, with the palette they are numbered by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from .ahead import THREADS, in_order
from .errors import ClipError
from .mapping import STRETCH, Placement, place, place_labels, shape_of
from .palette import RACING, Palette
from .pixels import Raw
from .reader import FrameSource, Rate, StreamSource, open_source
from .reading import Reading, choose_reading
from .repair import clean_neighbour_repair
from .resize import REFERENCE_SIZE, Size, check_frame_size, check_reference_size
from .snap import EXACT, NEAR, colour_table, nearest_classes
from .translate import translation
from .video import WHOLE, Trim

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

REPAIRS = ("auto", "on", "off")
# Frames of fewer pixels are not worth a thread.
MANY_PIXELS = 100_000


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
    that small things may be painted over, "off" takes the nearest class of every pixel as it is. `mapping` is how the clip
    lies in a video of another shape (see `mapping.place`).
    """

    source: FrameSource
    drawn_in: Palette
    reference_size: Size = REFERENCE_SIZE
    repair: str = "auto"
    mapping: str = STRETCH
    video_size: Size | None = None

    def __post_init__(self) -> None:
        check_reference_size(self.reference_size)
        check_frame_size(self.size, self.source.name)
        if self.repair not in REPAIRS:
            raise ClipError(f"Repair is set to '{self.repair}'; it is one of {', '.join(REPAIRS)}. Set it to auto.")
        place(self.shape, self.shape, self.mapping)

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

    @property
    def shape(self) -> Fraction:
        """Width over height of a frame as shown."""
        return shape_of(self.size, self.source.pixel_aspect)

    def placement(self, target: Size) -> Placement:
        """Where the clip lies in a video of `target` (height, width) pixels."""
        return place(self.shape, shape_of(target), self.mapping)

    def label_frames(self, wanted: Callable[[int], bool] | None = None) -> Iterator[LabelFrame]:
        """The frames (those `wanted` by number) with how sure their labels are; one shown again is not judged again."""
        return self.each(self.label, wanted)

    def each(self, judge: Callable[[int, np.ndarray], T], wanted: Callable[[int], bool] | None = None) -> Iterator[T]:
        """`judge(k, rgb)` of the frames (those `wanted` by number) in order, large ones in several threads.

        `rgb` is uint8 [H, W, 3] in the colours of `reading.seen`. For a frame that is shown again the result is too.
        """
        reading = self.reading

        def tasks() -> Iterator[Callable[[], T]]:
            previous: Raw | None = None
            task: Callable[[], T]
            numbers = (k for k in range(self.frames) if wanted is None or wanted(k))
            for k, raw in zip(numbers, self.source.open(wanted), strict=True):
                if raw is not previous:
                    previous, task = raw, partial(lambda k, raw: judge(k, reading.to_rgb(raw)), k, raw)
                yield task

        return in_order(tasks(), THREADS if self.size[0] * self.size[1] >= MANY_PIXELS else 1)

    def label(self, k: int, rgb: np.ndarray) -> LabelFrame:
        """Frame `k`, whose pixels are `rgb`, with its classes."""
        seen, (_, table) = self.reading.seen, translation(self.drawn_in)
        codes = colour_table(seen).judge(rgb)
        if self.repair == "off" or codes.min() >= EXACT << 8:
            ids = nearest_classes(codes)
        else:
            ids = clean_neighbour_repair(rgb, codes, seen, guard=self.repair == "auto")
        return LabelFrame(table.take(ids) if self.drawn_in.target else ids, codes, rgb)

    def in_video(self, size: Size) -> SemanticClip:
        """The clip as it lies, by its mapping, in a video of `size` (height, width) pixels."""
        return replace(self, video_size=size)

    def reference_frames(self, start: int = 0) -> Iterator[torch.Tensor]:
        """What the encoder is fed, from frame `start` on: float32 [3, h, w] in [0, 1] at the reference size, exact palette
        colours / 255.

        With a `video_size` this shows the frame of that video; bands that the mapping leaves free are of the first class of
        the palette ("unlabeled"). Without one the clip is stretched.
        """
        import torch

        colours = np.ascontiguousarray(self.palette.colours.T.astype(np.float32) / np.float32(255))  # [3, classes]
        placement = Placement() if self.video_size is None else self.placement(self.video_size)
        for frame in self.label_frames((lambda number: number >= start) if start else None):
            placed = place_labels(frame.ids, self.reference_size, placement, free=0)
            yield torch.from_numpy(colours.take(placed, axis=1))


def clip_from_video(
    path: str | Path | BinaryIO,
    palette: Palette = RACING,
    reference_size: Size = REFERENCE_SIZE,
    *,
    fps: Rate | None = None,
    repair: str = "auto",
    mapping: str = STRETCH,
    trim: Trim = WHOLE,
) -> SemanticClip:
    """A clip from a video file, an open binary file, a picture or a folder of pictures.

    `fps` is for pictures (default 24), `trim` for videos.
    """
    return SemanticClip(open_source(path, fps=fps, trim=trim), palette, reference_size, repair, mapping)


def clip_from_frames(
    frames: Any | Callable[[], Iterable[Any]],
    palette: Palette = RACING,
    reference_size: Size = REFERENCE_SIZE,
    *,
    fps: Rate = 24,
    count: int | None = None,
    repair: str = "auto",
    mapping: str = STRETCH,
) -> SemanticClip:
    """A clip from frames in memory [T, H, W, C], or from a function that starts an iterator over `count` frames."""
    source = StreamSource(frames, count or 0, fps=fps) if callable(frames) else open_source(frames, fps=fps)
    return SemanticClip(source, palette, reference_size, repair, mapping)
