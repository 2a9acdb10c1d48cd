"""Where semantic frames come from: a video file, pictures, or frames held by a graph, all read one at a time.

Every source knows its length at 24 fps before anything is decoded and can be opened again from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .clock import FPS, Timeline, exact_rate, timeline_from_rate
from .errors import ClipError, Trouble
from .folder import FolderSource, picture_source, read_each
from .images import IMAGE_SUFFIXES
from .pixels import Raw, raw_from_array
from .resize import Size
from .video import WHOLE, Trim, VideoSource

Rate = float | int | Fraction


class FrameSource(Protocol):
    """Frames at 24 fps: `name` for messages, `timeline` and `size` known at once, `open` begins at frame 0 each time.

    A pixel is `pixel_aspect` times as wide as high. `troubles` are what is unusual about the source. `open` gives the
    frames `wanted` by number, all by default; a frame that is shown again comes as the same `Raw` object.
    """

    name: str
    timeline: Timeline
    size: Size
    pixel_aspect: Fraction
    troubles: tuple[Trouble, ...]

    def open(self, wanted: Callable[[int], bool] | None = None) -> Iterator[Raw]: ...


class BatchSource:
    """Frames the caller holds at `fps`: an array, tensor or list of [H, W, C] (a ComfyUI IMAGE batch [T, H, W, 3])."""

    pixel_aspect = Fraction(1)
    troubles: tuple[Trouble, ...] = ()

    def __init__(self, frames: Any, *, fps: Rate = FPS, name: str = "The image batch") -> None:
        count = len(frames)
        if count == 0:
            raise ClipError(f"{name} holds no frames; at least one is needed. Connect a clip that is not empty.")
        self.name = name
        self._frames = frames
        self.timeline = timeline_from_rate(count, checked_rate(fps, name))
        self.size = self._read(0).size

    def _read(self, index: int) -> Raw:
        return raw_from_array(to_numpy(self._frames[index]), self.name)

    def open(self, wanted: Callable[[int], bool] | None = None) -> Iterator[Raw]:
        return read_each(self.timeline, self._read, lambda i: f"{self.name}, frame {i},", self.size, wanted)


class StreamSource:
    """Frames made on demand: `start()` gives an iterator of [H, W, C] frames at `fps`, `count` of them.

    `start` is called once for the size and once for every pass; no frame is asked for ahead of its turn or kept.
    """

    pixel_aspect = Fraction(1)
    troubles: tuple[Trouble, ...] = ()

    def __init__(
        self, start: Callable[[], Iterable[Any]], count: int, *, fps: Rate = FPS, name: str = "The frame stream"
    ) -> None:
        if count <= 0:
            raise ClipError(f"{name} holds {count} frames; at least one is needed. Connect a clip that is not empty.")
        self.name = name
        self._start = start
        self.timeline = timeline_from_rate(count, checked_rate(fps, name))
        first = next(iter(start()), None)
        if first is None:
            raise ClipError(f"{name} holds no frames; at least one is needed. Connect a clip that is not empty.")
        self.size = raw_from_array(to_numpy(first), name).size

    def open(self, wanted: Callable[[int], bool] | None = None) -> Iterator[Raw]:
        stream = iter(self._start())
        position = -1

        def read(index: int) -> Raw:
            nonlocal position
            while True:
                frame = next(stream, None)
                position += 1
                if frame is None:
                    raise ClipError(
                        f"{self.name} ended after {position} of {self.timeline.source_frames} frames. "
                        f"Give the number of frames it really holds."
                    )
                if position == index:
                    return raw_from_array(to_numpy(frame), self.name)

        return read_each(self.timeline, read, lambda i: f"{self.name}, frame {i},", self.size, wanted)


def to_numpy(frame: Any) -> np.ndarray:
    """A frame as numpy, from a torch tensor of any dtype and device, a PIL image or an array."""
    if hasattr(frame, "detach"):
        tensor = frame.detach().cpu()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return np.asarray(frame)


def checked_rate(fps: Rate | None, name: str) -> Fraction:
    """`fps` (24 for None) as an exact fraction, refused when it is not a positive number up to 1000."""
    fps = FPS if fps is None else fps
    if not 0 < fps <= 1000:
        raise ClipError(f"{name}: the frame rate is {fps}; a number above 0 and up to 1000 is needed. Set fps to 24.")
    return exact_rate(fps)


def open_source(what: Any, *, fps: Rate | None = None, trim: Trim = WHOLE) -> FrameSource:
    """The source for a video file, a folder of images, one picture, an open binary file, or a batch of frames.

    `fps` is the rate of pictures and batches (default 24); a video goes by its own time stamps, of which `trim` is a part.
    """
    if isinstance(what, (str, Path)):
        path = Path(what).expanduser()
        rate = checked_rate(fps, f"Clip '{what}'")
        if path.is_dir():
            return FolderSource(path, fps=rate)
        if not path.is_file():
            raise ClipError(
                f"Clip '{what}' does not exist; a video file or a folder of PNG frames is needed. Check the path."
            )
        if path.suffix.lower() == ".npy":
            return BatchSource(read_array(path), fps=rate, name=f"Array '{path}'")
        if path.suffix.lower() in IMAGE_SUFFIXES:
            picture = picture_source(path, rate)
            if picture is not None:
                return picture
        return VideoSource(path, trim=trim, fps=None if fps is None else rate)
    if hasattr(what, "read"):
        return VideoSource(what, trim=trim)
    return BatchSource(what, fps=FPS if fps is None else fps)


def read_array(path: Path) -> np.ndarray:
    """A saved numpy array as frames [T, H, W] or [T, H, W, C], read from disk as it is used; one frame becomes T = 1."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ClipError(
            f"Array '{path}' could not be read ({error}); frames [count, height, width] of class numbers are needed. "
            f"Save them with numpy.save."
        ) from error
    single = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (3, 4))
    return array[None] if single else array
