"""Pictures as clips: a folder of frames, one still picture, an animated picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from .clock import Timeline, timeline_from_rate, timeline_from_stamps
from .errors import ClipError, Trouble
from .images import IMAGE_SUFFIXES, raw_from_picture, read_image
from .pixels import Raw
from .resize import Size
from .series import series_of

# Animated pictures that are read by Pillow; FFmpeg reads the others as videos.
ANIMATED_SUFFIXES = (".webp", ".tif", ".tiff")


class FolderSource:
    """The images of a folder in the order of their numbers (2 before 10), each shown for 1 / `fps` s; or some files.

    Where numbers are missing the frame before stays on.
    """

    pixel_aspect = Fraction(1)

    def __init__(self, folder: Path, *, fps: Fraction) -> None:
        one = folder.is_file()
        self.name = f"Picture '{folder}'" if one else f"Folder '{folder}'"
        found = [folder] if one else [f for f in folder.iterdir() if _is_frame(f)]
        if not found:
            raise ClipError(
                f"{self.name} holds no images; PNG frames are needed. Choose the folder that holds the exported frames."
            )
        series = series_of(found, self.name)
        self.files, self.troubles = series.files, series.troubles
        shown = series.shown_at()
        moments = timeline_from_rate(series.length, fps)
        indices = tuple(shown[moment] for moment in moments.indices)
        self.timeline = replace(moments, source_frames=len(self.files), indices=indices)
        self.size: Size = read_image(self.files[0]).size

    def open(self, wanted: Callable[[int], bool] | None = None) -> Iterator[Raw]:
        return read_each(
            self.timeline, lambda i: read_image(self.files[i]), lambda i: f"'{self.files[i]}'", self.size, wanted
        )


class AnimationSource:
    """An animated picture (WebP, TIFF of several pages), its frames by the durations that it states, else at `fps`."""

    pixel_aspect = Fraction(1)
    troubles: tuple[Trouble, ...] = ()

    def __init__(self, path: Path, *, fps: Fraction) -> None:
        self.name = f"Picture '{path}'"
        self._path = path
        stamps: list[int] = []
        moment, first = Fraction(0), None
        for raw, milliseconds in self._pages():
            first = first or raw
            stamps.append(round(moment))
            moment += milliseconds or 1000 / fps
        if first is None:
            raise ClipError(f"{self.name} holds no frame that can be read. Export the clip again.")
        self.timeline = timeline_from_stamps(stamps, Fraction(1, 1000), round(moment) - stamps[-1])
        self.size: Size = first.size

    def open(self, wanted: Callable[[int], bool] | None = None) -> Iterator[Raw]:
        frames = enumerate(raw for raw, _ in self._pages())

        def read(index: int) -> Raw:
            return next((raw for at, raw in frames if at == index), Raw(np.zeros((0, 0), np.uint8)))

        return read_each(self.timeline, read, lambda i: f"{self.name}, frame {i},", self.size, wanted)

    def _pages(self) -> Iterator[tuple[Raw, int]]:
        from PIL import Image, ImageSequence

        try:
            with Image.open(self._path) as image:
                for frame in ImageSequence.Iterator(image):
                    raw = raw_from_picture(frame)
                    yield Raw(raw.values.copy(), raw.lookup), int(frame.info.get("duration") or 0)
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            raise ClipError(
                f"{self.name} could not be read ({error}); a complete animated picture is needed. Export it again."
            ) from error


def picture_source(path: Path, fps: Fraction) -> FolderSource | AnimationSource | None:
    """The source for one picture file; None for moving pictures that FFmpeg reads as videos (GIF, APNG, AVIF)."""
    if not _moves(path):
        return FolderSource(path, fps=fps)
    return AnimationSource(path, fps=fps) if path.suffix.lower() in ANIMATED_SUFFIXES else None


def read_each(
    timeline: Timeline,
    read: Callable[[int], Raw],
    name_of: Callable[[int], str],
    size: Size,
    wanted: Callable[[int], bool] | None = None,
) -> Iterator[Raw]:
    """The frames of the timeline, each source frame read once, in order; all must have the size of the first."""
    previous, raw = -1, None
    for k, index in enumerate(timeline.indices):
        if wanted is not None and not wanted(k):
            continue
        if raw is None or index != previous:
            raw = read(index)
            previous = index
            if raw.size != size:
                raise ClipError(
                    f"{name_of(index)} has {raw.size[1]}x{raw.size[0]} pixels, the frames before it "
                    f"{size[1]}x{size[0]}; one size is needed. Export the whole clip at one size."
                )
        yield raw


def _is_frame(file: Path) -> bool:
    return file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".") and file.is_file()


def _moves(path: Path) -> bool:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return int(getattr(image, "n_frames", 1)) > 1
    except (OSError, ValueError, SyntaxError):
        return False  # the reader of single pictures says what is wrong
