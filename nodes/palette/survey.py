"""What is counted on a clip for its audit: a glance at every frame, a closer look at some.

A glance judges a grid of pixels; a look judges all of them, mends them and reads the signs of their past.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .clip import SemanticClip
from .edges import Signs, read_signs
from .palette import Palette
from .snap import EXACT, NEAR, colour_table, nearest_classes
from .translate import translation

LOOKS = 24
# A glance takes about so many pixels of a frame, at most every fourth in both directions.
GLANCE_PIXELS, GLANCE_STEP = 40_000, 4


@dataclass(frozen=True)
class Look:
    """Counts of one frame; `classes`, `on_edge`, `unsure_on_edge` are int64 [classes]."""

    classes: np.ndarray
    on_edge: np.ndarray
    unsure_on_edge: np.ndarray
    signs: Signs


@dataclass(frozen=True)
class FrameCounts:
    """One source frame: shares in [0, 1] of its pixels, `classes` float64 [classes]; `look` where it was looked at closely."""

    classes: np.ndarray
    exact: float
    near: float
    doubtful: float
    look: Look | None


@dataclass(frozen=True)
class Survey:
    """`counts` of every source frame shown, in order, and how often each of the 24 fps frames shows which."""

    palette: Palette
    counts: tuple[FrameCounts, ...]
    shown: np.ndarray  # int64 [frames]: index into `counts`

    def mean(self, name: str) -> np.ndarray:
        """The mean over the 24 fps frames of a field: float64 [classes] or []."""
        return self.per_frame(name).mean(axis=0)

    def per_frame(self, name: str) -> np.ndarray:
        """A field for each of the 24 fps frames: float64 [frames, classes] or [frames]."""
        return np.array([getattr(one, name) for one in self.counts])[self.shown]

    @property
    def looks(self) -> list[Look]:
        return [one.look for one in self.counts if one.look is not None]


def survey(clip: SemanticClip, looks: int, on_frame: Callable[[int], None]) -> Survey:
    """Read a clip once: every frame that is shown, about `looks` of them closely, in pairs of neighbours spread evenly.

    `on_frame` gets the number of each frame after it was read.
    """
    indices = np.array(clip.source.timeline.indices)
    first = np.flatnonzero(np.diff(indices, prepend=-1))  # the 24 fps frames that show something new
    every = max(1, -(-2 * len(first) // looks))
    close = {int(k) for k in first[np.arange(len(first)) % every < 2]}
    new = {int(k) for k in first}
    step = max(1, min(GLANCE_STEP, int((clip.size[0] * clip.size[1] / GLANCE_PIXELS) ** 0.5)))
    table = translation(clip.drawn_in)[1]

    def count(k: int, rgb: np.ndarray) -> FrameCounts:
        return _look(clip, k, rgb) if k in close else _glance(clip, rgb[::step, ::step], table)

    counts = []
    for k, one in zip(first, clip.each(count, new.__contains__), strict=True):
        counts.append(one)
        on_frame(int(k))
    return Survey(clip.palette, tuple(counts), np.searchsorted(first, np.arange(len(indices)), side="right") - 1)


def _glance(clip: SemanticClip, rgb: np.ndarray, table: np.ndarray) -> FrameCounts:
    codes = colour_table(clip.reading.seen).judge(rgb)
    sure = codes >= NEAR << 8
    ids = table.take(nearest_classes(codes))
    classes = np.bincount(ids[sure] if sure.any() else ids.ravel(), minlength=len(clip.palette))
    exact, near = float((codes >= EXACT << 8).mean()), float(sure.mean())
    return FrameCounts(classes / classes.sum(), exact, near - exact, 1 - near, None)


def _look(clip: SemanticClip, k: int, rgb: np.ndarray) -> FrameCounts:
    frame = clip.label(k, rgb)
    ids, doubtful = frame.ids, frame.doubtful
    edge = np.zeros(ids.shape, dtype=bool)
    for axis in (0, 1):
        change = np.swapaxes(ids, 0, axis)[1:] != np.swapaxes(ids, 0, axis)[:-1]
        np.swapaxes(edge, 0, axis)[1:] |= change
        np.swapaxes(edge, 0, axis)[:-1] |= change
    classes = np.bincount(ids.ravel(), minlength=len(clip.palette))
    exact, unsure = (int(np.count_nonzero(mask)) for mask in (frame.exact, doubtful))
    look = Look(
        classes=classes,
        on_edge=np.bincount(ids[edge], minlength=len(clip.palette)),
        unsure_on_edge=np.bincount(ids[edge & doubtful], minlength=len(clip.palette)),
        signs=read_signs(frame.rgb, frame.codes, clip.reading.seen),
    )
    near = ids.size - exact - unsure
    return FrameCounts(classes / ids.size, exact / ids.size, near / ids.size, unsure / ids.size, look)
