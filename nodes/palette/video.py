"""Video files through PyAV: exact length from the time stamps alone, frames by the 24 fps clock, colours as tagged.

Opening reads the packets' stamps (no decoding), so a file's length is exact at once. Frames are decoded in order and
only those that are asked for are converted to RGB.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from .clock import FPS, timeline_from_stamps
from .errors import ClipError, Trouble
from .frame import frame_pixels, is_yuv, upright
from .pixels import Raw

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

INTERLACED = "interlaced"


class Trim(NamedTuple):
    """The part of a file that is meant, in seconds of its own clock; a duration of 0 goes to the end."""

    start: float = 0.0
    duration: float = 0.0


WHOLE = Trim()


class _Stamps(NamedTuple):
    """`values` in display order, in ticks of `tick` seconds; `by_count`: a frame is known by its place, not by its own stamp."""

    values: list[int]
    tick: Fraction
    last_duration: int
    by_count: bool
    without_clock: bool = False


class VideoSource:
    """One video stream of a file on disk or of an open binary file (the first that is not a cover picture).

    `fps` counts only for files without any time stamps.
    """

    def __init__(self, file: str | Path | BinaryIO, *, trim: Trim = WHOLE, fps: Fraction | None = None) -> None:
        self._file, self.trim = file, trim
        self.name = f"Video '{file}'" if isinstance(file, (str, Path)) else "The video in memory"
        try:
            with self._open() as container:
                whole = _packet_stamps(container, self._stream(container), fps)
            if not whole.values:
                raise ClipError(f"{self.name} holds no frames; at least one is needed. Export the clip again.")
            self._stamps = self._trimmed(whole, trim)
            kept = self._stamps.values
            self.timeline = timeline_from_stamps(kept, self._stamps.tick, self._stamps.last_duration)
            self._shown = [kept[index] for index in self.timeline.indices]
            self._order = whole.values if whole.by_count else []
            self._late_start = None if whole.by_count or kept[0] == whole.values[0] else kept[0]
            self._longest_gap = max((b - a for a, b in pairwise(whole.values)), default=1)
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
        self.size = upright(np.empty((first.height, first.width, 0)), first).shape[:2]
        aspect = self._pixel_aspect or Fraction(1)
        self.pixel_aspect = aspect if self.size == (first.height, first.width) else 1 / aspect
        self.troubles = _troubles(first)

    @property
    def without_stamps(self) -> bool:
        """Whether the file has no time stamps, so that frames last as long as a rate says."""
        return self._stamps.without_clock

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
        self._pixel_aspect = moving[0].sample_aspect_ratio
        return moving[0]

    def _trimmed(self, whole: _Stamps, trim: Trim) -> _Stamps:
        """The stamps inside the part that is meant, the last frame held to the end of the part."""
        if trim == WHOLE:
            return whole
        start, stop = int(trim.start / whole.tick), int((trim.start + trim.duration) / whole.tick)
        kept = [stamp for stamp in whole.values if stamp >= start and (stamp < stop or not trim.duration)]
        if not kept:
            length = float((whole.values[-1] - whole.values[0]) * whole.tick)
            raise ClipError(
                f"{self.name} is trimmed to {trim.duration or 'all'} s from {trim.start:g} s on, where it holds no frame (it is "
                f"about {length:.2f} s long); at least one frame is needed. Change the trim."
            )
        after = whole.values[whole.values.index(kept[-1]) + 1 :]
        hold = min(after[0], stop) - kept[-1] if after else whole.last_duration
        return whole._replace(values=kept, last_duration=hold)

    def open(self, wanted: Callable[[int], bool] | None = None) -> Iterator[Raw]:
        """Frames at 24 fps, those `wanted` by number. Raises `ClipError` naming the frame where the file is damaged or short."""
        shown = [stamp for k, stamp in enumerate(self._shown) if wanted is None or wanted(k)]
        ready, decoded = 0, 0
        latest: VideoFrame | None = None
        latest_stamp = self._stamps.values[0]
        raw: Raw | None = None
        try:
            for frame in self._decode():
                stamp = self._stamp(frame, decoded, latest_stamp)
                while latest is not None and ready < len(shown) and shown[ready] < stamp:
                    raw = raw or self._raw(latest)
                    yield raw
                    ready += 1
                if ready == len(shown):
                    return
                latest, latest_stamp, raw = frame, stamp, None
                decoded += 1
        except ClipError:
            raise
        except _av_errors() as error:
            raise ClipError(
                f"{self.name} is damaged after frame {decoded} ({_reason(error)}); all {self.timeline.source_frames} frames are "
                f"needed. Export the clip again."
            ) from error
        if latest is None or self._stamps.values[-1] - latest_stamp > 2 * self._longest_gap:
            raise ClipError(
                f"{self.name} ends early: {decoded} of {self.timeline.source_frames} frames could be decoded. "
                f"Copy or export the file again."
            )
        raw = raw or self._raw(latest)
        for _ in range(ready, len(shown)):
            yield raw

    def _decode(self) -> Iterator[VideoFrame]:
        """Decoded frames in display order, from a key frame at or before the first one meant."""
        if self._late_start is not None:
            with self._open() as container:
                stream = self._stream(container)
                container.seek(self._late_start, stream=stream)
                frames = container.decode(stream)
                first = next(frames, None)
                if first is not None and first.pts is not None and first.pts <= self._late_start:
                    yield first
                    yield from frames
                    return
        with self._open() as container:
            yield from container.decode(self._stream(container))

    def _stamp(self, frame: VideoFrame, decoded: int, latest: int) -> int:
        if self._order:
            return self._order[min(decoded, len(self._order) - 1)]
        return latest if frame.pts is None else frame.pts

    def _raw(self, frame: VideoFrame) -> Raw:
        values = np.ascontiguousarray(upright(frame_pixels(frame), frame))
        height, width = values.shape[:2]
        if (height, width) != self.size:
            raise ClipError(
                f"{self.name} changes from {self.size[1]}x{self.size[0]} to {width}x{height} pixels; "
                f"one size is needed. Export the whole clip at one size."
            )
        return Raw(values, converted=is_yuv(frame))


def _packet_stamps(container: InputContainer, stream: VideoStream, fps: Fraction | None) -> _Stamps:
    """The stamps of the packets; where frames have none of their own those of decoding, else the rate the file states."""
    packets = [(p.pts, p.dts, p.duration or 0) for p in container.demux(stream) if p.size and not p.is_discard]
    tick = Fraction(stream.time_base) if stream.time_base else None
    shown = sorted((pts, duration) for pts, _, duration in packets if pts is not None)
    if tick and shown and 2 * len({pts for pts, _ in shown}) > len(packets):
        return _Stamps([pts for pts, _ in shown], tick, shown[-1][1], by_count=False)
    decoded = sorted((dts, duration) for _, dts, duration in packets if dts is not None)
    if tick and decoded and len({dts for dts, _ in decoded}) == len(packets):
        return _Stamps([dts for dts, _ in decoded], tick, decoded[-1][1], by_count=True)
    rate = fps or stream.average_rate or stream.guessed_rate or Fraction(FPS)
    return _Stamps(list(range(len(packets))), 1 / Fraction(rate), 1, by_count=True, without_clock=True)


def _troubles(first: VideoFrame) -> tuple[Trouble, ...]:
    if not first.interlaced_frame:
        return ()
    detail = "the file says that it is interlaced; its frames are read as progressive"
    return (
        Trouble(INTERLACED, detail, "Export progressive frames: two half pictures in one frame tear moving classes."),
    )


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
