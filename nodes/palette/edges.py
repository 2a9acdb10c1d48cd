"""What the pixels of a clip tell about its past: coded with loss, resampled, or darkened by premultiplied alpha.

For a pixel that belongs to no class, the sure classes a few pixels away on both sides say what it should be a blend of. Its
brightness and its colour difference are placed between theirs: 0 is the one side, 1 the other. Resampling mixes both alike,
a codec that shares colour between pixels keeps brightness sharp.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from .palette import Palette
from .repair import count_agreeing
from .snap import EXACT, NEAR, nearest_classes

_YCC = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
# How far to both sides the classes are read, pixels.
_REACH = 4
# The two sides must differ by this much in brightness and in colour difference to be told apart, 8-bit steps.
_CONTRAST = 24.0
# An edge is steep from these steps of brightness and colour difference on: a codec spends its bits there.
_STEEP = 80.0
# Between these places a pixel is a true mixture.
_MIXED = (0.2, 0.8)
# A mixture with black lies this close to the line from a class colour to black, below this brightness.
_BLACK_GAP, _BLACK_PART = 6.0, 0.9
_MOST = 20000
# Pixels this far from every other class and every blend are inside an area.
_DEPTH = 3
# A near pixel farther than this (Euclidean, 8-bit) from its class is noisy.
_NOISE_GAP = 4

# Measured on two drawn scenes through real encoders and resamplers. Across steep edges H.264 4:2:0 blurs the brightness of
# 0.02 to 0.28 of the blends up to CRF 35, resampled and then coded it is 0.31 to 0.36. With more noise than `HEAVY_NOISE` the
# two cannot be told apart. 4:4:4 blurs up to 0.38 across all edges; resampling alone 0.72 or more.
INEXACT_SHARE = 0.01
SHARED_CHROMA = 0.3
BLURRED_SHARED_CHROMA = 0.296
BLURRED_FULL_CHROMA = 0.5
HEAVY_NOISE = 0.14


@dataclass(frozen=True)
class Signs:
    """Counts of pixels.

    Blends that could be `judged`: those with brightness `blurred` too, with colour `smeared` only, and `darkened` towards
    black; those across `steep` edges, and with brightness blurred `steep_blurred`. Pixels `inside` areas of one class, and
    how many of these are `inexact`; pixels `near` a class colour, and how many of these are `noisy`.
    """

    judged: int = 0
    blurred: int = 0
    smeared: int = 0
    darkened: int = 0
    inside: int = 0
    inexact: int = 0
    near: int = 0
    noisy: int = 0
    steep: int = 0
    steep_blurred: int = 0

    def __add__(self, other: Signs) -> Signs:
        return Signs(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def coded(self) -> bool:
        """Whether the clip went through a codec that changes colours: even areas far from every edge are not exact."""
        return self.inexact > INEXACT_SHARE * self.inside

    @property
    def resampled(self) -> bool:
        """Whether brightness is blurred along edges, and not by compression alone."""
        if not self.coded:
            return True
        if self.noisy >= HEAVY_NOISE * self.near:
            return False
        if self.smeared < SHARED_CHROMA * self.judged:
            return self.blurred > BLURRED_FULL_CHROMA * self.judged
        return self.steep_blurred > BLURRED_SHARED_CHROMA * self.steep


def read_signs(rgb: np.ndarray, codes: np.ndarray, seen: Palette) -> Signs:
    """The signs in a frame uint8 [H, W, 3] with its verdicts uint16 [H, W] in the palette as seen."""
    return _signs_of_areas(rgb, codes, seen) + _signs_of_blends(rgb, codes, seen)


def _signs_of_areas(rgb: np.ndarray, codes: np.ndarray, seen: Palette) -> Signs:
    near, ids = codes >= NEAR << 8, nearest_classes(codes)
    whole = count_agreeing(np.where(near, ids, 255)) == 9
    inside = whole[_DEPTH:-_DEPTH, _DEPTH:-_DEPTH].copy()
    for dy, dx in ((0, _DEPTH), (_DEPTH, 0), (2 * _DEPTH, _DEPTH), (_DEPTH, 2 * _DEPTH)):
        inside &= whole[dy : dy + inside.shape[0], dx : dx + inside.shape[1]]
    exact = codes[_DEPTH:-_DEPTH, _DEPTH:-_DEPTH] >= EXACT << 8
    part = np.s_[::2, ::2]
    gap = rgb[part].astype(np.int32) - seen.colours.take(ids[part], axis=0)
    noisy = ((gap**2).sum(-1) > _NOISE_GAP**2) & near[part]
    return Signs(
        inside=int(np.count_nonzero(inside)),
        inexact=int(np.count_nonzero(inside & ~exact)),
        near=int(np.count_nonzero(near[part])),
        noisy=int(np.count_nonzero(noisy)),
    )


def _signs_of_blends(rgb: np.ndarray, codes: np.ndarray, seen: Palette) -> Signs:
    height, width = codes.shape
    sure = codes >= NEAR << 8
    at = np.flatnonzero(~sure)
    if len(at) > _MOST:
        at = at[:: -(-len(at) // _MOST)]
    y, x = np.divmod(at, width)
    total = Signs()
    for dy, dx in ((0, _REACH), (_REACH, 0)):
        inside = (y >= dy) & (y < height - dy) & (x >= dx) & (x < width - dx)
        yy, xx = y[inside], x[inside]
        one, other = (yy - dy, xx - dx), (yy + dy, xx + dx)
        pair = sure[one] & sure[other] & (nearest_classes(codes[one]) != nearest_classes(codes[other]))
        total += _judge_pairs(
            rgb[yy[pair], xx[pair]].astype(np.float64),
            seen.colours[nearest_classes(codes[one])[pair]].astype(np.float64),
            seen.colours[nearest_classes(codes[other])[pair]].astype(np.float64),
        )
    return total


def _judge_pairs(pixel: np.ndarray, one: np.ndarray, other: np.ndarray) -> Signs:
    """`pixel` float64 [n, 3] between classes of colours `one` and `other` [n, 3]."""
    p, a, b = (colours @ _YCC.T for colours in (pixel, one, other))
    luma_step, chroma_step = b[:, 0] - a[:, 0], b[:, 1:] - a[:, 1:]
    chroma_length2 = (chroma_step**2).sum(-1)
    telling = (np.abs(luma_step) >= _CONTRAST) & (chroma_length2 >= _CONTRAST**2)
    if not telling.any():
        return Signs()
    luma = ((p[:, 0] - a[:, 0]) / np.where(telling, luma_step, 1))[telling]
    chroma = (((p[:, 1:] - a[:, 1:]) * chroma_step).sum(-1) / np.maximum(chroma_length2, 1))[telling]
    mixed_luma = (luma > _MIXED[0]) & (luma < _MIXED[1])
    mixed_chroma = (chroma > _MIXED[0]) & (chroma < _MIXED[1])
    dark = _towards_black(pixel, one)[telling] | _towards_black(pixel, other)[telling]
    beside = ((luma < 0) | (luma > 1)) & dark
    blurred = mixed_luma & mixed_chroma & (np.abs(luma - chroma) < 0.25)
    steep = (np.abs(luma_step[telling]) >= _STEEP) & (chroma_length2[telling] >= _STEEP**2)
    return Signs(
        judged=int(telling.sum()),
        blurred=int(blurred.sum()),
        smeared=int((~mixed_luma & mixed_chroma).sum()),
        darkened=int(beside.sum()),
        steep=int(steep.sum()),
        steep_blurred=int((blurred & steep).sum()),
    )


def _towards_black(pixel: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """bool [n]: whether each pixel is its class colour darkened."""
    part = (pixel * colour).sum(-1) / np.maximum((colour**2).sum(-1), 1)
    gap = np.sqrt(((pixel - part[:, None] * colour) ** 2).sum(-1))
    return (gap < _BLACK_GAP) & (part < _BLACK_PART) & (part > 0.1)
