"""The 24 fps clock: which source frame is on screen at each tick, from the frames' own time stamps.

Output frame k shows the latest source frame stamped at or before k / 24 s after the first one. Stamps are whole ticks
of the container's clock and the arithmetic is exact; half a tick of grace undoes the rounding of the stamps themselves
(Matroska stores 24 fps as 0, 42, 83 ms). Frames are dropped or shown again, never blended; no average rate takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

FPS = 24


@dataclass(frozen=True)
class Timeline:
    """`indices[k]` is the source frame (in display order) of output frame k; `seconds` is how long the source lasts."""

    source_frames: int
    seconds: Fraction
    indices: tuple[int, ...]

    @property
    def frames(self) -> int:
        return len(self.indices)


def timeline_from_stamps(stamps: Sequence[int], tick: Fraction, last_duration: int = 0) -> Timeline:
    """Timeline of frames stamped `stamps` (ascending, in ticks of `tick` seconds); `last_duration` as the file says it.

    A file's duration of its last frame is often its muxer's guess: it counts only between the last gap and the longest.
    """
    gaps = [after - before for before, after in pairwise(stamps)]
    hold = max(gaps[-1], min(last_duration, max(gaps))) if gaps else max(last_duration, 0)
    seconds = (stamps[-1] - stamps[0] + hold) * tick
    frames = output_frames(seconds)
    # A clock no finer than the frames did not round them. Otherwise frame i may be shown from the first k with
    # stamp_i <= k / 24 + tick / 2, that is k >= 12 * (2 * stamp_i - 1) * tick.
    grace = 1 if gaps and min(gaps) > 1 else 0
    indices: list[int] = []
    shown = 0
    for k in range(frames):
        while (
            shown + 1 < len(stamps)
            and 12 * (2 * (stamps[shown + 1] - stamps[0]) - grace) * tick.numerator <= k * tick.denominator
        ):
            shown += 1
        indices.append(shown)
    return Timeline(len(stamps), seconds, tuple(indices))


def timeline_from_rate(source_frames: int, fps: Fraction) -> Timeline:
    """Timeline of `source_frames` frames that last exactly 1 / `fps` s each."""
    seconds = source_frames / fps
    last = source_frames - 1
    indices = tuple(min(last, int(k * fps / FPS)) for k in range(output_frames(seconds)))
    return Timeline(source_frames, seconds, indices)


def output_frames(seconds: Fraction) -> int:
    """How many 24 fps frames cover `seconds`, to the nearest; at least one."""
    return max(1, int(seconds * FPS + Fraction(1, 2)))


def exact_rate(fps: float | int | Fraction) -> Fraction:
    """A rate as an exact fraction: 29.97 means 30000/1001, 23.976 means 24000/1001."""
    if isinstance(fps, (int, Fraction)):
        return Fraction(fps)
    for whole in (24, 30, 48, 60, 120):
        if abs(fps - whole / 1.001) < 5e-3:
            return Fraction(whole * 1000, 1001)
    return Fraction(fps).limit_denominator(1000)
