"""The video file: chunks go to disk as they finish, in a file that plays at any moment and becomes an ordinary one at the end.

YUV formats are BT.709 limited range and tagged so: untagged files are read as BT.601 by many players, which shifts colours.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor

from .formats import H264, VideoFileError, VideoFormat, require_space
from .segment import BT709, FULL_RANGE, LIMITED_RANGE, file_header, file_segment

__all__ = [
    "BT709",
    "FULL_RANGE",
    "LIMITED_RANGE",
    "VideoFile",
    "VideoFileError",
    "playable_frames",
    "sync_folder",
    "to_pixels",
]

FPS = Fraction(24)
HEAD = 1 << 16  # bytes by which an unfinished file is known again


def to_pixels(frames: Tensor) -> np.ndarray:
    """Frames [n, 3, H, W] in [0, 1] -> uint8 [n, H, W, 3], rounded."""
    return (frames.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


def playable_frames(path: Path) -> int:
    """Frames that can be read from an unfinished file; 0 if none."""
    import av

    try:
        with av.open(str(path)) as container:
            return sum(packet.size > 0 for packet in container.demux(container.streams.video[0]))
    except (av.FFmpegError, IndexError):
        return 0


class VideoFile:
    """A video being written. Use as a context; leaving it, also by an exception, closes a playable file of what was added.

    Every chunk is whole in the file when `add` returns. A file without a single frame is removed. When the disk is full,
    what was whole by then stays.
    """

    def __init__(
        self,
        path: Path,
        size: tuple[int, int],
        fps: Fraction = FPS,
        metadata: dict[str, str] | None = None,
        *,
        form: VideoFormat = H264,
        resume: Mapping[str, Any] | None = None,
    ):
        """`size` is (height, width). `resume` is the `position` of an earlier file at `path` to go on from; the rest of it
        is cut off. Raises `VideoFileError` when the path cannot be written, holds less or is another file.
        """
        self.path, self.size, self.fps, self.form = Path(path), size, fps, form
        self.frames = self.bytes = 0  # of complete chunks on disk
        self._file: BinaryIO | None = None
        height, width = size
        if form.even and (height % 2 or width % 2):
            raise VideoFileError(
                f"a video of {width}x{height} cannot be written as {form.name.split(' ')[0]}; width and height must be even"
            )
        form.require()
        fresh = not os.path.lexists(self.path)
        try:
            if resume is None:
                self._file = self.path.open("wb", buffering=0)
                self._write(file_header(form, size, fps, metadata or {}))
            else:
                self._go_on(resume)
        except OSError as error:
            self._shut()
            with suppress(OSError):
                if fresh:
                    self.path.unlink()
            raise self._error(error) from error

    def add(self, frames: Tensor) -> None:
        """Append frames [n, 3, H, W] in [0, 1]; they are in the file when this returns."""
        if not len(frames):
            return
        if self._file is None:
            raise VideoFileError(f"{self.path} is closed already; open a new file for more frames")
        data = file_segment(self.form, self.size, self.fps, self.frames, to_pixels(frames))
        try:
            self._check_place()
            require_space(self.path.parent, len(data), f"the next chunk of {self.path.name}")
            self._write(data)
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self.bytes)
            raise self._error(error) from error
        self.frames += len(frames)

    def sync(self) -> None:
        """Force what was added onto the disk, so that it outlives a loss of power."""
        if self._file is not None:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                raise self._error(error) from error

    def close(self) -> None:
        """Finish the file; harmless when called again."""
        if self._file is None:
            return
        self._shut()
        if not self.frames and self.path.is_file():
            self.path.unlink()

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except VideoFileError:
            if error is None:  # else what stopped the render is the news
                raise

    def position(self) -> dict[str, Any]:
        """How much is complete, and how the file begins, for `resume`."""
        return {"frames": self.frames, "bytes": self.bytes, "head": self._head()}

    def _head(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.sha256(file.read(min(HEAD, self.bytes))).hexdigest()

    def _go_on(self, position: Mapping[str, Any]) -> None:
        self.frames, self.bytes = position["frames"], position["bytes"]
        held = self.path.stat().st_size
        if held < self.bytes:
            raise OSError(f"it holds {held} bytes and the journal counts {self.bytes}")
        if self._head() != position["head"]:
            raise OSError("it is not the unfinished file that the journal counts")
        self._file = self.path.open("r+b", buffering=0)
        self._file.truncate(self.bytes)
        self._file.seek(self.bytes)

    def _write(self, data: bytes) -> None:
        assert self._file is not None  # callers opened it
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        self.bytes += len(data)

    def _check_place(self) -> None:
        """A file deleted under the render would take everything after with it."""
        assert self._file is not None
        try:
            there = os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path))
        except FileNotFoundError:
            there = False
        if not there:
            raise OSError("the file was deleted or replaced while it was written")

    def _shut(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _error(self, error: OSError) -> VideoFileError:
        if isinstance(error, VideoFileError) and str(self.path) in str(error):
            return error
        done = f" after {self.frames} frames (those that got through stay playable)" if self.frames else ""
        return VideoFileError(
            f"cannot write the video {self.path}{done}: {error.strerror or error}. "
            "Free disk space or choose a folder you may write to"
        )


def sync_folder(folder: Path) -> None:
    """Force the names in `folder` onto the disk, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
