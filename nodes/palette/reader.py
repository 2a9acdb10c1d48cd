"""Where semantic frames come from: a video file, a folder of images, or frames held by a graph, all read one at a time.

Every source knows its length at 24 fps before anything is decoded and can be opened again from the start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .clock import FPS, Timeline, exact_rate, timeline_from_rate
from .errors import ClipError
from .images import IMAGE_SUFFIXES, read_image
from .pixels import Raw, raw_from_array
from .resize import Size
from .video import VideoSource

Rate = float | int | Fraction


class FrameSource(Protocol):
    """Frames at 24 fps: `name` for messages, `timeline` and `size` known at once, `open` begins at frame 0 each time.

    A frame that is shown again comes as the same `Raw` object.
    """

    name: str
    timeline: Timeline
    size: Size

    def open(self) -> Iterator[Raw]: ...


class BatchSource:
    """Frames the caller holds at `fps`: an array, tensor or list of [H, W, C] (a ComfyUI IMAGE batch [T, H, W, 3])."""

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

    def open(self) -> Iterator[Raw]:
        return read_each(self.timeline, self._read, lambda index: f"{self.name}, frame {index},", self.size)


class StreamSource:
    """Frames made on demand: `start()` gives an iterator of [H, W, C] frames at `fps`, `count` of them.

    `start` is called once for the size and once for every pass; no frame is asked for ahead of its turn or kept.
    """

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

    def open(self) -> Iterator[Raw]:
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

        return read_each(self.timeline, read, lambda index: f"{self.name}, frame {index},", self.size)


class FolderSource:
    """A folder of images in the natural order of their names (2 before 10), each shown for 1 / `fps` s."""

    def __init__(self, folder: str | Path, *, fps: Rate = FPS) -> None:
        self.name = f"Folder '{folder}'"
        self.files = sorted(
            (f for f in Path(folder).iterdir() if f.suffix.lower() in IMAGE_SUFFIXES and not f.name.startswith(".")),
            key=lambda file: natural_key(file.name),
        )
        if not self.files:
            raise ClipError(
                f"{self.name} holds no images; PNG frames are needed. Choose the folder that holds the exported frames."
            )
        self.timeline = timeline_from_rate(len(self.files), checked_rate(fps, self.name))
        self.size = read_image(self.files[0]).size

    def open(self) -> Iterator[Raw]:
        return read_each(
            self.timeline,
            lambda index: read_image(self.files[index]),
            lambda index: f"'{self.files[index]}'",
            self.size,
        )


def read_each(
    timeline: Timeline, read: Callable[[int], Raw], name_of: Callable[[int], str], size: Size
) -> Iterator[Raw]:
    """The frames of the timeline, each source frame read once, in order; all must have the size of the first."""
    previous, raw = -1, None
    for index in timeline.indices:
        if raw is None or index != previous:
            raw = read(index)
            previous = index
            if raw.size != size:
                raise ClipError(
                    f"{name_of(index)} has {raw.size[1]}x{raw.size[0]} pixels, the frames before it "
                    f"{size[1]}x{size[0]}; one size is needed. Export the whole clip at one size."
                )
        yield raw


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key that orders numbers inside names by value."""
    parts = re.split(r"(\d+)", name.lower())
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]


def to_numpy(frame: Any) -> np.ndarray:
    """A frame as numpy, from a torch tensor of any dtype and device, a PIL image or an array."""
    if hasattr(frame, "detach"):
        tensor = frame.detach().cpu()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return np.asarray(frame)


def checked_rate(fps: Rate, name: str) -> Fraction:
    """`fps` as an exact fraction, refused when it is not a positive number up to 1000."""
    if not 0 < fps <= 1000:
        raise ClipError(f"{name}: the frame rate is {fps}; a number above 0 and up to 1000 is needed. Set fps to 24.")
    return exact_rate(fps)


def open_source(what: Any, *, fps: Rate | None = None) -> FrameSource:
    """The source for a video file, a folder of images, one image, an open binary file, or a batch of frames.

    `fps` is the rate of images and batches (default 24); a video goes by its own time stamps.
    """
    if isinstance(what, (str, Path)):
        path = Path(what).expanduser()
        if path.is_dir():
            return FolderSource(path, fps=fps or FPS)
        if not path.is_file():
            raise ClipError(
                f"Clip '{what}' does not exist; a video file or a folder of PNG frames is needed. Check the path."
            )
        return VideoSource(path)
    if hasattr(what, "read"):
        return VideoSource(what)
    return BatchSource(what, fps=fps or FPS)
