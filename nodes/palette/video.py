"""Video files through PyAV: exact length from the time stamps alone, frames by the 24 fps clock, colours as tagged.

Opening reads the packets' stamps (no decoding), so a file's length is exact at once. Frames are decoded in order and
only those that the clock shows are converted to RGB.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .clock import FPS, timeline_from_stamps
from .errors import ClipError
from .pixels import Raw

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

# AVColorSpace of a frame -> swscale's matrix number. A file that says nothing is BT.601, as encoders fed RGB write it.
_MATRIX = {1: 1, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9, 10: 9}
_BT601 = 5
_LIMITED, _FULL = 1, 2


class VideoSource:
    """One video stream of a file on disk or of an open binary file (the first that is not a cover picture)."""

    def __init__(self, file: str | Path | BinaryIO) -> None:
        self._file = file
        self.name = f"Video '{file}'" if isinstance(file, (str, Path)) else "The video in memory"
        try:
            with self._open() as container:
                stream = self._stream(container)
                self._counted, stamps, last_duration, tick = _packet_stamps(container, stream)
            if not stamps:
                raise ClipError(f"{self.name} holds no frames; at least one is needed. Export the clip again.")
            self.timeline = timeline_from_stamps(stamps, tick, last_duration)
            self._wanted = [stamps[index] for index in self.timeline.indices]
            self._last_stamp = stamps[-1]
            self._longest_gap = max((b - a for a, b in pairwise(stamps)), default=1)
            with self._open() as container:
                first = next(container.decode(self._stream(container)), None)
        except ClipError:
            raise
        except _av_errors() as error:
            raise ClipError(
                f"{self.name} could not be read ({_reason(error)}); a video file is needed. Play it in a video player to "
                f"check it, or export it again as MP4 or MKV."
            ) from error
        if first is None:
            raise ClipError(f"{self.name} holds no frame that can be decoded. Export the clip again.")
        self.size = _rotated(np.empty((first.height, first.width, 0)), first).shape[:2]

    def _open(self) -> Any:
        import av

        if isinstance(self._file, (str, Path)):
            return av.open(str(self._file))
        if isinstance(self._file, io.BytesIO):  # a private position, so that two passes may run at once
            return av.open(io.BytesIO(self._file.getvalue()))
        self._file.seek(0)
        return av.open(self._file)

    def _stream(self, container: InputContainer) -> VideoStream:
        moving = [stream for stream in container.streams.video if not _is_cover(stream)]
        if not moving:
            raise ClipError(
                f"{self.name} has no video stream (it holds {_kinds(container)}); one is needed. Choose another file."
            )
        moving[0].thread_type = "AUTO"
        return moving[0]

    def open(self) -> Iterator[Raw]:
        """Frames at 24 fps. Raises `ClipError` naming the frame where the file turns out damaged or short."""
        ready = 0
        latest: VideoFrame | None = None
        latest_stamp, decoded = 0, 0
        raw: Raw | None = None
        try:
            with self._open() as container:
                for frame in container.decode(self._stream(container)):
                    stamp = decoded if self._counted or frame.pts is None else frame.pts
                    while latest is not None and ready < len(self._wanted) and self._wanted[ready] < stamp:
                        raw = raw or self._raw(latest)
                        yield raw
                        ready += 1
                    if ready == len(self._wanted):
                        return
                    latest, latest_stamp, raw = frame, stamp, None
                    decoded += 1
        except _av_errors() as error:
            raise ClipError(
                f"{self.name} is damaged after frame {decoded} ({_reason(error)}); all {self.timeline.source_frames} frames are "
                f"needed. Export the clip again."
            ) from error
        if latest is None or self._last_stamp - latest_stamp > 2 * self._longest_gap:
            raise ClipError(
                f"{self.name} ends early: {decoded} of {self.timeline.source_frames} frames could be decoded. "
                f"Copy or export the file again."
            )
        raw = raw or self._raw(latest)
        for _ in range(ready, len(self._wanted)):
            yield raw

    def _raw(self, frame: VideoFrame) -> Raw:
        values = np.ascontiguousarray(_rotated(frame_pixels(frame), frame))
        height, width = values.shape[:2]
        if (height, width) != self.size:
            raise ClipError(
                f"{self.name} changes from {self.size[1]}x{self.size[0]} to {width}x{height} pixels; "
                f"one size is needed. Export the whole clip at one size."
            )
        return Raw(values, converted=_is_yuv(frame))


def frame_pixels(frame: VideoFrame) -> np.ndarray:
    """Pixels of a decoded frame: RGB formats bit for bit, YUV by the frame's matrix and range, deep formats in 16 bits.

    uint8 [H, W, 3], uint8 [H, W, 4] with alpha, uint8 or uint16 [H, W] for grey, uint16 [H, W, 3 or 4] for deep RGB.
    """
    layout = frame.format
    deep = max(component.bits for component in layout.components) > 8
    alpha = layout.name != "pal8" and len(layout.components) in (2, 4)
    if _is_yuv(frame):
        return _rgb_from_yuv(frame)
    if layout.name.startswith("gray"):
        return frame.to_ndarray(format="gray16le" if deep else "gray")
    target = ("rgba64le" if alpha else "rgb48le") if deep else ("rgba" if alpha or layout.name == "pal8" else "rgb24")
    return frame.to_ndarray(format=target)


def _is_yuv(frame: VideoFrame) -> bool:
    name = frame.format.name
    return not (frame.format.is_rgb or name == "pal8" or name.startswith(("gray", "ya", "mono")))


def _rgb_from_yuv(frame: VideoFrame) -> np.ndarray:
    from av.video.reformatter import Interpolation

    full = frame.color_range == _FULL or frame.format.name.startswith("yuvj")
    flags = int(Interpolation.BILINEAR)
    # Full chroma interpolation (0x2000 out, 0x4000 in) and accurate rounding (0x40000): flat colours come out exact.
    flags |= 0x2000 | 0x4000 | 0x40000
    return frame.reformat(
        format="rgba" if len(frame.format.components) == 4 else "rgb24",
        src_colorspace=_MATRIX.get(int(frame.colorspace), _BT601),
        src_color_range=_FULL if full else _LIMITED,
        dst_color_range=_FULL,
        interpolation=flags,
    ).to_ndarray()


def _rotated(pixels: np.ndarray, frame: VideoFrame) -> np.ndarray:
    """Pixels turned upright by the display matrix (degrees counter-clockwise, multiples of 90)."""
    return np.rot90(pixels, round(getattr(frame, "rotation", 0) / 90) % 4)


def _packet_stamps(container: InputContainer, stream: VideoStream) -> tuple[bool, list[int], int, Fraction]:
    """(whether frames were counted for want of stamps, stamps in display order, last duration, seconds per tick)."""
    packets = [(p.pts, p.duration or 0) for p in container.demux(stream) if p.size and not p.is_discard]
    count = len(packets)
    stamped = sorted((pts, duration) for pts, duration in packets if pts is not None)
    stamps = [pts for pts, _ in stamped]
    if count and len(set(stamps)) == count and stream.time_base:
        return False, stamps, stamped[-1][1], Fraction(stream.time_base)
    rate = stream.average_rate or stream.guessed_rate or Fraction(FPS)
    return True, list(range(count)), 1, 1 / Fraction(rate)


def _is_cover(stream: Any) -> bool:
    """Whether the stream is a picture attached to an audio file."""
    return bool(int(getattr(stream, "disposition", 0)) & 0x400)


def _kinds(container: InputContainer) -> str:
    return ", ".join(sorted({stream.type for stream in container.streams})) or "no streams"


def _reason(error: BaseException) -> str:
    """What went wrong, without FFmpeg's error number."""
    return str(getattr(error, "strerror", None) or error)


def _av_errors() -> tuple[type[BaseException], ...]:
    import av

    return (av.error.FFmpegError, OSError, ValueError)
