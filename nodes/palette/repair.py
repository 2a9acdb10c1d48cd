"""Clean-neighbour repair: which class lies under the blurred pixels of a compressed, resampled or antialiased label frame.

A codec keeps brightness per pixel but shares colour between neighbours, so along every edge the colours are mixtures and the
class nearest to a mixture is often a third, wrong one. Here each unsure pixel weighs the classes that occur cleanly around
it by three terms: its own brightness (sharp), its colour difference compared with the mixture its neighbours' labels would
give (a small deconvolution), and agreement with its neighbours (a Potts prior, raised step by step). The minimum is sought
by iterated conditional modes on a checkerboard. Pixels of exact palette colour are never touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .palette import Palette
from .snap import EXACT, NEAR, nearest_classes

# A sure pixel has a colour near its class and at least this many pixels of the same class in its 3x3 neighbourhood.
SURE_NEIGHBOURS = 5
# Where fewer than this share of the edge pixels are doubtful, the file kept full colour resolution (4:4:4, lossless): every
# near colour is trusted.
CLEAN_EDGES = 0.15
# Costs per squared 8-bit step of brightness and of colour difference, for a class not found around, and per agreeing
# neighbour in each round.
LUMA_COST, CHROMA_COST, ABSENT_COST = 6.0, 4.0, 1000.0
AGREEMENT = (300.0, 1000.0, 2000.0, 3000.0)
CANDIDATES = 6
# How a pixel's colour difference mixes its own label's and its neighbours': halved in both directions, interpolated back.
_STEPS = tuple((dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx)
_WEIGHTS = tuple((2 - abs(dy)) * (2 - abs(dx)) / 16 for dy, dx in _STEPS)
_OWN_WEIGHT = 4 / 16
_NOTHING = 255

# Brightness error (RMS, 8-bit) of sure pixels along edges above which compression is heavy: small things may have lost
# every clean pixel. What the nearest colour still shows of a class then stays, if the class colour is farther than
# `BLEND_DISTANCE` from every mixture of two others, so that blur cannot have invented it.
HEAVY_NOISE = 6.5
BLEND_DISTANCE = 40.0

# BT.601 brightness and colour differences; any such matrix serves, this is the one most label videos pass through.
_YCC = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], dtype=np.float32)


@dataclass(frozen=True)
class _Unsure:
    """The unsure pixels of one colour of the checkerboard: positions in the padded frame, candidates and their costs."""

    at: np.ndarray  # int64 [n]
    candidates: np.ndarray  # uint8 [k, n]
    fixed: np.ndarray  # float32 [k, n]: brightness and absence
    own: np.ndarray  # complex64 [k, n]: the candidate's own part of the colour difference
    chroma: np.ndarray  # complex64 [n]: the colour difference seen


def clean_neighbour_repair(rgb: np.ndarray, codes: np.ndarray, palette: Palette, *, guard: bool = True) -> np.ndarray:
    """Class ids uint8 [H, W] of a frame `rgb` uint8 [H, W, 3] judged as `codes` uint16 [H, W] (see `ColourTable.judge`).

    `guard` keeps small things from being painted over in heavily compressed frames.
    """
    nearest = nearest_classes(codes)
    near = codes >= NEAR << 8
    agreeing = count_agreeing(np.where(near, nearest, _NOTHING))
    sure = near & (agreeing >= SURE_NEIGHBOURS) | (codes >= EXACT << 8)
    if np.count_nonzero(~near) < CLEAN_EDGES * np.count_nonzero(agreeing < 9):
        sure = near
    at = np.flatnonzero(~sure)
    if not len(at):
        return nearest
    y, x = np.divmod(at, nearest.shape[1])
    pixels = _YCC @ rgb.reshape(-1, 3)[at].T.astype(np.float32)  # [3, n]
    ycc = palette.colours.astype(np.float32) @ _YCC.T  # [classes, 3]
    labels = np.pad(nearest, 1, mode="edge")
    present = np.flatnonzero(np.bincount(nearest.ravel(), minlength=len(palette))).astype(np.uint8)
    around = _classes_around(nearest, sure, present, y, x)
    _relax(labels, _prepare(pixels, present, around, y, x, labels.shape[1], ycc), ycc)
    repaired = np.ascontiguousarray(labels[1:-1, 1:-1])
    if guard and _edge_noise(rgb, nearest, sure, y, x, ycc) > HEAVY_NOISE:
        unmixable = palette.blend_distances > BLEND_DISTANCE
        repaired = np.where(unmixable.take(nearest), nearest, repaired)
    return repaired


def count_agreeing(ids: np.ndarray) -> np.ndarray:
    """uint8 [H, W]: how many pixels of each 3x3 neighbourhood have the id of its centre (itself included).

    Pixels of id 255 agree with nothing, themselves included.
    """
    something = ids != _NOTHING
    count = something.astype(np.uint8)
    height, width = ids.shape
    for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1)):
        here = (slice(0, height - dy), slice(max(0, -dx), width - max(0, dx)))
        there = (slice(dy, height), slice(max(0, dx), width - max(0, -dx)))
        same = (ids[here] == ids[there]) & something[here]
        count[here] += same
        count[there] += same
    return count


def _classes_around(ids: np.ndarray, sure: np.ndarray, present: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """bool [len(present), n]: whether each class has a sure pixel in the 2x2 block of position y, x or the eight around."""
    dtype = np.uint16 if len(present) <= 16 else np.uint32 if len(present) <= 32 else np.uint64
    flags = np.zeros(256, dtype=dtype)
    flags[present[:64]] = [1 << slot for slot in range(min(64, len(present)))]
    height, width = ids.shape
    bits = np.zeros((height + height % 2, width + width % 2), dtype=dtype)
    np.multiply(flags.take(ids), sure, out=bits[:height, :width])
    rows = bits[0::2] | bits[1::2]
    blocks = np.pad(rows[:, 0::2] | rows[:, 1::2], 1)
    blocks = blocks[:-2] | blocks[1:-1] | blocks[2:]
    blocks = blocks[:, :-2] | blocks[:, 1:-1] | blocks[:, 2:]
    here = blocks[y >> 1, x >> 1]
    around = np.ones((len(present), len(y)), dtype=bool)
    for slot in range(min(64, len(present))):
        around[slot] = (here & dtype(1 << slot)) != 0
    return around


def _prepare(
    pixels: np.ndarray,
    present: np.ndarray,
    around: np.ndarray,
    y: np.ndarray,
    x: np.ndarray,
    pitch: int,
    ycc: np.ndarray,
) -> list[_Unsure]:
    """Candidates and fixed costs of the unsure pixels, split into the two colours of a checkerboard.

    `pixels` float32 [3, n] are their colours, `present` uint8 [c] the classes of the frame, `pitch` the padded width.
    """
    groups = []
    k = min(CANDIDATES, len(present))
    for parity in (0, 1):
        part = np.flatnonzero(((y + x) & 1) == parity)
        luma, blue, red = pixels[:, part]
        fixed = np.empty((len(present), len(part)), dtype=np.float32)
        rank = np.empty_like(fixed)
        for slot, (centre_luma, centre_blue, centre_red) in enumerate(ycc[present]):
            fixed[slot] = LUMA_COST * (luma - centre_luma) ** 2
            fixed[slot][~around[slot, part]] += ABSENT_COST
            rank[slot] = fixed[slot] + (blue - centre_blue) ** 2 + (red - centre_red) ** 2
        order = np.argpartition(rank.T, k - 1, axis=1)[:, :k].T if k < len(present) else np.arange(k)[:, None]
        order = np.ascontiguousarray(np.broadcast_to(order, (k, len(part))))
        candidates = present[order]
        groups.append(
            _Unsure(
                (y[part] + 1) * pitch + x[part] + 1,
                candidates,
                np.take_along_axis(fixed, order, axis=0),
                _complex(_OWN_WEIGHT * ycc).take(candidates),
                (blue + 1j * red).astype(np.complex64),
            )
        )
    return groups


def _complex(ycc: np.ndarray) -> np.ndarray:
    """Colour differences of the classes as complex64 [classes]: one number to gather instead of two."""
    return (ycc[:, 1] + 1j * ycc[:, 2]).astype(np.complex64)


def _relax(labels: np.ndarray, groups: list[_Unsure], ycc: np.ndarray) -> None:
    """Iterated conditional modes on the padded label frame, in place."""
    flat = labels.reshape(-1)
    shares = [_complex(np.float32(weight) * ycc) for weight in _WEIGHTS]
    for agreement in AGREEMENT:
        for group in groups:
            left = group.chroma.copy()
            votes = np.zeros(group.candidates.shape, dtype=np.uint8)
            for (dy, dx), share in zip(_STEPS, shares, strict=True):
                neighbour = flat.take(group.at + (dy * labels.shape[1] + dx))
                left -= share.take(neighbour)
                votes += group.candidates == neighbour
            mismatch = left - group.own
            cost = mismatch.real**2
            cost += mismatch.imag**2
            cost *= np.float32(CHROMA_COST)
            cost += group.fixed
            cost -= np.float32(agreement) * votes
            best = cost.argmin(axis=0)
            flat[group.at] = np.take_along_axis(group.candidates, best[None], axis=0)[0]


def _edge_noise(
    rgb: np.ndarray, ids: np.ndarray, sure: np.ndarray, y: np.ndarray, x: np.ndarray, ycc: np.ndarray
) -> float:
    """RMS brightness error (8-bit steps) of the sure pixels right of the unsure pixels y, x."""
    right = np.minimum(x + 1, ids.shape[1] - 1)
    border = sure[y, right]
    if not border.any():
        return 0.0
    y, right = y[border], right[border]
    error = rgb[y, right].astype(np.float32) @ _YCC[0] - ycc[ids[y, right], 0]
    return float(np.sqrt((error**2).mean()))
