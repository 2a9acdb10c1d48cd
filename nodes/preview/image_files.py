"""A render as numbered PNG images in a folder, with the same handling as a video file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from .formats import PNG, VideoFileError, VideoFormat, require_space
from .video_file import sync_folder, to_pixels

PATTERN = "frame_[0-9]*.png"


def image_name(number: int) -> str:
    """File name of frame `number`, counted from 0."""
    return f"frame_{number:06}.png"


class ImageFiles:
    """Frames as `frame_000000.png` and so on. Every image is whole when `add` returns; none are removed by `close`."""

    form: VideoFormat = PNG

    def __init__(self, path: Path, size: tuple[int, int], *, resume: Mapping[str, Any] | None = None):
        """`resume` is the `position` of an earlier folder at `path` to go on from; images after those are deleted."""
        self.path, self.size = Path(path), size
        self.frames: int = resume["frames"] if resume else 0
        self.bytes: int = resume["bytes"] if resume else 0
        self._unsynced: list[Path] = []
        try:
            self.path.mkdir(parents=resume is None, exist_ok=True)
            for file in self.path.glob(PATTERN):
                if int(file.stem.removeprefix("frame_")) >= self.frames:
                    file.unlink()
            missing = [n for n in range(self.frames) if not (self.path / image_name(n)).is_file()]
            if missing:
                raise OSError(f"{image_name(missing[0])} is missing and the journal counts {self.frames} images")
        except OSError as error:
            raise self._error(error) from error

    def add(self, frames: Tensor) -> None:
        """Write frames [n, 3, H, W] in [0, 1]."""
        from PIL import Image

        written = []
        try:
            for offset, pixels in enumerate(to_pixels(frames)):
                require_space(self.path, self.form.frame_bytes(self.size), "the next image")
                path = self.path / image_name(self.frames + offset)
                written.append(path)
                Image.fromarray(pixels).save(path, compress_level=2)
        except OSError as error:
            for path in written:  # the chunk comes as a whole or not at all
                with suppress(OSError):
                    path.unlink()
            raise self._error(error) from error
        self._unsynced += written
        self.bytes += sum(path.stat().st_size for path in written)
        self.frames += len(frames)

    def position(self) -> dict[str, Any]:
        """How much is complete, for `resume`."""
        return {"frames": self.frames, "bytes": self.bytes}

    def sync(self) -> None:
        """Force what was added onto the disk."""
        try:
            for path in self._unsynced:
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
        except OSError as error:
            raise self._error(error) from error
        self._unsynced.clear()
        sync_folder(self.path)

    def close(self) -> None:
        """Remove the folder when it holds no image."""
        with suppress(OSError):
            if not self.frames:
                self.path.rmdir()

    def __enter__(self) -> ImageFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _error(self, error: OSError) -> VideoFileError:
        done = f" after {self.frames} images (those stay)" if self.frames else ""
        return VideoFileError(
            f"cannot write images to {self.path}{done}: {error.strerror or error}. "
            "Free disk space or choose a folder you may write to"
        )
