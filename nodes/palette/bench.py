"""How fast a clip is read on this machine: frames per second end to end and of the parts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from .clip import LabelFrame, SemanticClip
from .resize import resize_labels

# Frames that are kept to measure snapping and repair without the decoder.
KEPT = 12


class Speed(NamedTuple):
    """Frames per second by the clock, and milliseconds of CPU time per frame of all threads together."""

    fps: float
    cpu_ms: float

    def __str__(self) -> str:
        return f"{self.fps:.1f} fps, {self.cpu_ms:.1f} ms of CPU per frame"


def bench(clip: SemanticClip, least_seconds: float = 3.0) -> list[str]:
    """Lines for people. "end to end" is decoding, snapping, repair and the nearest resize to the reference size.

    On a busy machine the clock says little; a calm machine with n cores cannot do more than n seconds of CPU in one.
    """
    width, height = clip.size[1], clip.size[0]
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    lines = [f"{clip.source.name}: {clip.frames} frames of {width}x{height}, {os.cpu_count()} CPU cores{load}"]
    lines.append(f"decode to RGB: {_speed(clip.source.open, least_seconds)}")
    for repair in dict.fromkeys(("off", clip.repair)):
        one = replace(clip, repair=repair)
        frames = [one.reading.to_rgb(raw) for raw in one.source.open(lambda k: k < KEPT)]
        lines.append(f"repair {repair}, end to end: {_speed(partial(_resized, one), least_seconds)}")
        lines.append(
            f"repair {repair}, without decoding, in one thread: {_speed(partial(_labels, one, frames), least_seconds)}"
        )
    return lines


def _resized(clip: SemanticClip) -> Iterator[Any]:
    return (resize_labels(ids, clip.reference_size) for ids in clip.open())


def _labels(clip: SemanticClip, frames: list[Any]) -> Iterator[LabelFrame]:
    return (clip.label(k, rgb) for k, rgb in enumerate(frames))


def _speed(start: Callable[[], Iterator[Any]], least_seconds: float) -> Speed:
    """Over whole passes, the first of which only warms up."""
    for _ in start():
        pass
    count, begin, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < least_seconds:
        count += sum(1 for _ in start())
    return Speed(count / (time.perf_counter() - begin), 1000 * (time.process_time() - cpu) / count)
