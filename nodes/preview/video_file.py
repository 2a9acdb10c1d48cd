"""The video file: frames go to disk as chunks finish, in a fragmented MP4 that plays at any moment.

H.264, yuv420p, BT.709 limited range and tagged so: untagged files are read as BT.601 by many players, which shifts colours.
"""

from __future__ import annotations

import os
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor

BT709 = 1
LIMITED_RANGE = 1
FULL_RANGE = 2
FRAGMENTED = {
    "movflags": "frag_keyframe+empty_moov+default_base_moof",
    "flush_packets": "1",  # otherwise 256 KB wait in memory, which is several chunks
}
INDEX_END = 16  # bytes of the box `mfro`: its size, its name, flags, size of the index
ENCODER = {"preset": "fast", "tune": "zerolatency", "crf": "16"}  # no look-ahead: a finished chunk is on disk


class VideoFileError(OSError):
    """The file cannot be written; the message names the path and the remedy."""


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


def has_index(path: Path) -> bool:
    """Whether an MP4 ends with the index of its fragments, the very last thing that is written."""
    with path.open("rb") as file:
        file.seek(max(0, os.path.getsize(path) - INDEX_END))
        return file.read()[4:8] == b"mfro"


class VideoFile:
    """An MP4 being written. Use as a context; leaving it, also by an exception, closes a playable file of what was added.

    A file without a single playable frame is removed. When the disk is full, what was whole by then stays.
    """

    def __init__(
        self, path: Path, size: tuple[int, int], fps: Fraction = Fraction(24), metadata: dict[str, str] | None = None
    ):
        """`size` is (height, width), both even. Raises `VideoFileError` when the path cannot be written."""
        import av

        self.path, self.frames = Path(path), 0
        self._whole_bytes = 0  # of complete fragments on disk
        self._failed = False
        height, width = size
        if height % 2 or width % 2:
            raise VideoFileError(
                f"a video of {width}x{height} cannot be written as H.264; width and height must be even"
            )
        self._container: Any = av.open(str(self.path), "w", format="mp4", options=FRAGMENTED)
        self._container.metadata.update(metadata or {})
        self._stream: Any = self._container.add_stream("libx264", rate=fps, options=dict(ENCODER))
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        self._tick = 1 / fps  # the muxer picks a finer base for the stream itself
        context = self._stream.codec_context
        context.color_primaries = context.color_trc = context.colorspace = BT709
        context.color_range = LIMITED_RANGE
        fresh = not os.path.lexists(self.path)
        try:
            self._container.start_encoding()  # opens the file, which would otherwise wait for the first frame
        except OSError as error:
            with suppress(OSError):
                self._container.close()
            with suppress(OSError):
                if fresh:
                    self.path.unlink()
            raise self._error(error) from error

    def add(self, frames: Tensor) -> None:
        """Append frames [n, 3, H, W] in [0, 1]; the first one starts a fragment, so earlier chunks are on disk from then on."""
        import av
        from av.video.frame import PictureType

        for position, pixels in enumerate(to_pixels(frames)):
            rgb = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame = rgb.reformat(
                format="yuv420p", dst_colorspace=BT709, src_color_range=FULL_RANGE, dst_color_range=LIMITED_RANGE
            )
            frame.pts, frame.time_base = self.frames, self._tick
            frame.pict_type = PictureType.I if position == 0 else PictureType.NONE
            self._mux(frame)
            self.frames += 1
        self._whole_bytes = self._bytes_on_disk()

    def close(self) -> None:
        """Flush the encoder and finish the file; harmless when called again."""
        if self._container is None:
            return
        container, self._container = self._container, None
        try:
            try:
                for packet in self._stream.encode(None) if self.frames else ():
                    container.mux(packet)
            finally:
                container.close()
            if self.frames and self.path.is_file() and not has_index(self.path):
                raise OSError("its end could not be written")  # FFmpeg does not tell when only the end fails
        except OSError as error:
            raise self._error(error) from error
        finally:
            self._leave_playable()

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

    def _mux(self, frame: Any) -> None:
        try:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)
        except OSError as error:
            raise self._error(error) from error

    def _bytes_on_disk(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def _leave_playable(self) -> None:
        """After a failure, cut off the fragment that did not get through; what holds no frame goes altogether."""
        if self._failed and self._bytes_on_disk() > self._whole_bytes:
            os.truncate(self.path, self._whole_bytes)
        if (self._failed or not self.frames) and self.path.is_file() and not playable_frames(self.path):
            self.path.unlink()

    def _error(self, error: OSError) -> VideoFileError:
        self._failed = True
        done = f" after {self.frames} frames (those that got through stay playable)" if self.frames else ""
        return VideoFileError(
            f"cannot write the video {self.path}{done}: {error.strerror or error}. "
            "Free disk space or choose a folder you may write to"
        )
