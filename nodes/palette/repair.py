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
AGREEMENT = (300.0, 1000.0, 3000.0, 5000.0)
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
_NOISE_SAMPLES = 4000
BLEND_DISTANCE = 40.0

# BT.601 brightness and colour differences; any such matrix serves, this is the one most label videos pass through.
_YCC = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], dtype=np.float32)


@dataclass(frozen=True)
class _Unsure:
    """Unsure pixels: candidates for their class and what is known of the costs of these."""

    candidates: np.ndarray  # uint8 [k, n]
    fixed: np.ndarray  # float32 [k, n]: brightness and absence
    own: np.ndarray  # complex64 [k, n]: the candidate's own part of the colour difference
    chroma: np.ndarray  # complex64 [n]: the colour difference seen

    def part(self, span: slice) -> _Unsure:
        """Some of the pixels, each array contiguous."""
        arrays = (self.candidates, self.fixed, self.own, self.chroma)
        return _Unsure(*(np.ascontiguousarray(array[..., span]) for array in arrays))


def clean_neighbour_repair(rgb: np.ndarray, codes: np.ndarray, palette: Palette, *, guard: bool = True) -> np.ndarray:
    """Class ids uint8 [H, W] of a frame `rgb` uint8 [H, W, 3] judged as `codes` uint16 [H, W] (see `ColourTable.judge`).

    `guard` keeps small things from being painted over in heavily compressed frames.
    """
    nearest = nearest_classes(codes)
    near = codes >= NEAR << 8
    agreeing = count_agreeing(np.where(near, nearest, np.uint8(_NOTHING)))
    sure = near & (agreeing >= SURE_NEIGHBOURS) | (codes >= EXACT << 8)
    if np.count_nonzero(~near) < CLEAN_EDGES * np.count_nonzero(agreeing < 9):
        sure = near
    at = np.flatnonzero(~sure)
    if not len(at):
        return nearest
    y, x = np.divmod(at.astype(np.int32), np.int32(nearest.shape[1]))
    odd = ((y + x) & 1).astype(bool)
    even = len(at) - int(np.count_nonzero(odd))
    at, y, x = (np.concatenate([one[~odd], one[odd]]) for one in (at, y, x))  # the checkerboard's two colours
    pixels = _YCC @ rgb.reshape(-1, 3)[at].T.astype(np.float32)  # [3, n]
    ycc = palette.colours.astype(np.float32) @ _YCC.T  # [classes, 3]
    labels = np.pad(nearest, 1, mode="edge")
    present = present_classes(nearest, len(palette))
    absent = _absent_around(nearest, sure, present, y, x)
    unsure = _prepare(pixels, present, absent, ycc)
    places = (y + 1) * np.int32(labels.shape[1]) + x + 1
    _relax(labels, [(places[part], unsure.part(part)) for part in (slice(even), slice(even, None))], ycc)
    repaired = np.ascontiguousarray(labels[1:-1, 1:-1])
    if guard and _edge_noise(rgb, nearest, sure, y, x, ycc) > HEAVY_NOISE:
        unmixable = palette.blend_distances > BLEND_DISTANCE
        repaired = np.where(unmixable.take(nearest), nearest, repaired)
    return repaired


def count_agreeing(ids: np.ndarray) -> np.ndarray:
    """uint8 [H, W]: how many pixels of each 3x3 neighbourhood have the id of its centre (itself included).

    Pixels of id 255 agree with nothing, themselves included.
    """
    pitch = ids.shape[1] + 2
    framed = np.full((ids.shape[0] + 2, pitch), _NOTHING, dtype=np.uint8)
    framed[1:-1, 1:-1] = ids
    flat = framed.reshape(-1)
    something = flat != _NOTHING
    count = something.astype(np.uint8)
    for step in (1, pitch - 1, pitch, pitch + 1):
        same = flat[step:] == flat[:-step]
        same &= something[step:]
        count[step:] += same.view(np.uint8)
        count[:-step] += same.view(np.uint8)
    return count.reshape(framed.shape)[1:-1, 1:-1]


def present_classes(ids: np.ndarray, classes: int) -> np.ndarray:
    """uint8 [c]: the classes that occur in `ids` uint8 [H, W], ascending; flat areas cost next to nothing."""
    flat = np.ascontiguousarray(ids).reshape(-1)
    words = flat[: len(flat) // 8 * 8].view(np.uint64)
    new = words[np.flatnonzero(words[1:] != words[:-1]) + 1]
    some = np.concatenate([new.view(np.uint8), flat[:8], flat[-8:]])
    return np.flatnonzero(np.bincount(some, minlength=classes)).astype(np.uint8)


def _absent_around(ids: np.ndarray, sure: np.ndarray, present: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """bool [len(present), n]: whether no sure pixel of a class lies in the 2x2 block of position y, x or the eight around.

    Of more than 64 classes in one frame the later ones count as present everywhere.
    """
    dtype = np.uint16 if len(present) <= 16 else np.uint32 if len(present) <= 32 else np.uint64
    flags = np.zeros(256, dtype=dtype)
    flags[present[:64]] = [1 << slot for slot in range(min(64, len(present)))]
    height, width = ids.shape
    blocks = np.zeros((height // 2 + 3, width // 2 + 3), dtype=dtype)
    asked = np.zeros(blocks.shape, dtype=bool)
    asked[(y >> 1) + 1, (x >> 1) + 1] = True
    top, left = np.nonzero(_spread(asked)[1:-1, 1:-1])
    for dy in (0, 1):
        for dx in (0, 1):
            row, column = np.minimum(2 * top + dy, height - 1), np.minimum(2 * left + dx, width - 1)
            at = row * width + column
            blocks[top + 1, left + 1] |= np.where(
                sure.reshape(-1).take(at), flags.take(ids.reshape(-1).take(at)), dtype(0)
            )
    here = _spread(blocks)[(y >> 1) + 1, (x >> 1) + 1]
    absent = np.zeros((len(present), len(y)), dtype=bool)
    absent[:64] = here & flags[present[:64], None] == 0
    return absent


def _spread(grid: np.ndarray) -> np.ndarray:
    """Every cell joined (|) with its eight neighbours; the outermost rows and columns stay as they are."""
    rows = grid.copy()
    rows[1:-1] |= grid[:-2] | grid[2:]
    out = rows.copy()
    out[:, 1:-1] |= rows[:, :-2] | rows[:, 2:]
    return out


def _prepare(pixels: np.ndarray, present: np.ndarray, absent: np.ndarray, ycc: np.ndarray) -> _Unsure:
    """Candidates and fixed costs of unsure pixels of colours float32 [3, n]; `present` uint8 [c], `absent` bool [c, n]."""
    luma, blue, red = pixels
    centres = ycc[present][..., None]  # [c, 3, 1]
    fixed = np.square(luma - centres[:, 0])
    fixed *= np.float32(LUMA_COST)
    fixed += absent * np.float32(ABSENT_COST)
    rank = np.square(blue - centres[:, 1])
    rank += np.square(red - centres[:, 2])
    rank += fixed
    # Floats of one sign are ordered as their bits are, so that a class's slot can ride in the lowest eight.
    keys = rank.view(np.int32) & ~255 | np.arange(len(present), dtype=np.int32)[:, None]
    slots = np.empty((min(CANDIDATES, len(present)), len(luma)), dtype=np.int32)
    for slot in slots:
        keys.min(axis=0, out=slot)
        np.putmask(keys, keys == slot, np.iinfo(np.int32).max)
    slots &= 255
    candidates = present[slots]
    return _Unsure(
        candidates,
        fixed.reshape(-1).take(slots * np.int32(len(luma)) + np.arange(len(luma), dtype=np.int32)),
        _complex(_OWN_WEIGHT * ycc).take(candidates),
        (blue + 1j * red).astype(np.complex64),
    )


def _complex(ycc: np.ndarray) -> np.ndarray:
    """Colour differences of the classes as complex64 [classes]: one number to gather instead of two."""
    return (ycc[:, 1] + 1j * ycc[:, 2]).astype(np.complex64)


def _relax(labels: np.ndarray, groups: list[tuple[np.ndarray, _Unsure]], ycc: np.ndarray) -> None:
    """Iterated conditional modes on the padded label frame, in place; each group with its flat positions int32 [n]."""
    flat = labels.reshape(-1)
    shares = [_complex(np.float32(weight) * ycc) for weight in _WEIGHTS]
    for agreement in AGREEMENT:
        for at, group in groups:
            left = group.chroma.copy()
            votes = np.zeros(group.candidates.shape, dtype=np.uint8)
            for (dy, dx), share in zip(_STEPS, shares, strict=True):
                neighbour = flat.take(at + (dy * labels.shape[1] + dx))
                left -= share.take(neighbour)
                votes += (group.candidates == neighbour).view(np.uint8)
            mismatch = left - group.own
            cost = np.square(mismatch.real)
            cost += np.square(mismatch.imag)
            cost *= np.float32(CHROMA_COST)
            cost += group.fixed
            cost -= np.float32(agreement) * votes
            best = cost.min(axis=0)
            chosen = group.candidates[-1]
            for price, candidate in zip(cost[-2::-1], group.candidates[-2::-1], strict=True):
                chosen = np.where(price == best, candidate, chosen)
            flat[at] = chosen


def _edge_noise(
    rgb: np.ndarray, ids: np.ndarray, sure: np.ndarray, y: np.ndarray, x: np.ndarray, ycc: np.ndarray
) -> float:
    """RMS brightness error (8-bit steps) of the sure pixels right of the unsure pixels y, x."""
    step = max(1, len(x) // _NOISE_SAMPLES)
    y, x = y[::step], x[::step]
    right = np.minimum(x + 1, ids.shape[1] - 1)
    border = sure[y, right]
    if not border.any():
        return 0.0
    y, right = y[border], right[border]
    error = rgb[y, right].astype(np.float32) @ _YCC[0] - ycc[ids[y, right], 0]
    return float(np.sqrt((error**2).mean()))
