"""Snap pixels to classes: exact colours stay as they are, near ones go to their class, blends follow their neighbours.

Each of the 2^24 colours is judged once per palette and the verdict kept in a lookup table, filled as colours appear, so
that a frame of flat colours costs one gather per run of pixels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .palette import Palette

# Verdicts, in the high byte of a table entry (the class id is in the low byte); a larger verdict is more certain.
UNSEEN, DOUBTFUL, NEAR, EXACT = range(4)
# Runs of one colour are judged once, unless there are more of them than this share of the pixels.
RUNS_WORTH_IT = 0.25


class ColourTable:
    """Colour -> (verdict, nearest class) for one palette; uint16 [2^24], zero where the colour has not been met yet."""

    def __init__(self, palette: Palette) -> None:
        self._colours = palette.colours.astype(np.int32)
        self._radii2 = palette.radii**2
        self._table = np.zeros(1 << 24, dtype=np.uint16)

    def judge(self, rgb: np.ndarray) -> np.ndarray:
        """uint16 [...]: verdict * 256 + nearest class of every pixel of `rgb` uint8 [..., 3]."""
        packed = pack_rgb(rgb)
        starts = (
            np.concatenate([[0], np.flatnonzero(packed[1:] != packed[:-1]) + 1]) if len(packed) else np.zeros(0, int)
        )
        if len(starts) > RUNS_WORTH_IT * len(packed):
            return self._look_up(packed).reshape(rgb.shape[:-1])
        lengths = np.diff(starts, append=len(packed))
        return np.repeat(self._look_up(packed[starts]), lengths).reshape(rgb.shape[:-1])

    def _look_up(self, packed: np.ndarray) -> np.ndarray:
        codes = self._table.take(packed)
        if codes.min(initial=EXACT << 8) < DOUBTFUL << 8:
            unseen = np.unique(packed[codes < DOUBTFUL << 8])
            self._table[unseen] = self._judge_colours(unseen)
            codes = self._table.take(packed)
        return codes

    def _judge_colours(self, packed: np.ndarray) -> np.ndarray:
        codes = np.empty(len(packed), dtype=np.uint16)
        for start in range(0, len(packed), 1 << 15):
            part = packed[start : start + (1 << 15)]
            rgb = np.stack([part & 255, part >> 8 & 255, part >> 16], axis=-1)
            distance2 = ((rgb[:, None] - self._colours) ** 2).sum(-1)  # [n, classes]
            nearest = distance2.argmin(axis=1)
            closest = distance2[np.arange(len(part)), nearest]
            verdict = np.where(closest == 0, EXACT, np.where(closest <= self._radii2[nearest], NEAR, DOUBTFUL))
            codes[start : start + (1 << 15)] = verdict << 8 | nearest
        return codes


def pack_rgb(rgb: np.ndarray) -> np.ndarray:
    """uint8 [..., 3] -> int32 [n] holding R + G * 256 + B * 65536, read as overlapping words of four bytes."""
    flat = np.ascontiguousarray(rgb).reshape(-1)
    packed = np.empty(len(flat) // 3, dtype=np.int32)
    if len(packed):
        words = np.ndarray(len(packed) - 1, "<i4", flat, 0, (3,))
        np.bitwise_and(words, 0xFFFFFF, out=packed[:-1])
        packed[-1] = int(flat[-3]) | int(flat[-2]) << 8 | int(flat[-1]) << 16
    return packed


@lru_cache(maxsize=8)
def colour_table(palette: Palette) -> ColourTable:
    """The palette's table, kept between clips."""
    return ColourTable(palette)


def snap(rgb: np.ndarray, palette: Palette) -> tuple[np.ndarray, np.ndarray]:
    """Class of every pixel of a frame.

    `rgb` is uint8 [H, W, 3]. Returns ids uint8 [H, W] and doubtful bool [H, W]: pixels farther from every class than
    its radius, which took the majority class of the sure pixels among their eight neighbours (the nearest class where
    there is none). A frame in exact palette colours comes back unchanged.
    """
    codes = colour_table(palette).judge(rgb)
    ids, doubtful = nearest_classes(codes), codes < NEAR << 8
    return (majority_repair(ids, doubtful, len(palette)) if doubtful.any() else ids), doubtful


def nearest_classes(codes: np.ndarray) -> np.ndarray:
    """uint8 [...]: the nearest class of each judged pixel."""
    return codes.astype(np.uint8)  # the low byte


def majority_repair(ids: np.ndarray, doubtful: np.ndarray, classes: int) -> np.ndarray:
    """Give doubtful pixels the majority class of the sure pixels in their 3x3 neighbourhood; ties go to the nearest."""
    height, width = ids.shape
    nothing = classes  # an id no class has: doubtful neighbours and the outside of the frame
    padded = np.full((height + 2, width + 2), nothing, dtype=np.int16)
    padded[1:-1, 1:-1] = np.where(doubtful, nothing, ids)
    flat = padded.ravel()
    y, x = np.nonzero(doubtful)
    centre = (y + 1) * (width + 2) + x + 1
    steps = [dy * (width + 2) + dx for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
    around = np.stack([flat[centre + step] for step in steps])  # [8, n]
    votes = np.stack([(around == candidate).sum(axis=0) for candidate in around])  # [8, n]
    votes = votes * 2 + (around == ids[y, x])  # the nearest class wins a tie
    votes[around == nothing] = 0
    best = votes.argmax(axis=0)
    every = np.arange(len(y))
    repaired = ids.copy()
    repaired[y, x] = np.where(votes[best, every] > 0, around[best, every], ids[y, x])
    return repaired
