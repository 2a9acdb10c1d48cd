"""What may have happened to a palette's colours on the way into a clip, each mistake as the colours it would leave.

A clip in the wrong colours is recognised by comparing the flat colours it really holds, as a whole set, with what each
mistake would have made of the palette. The same colours then serve to read the clip right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from .palette import Palette, builtin_palettes, load_palette
from .translate import recoloured

CHANNEL_SWAP = "channel swap"
WRONG_MATRIX = "wrong matrix or range"
GAMMA = "gamma"
OTHER_PALETTE = "another data set's palette"

# Kr, Kb of the matrices of BT.601, BT.709 and BT.2020.
_MATRICES = {"BT.601": (0.299, 0.114), "BT.709": (0.2126, 0.0722), "BT.2020": (0.2627, 0.0593)}
# A flat colour this close (Euclidean, 8-bit) to an expected one is that colour.
MATCH_RADIUS = 10.0
# A flat colour with this share of the flat area was drawn: codecs make smaller spots of their own.
LARGE_SHARE = 0.003
# The channels of a grey differ by no more than this, codecs being what they are.
GREY_RANGE = 4
# An explanation must account for this much of the clip, and for this much more than the palette as it is.
MIN_SCORE, MIN_GAIN = 0.9, 0.08


@dataclass(frozen=True)
class Hypothesis:
    """`seen` are the classes in the colours the mistake would leave; `cause` is empty for "nothing happened"."""

    cause: str
    detail: str
    seen: Palette


@dataclass(frozen=True)
class FlatColours:
    """The colours of the flat areas of a clip: uint8 [k, 3] and their shares of all flat pixels float [k], largest first."""

    colours: np.ndarray
    shares: np.ndarray

    @property
    def is_grey(self) -> bool:
        """Whether there are such colours and none of them has a hue."""
        return bool(len(self.colours)) and int(np.ptp(self.colours, axis=1).max()) <= GREY_RANGE

    @property
    def large(self) -> FlatColours:
        """Those that are no specks of heavy compression."""
        kept = self.shares >= LARGE_SHARE
        return FlatColours(self.colours[kept], self.shares[kept])

    def known(self, palette: Palette, radius: float = MATCH_RADIUS) -> np.ndarray:
        """bool [k]: which of them lie within `radius` of a class colour."""
        if not len(self.colours):
            return np.zeros(0, dtype=bool)
        gaps = self.colours[:, None].astype(np.float64) - palette.colours
        return np.sqrt((gaps**2).sum(-1)).min(axis=1) <= radius

    def score(self, palette: Palette) -> float:
        """In [0, 1]: half the share of the area that is explained, half the share of the distinct colours."""
        known = self.known(palette)
        if not len(known):
            return 1.0
        return 0.5 * float(self.shares[known].sum()) + 0.5 * float(known.mean())


def hypotheses(palette: Palette) -> Iterator[Hypothesis]:
    """Every explanation, the simple ones first."""
    yield Hypothesis("", "", palette)
    colours = palette.colours
    for order in list(permutations(range(3)))[1:]:
        name = "".join("RGB"[channel] for channel in order)
        yield Hypothesis(CHANNEL_SWAP, f"the channels are in the order {name}", recoloured(palette, colours[:, order]))
    for (write, kb_write), (read, kb_read) in product(_MATRICES.items(), repeat=2):
        for write_full, read_full in product((False, True), repeat=2):
            if (write, write_full) != (read, read_full):
                detail = f"encoded as {write} {_range(write_full)} and decoded as {read} {_range(read_full)}"
                seen = miscoded(colours, kb_write, write_full, kb_read, read_full)
                yield Hypothesis(WRONG_MATRIX, detail, recoloured(palette, seen))
    unit = colours / 255.0
    for detail, curve in _curves(unit):
        yield Hypothesis(GAMMA, detail, recoloured(palette, curve))
        swapped = f"{detail}, and the channels are in the order BGR"
        yield Hypothesis(GAMMA, swapped, recoloured(palette, curve[:, ::-1]))
    for name in sorted(builtin_palettes(), key=len):
        other = load_palette(name)
        if set(other.names) != set(palette.names) or (other.colours != palette.colours).any():
            yield Hypothesis(OTHER_PALETTE, name, other)


def explain(flat: FlatColours, palette: Palette) -> Hypothesis:
    """The best explanation of a clip's flat colours; "nothing happened" unless another one is clearly better.

    Another data set's palette that has every colour of the clip, where this one lacks some, is the better explanation
    however many colours the two share.
    """
    first, *others = hypotheses(palette)
    plain = flat.score(first.seen)
    if plain == 1:
        return first
    large = flat.large
    whole = None if large.known(palette).all() else next((o for o in others if large.known(o.seen).all()), None)
    if whole is not None and whole.cause == OTHER_PALETTE:
        return whole
    if plain > 1 - MIN_GAIN:
        return first
    best = max(others, key=lambda other: (flat.score(other.seen), -len(other.seen)))
    score = flat.score(best.seen)
    return best if score >= MIN_SCORE and score >= plain + MIN_GAIN else first


def _curves(unit: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Colours uint8 [n, 3] after a wrong transfer curve, from `unit` in [0, 1]."""
    for detail, curve in (
        ("linear light shown as sRGB", np.where(unit <= 0.04045, unit / 12.92, ((unit + 0.055) / 1.055) ** 2.4)),
        ("sRGB encoded twice", np.where(unit <= 0.0031308, unit * 12.92, 1.055 * unit ** (1 / 2.4) - 0.055)),
        ("a gamma of 2.2", unit**2.2),
        ("a gamma of 1 / 2.2", unit ** (1 / 2.2)),
        ("a gamma of 1.8", unit**1.8),
        ("a gamma of 1 / 1.8", unit ** (1 / 1.8)),
    ):
        yield detail, _bytes(255 * curve)


def miscoded(
    colours: np.ndarray, write: tuple[float, float], write_full: bool, read: tuple[float, float], read_full: bool
) -> np.ndarray:
    """RGB uint8 [n, 3] after coding to Y'CbCr by one matrix (Kr, Kb) and range and back by another."""
    coded = colours / 255.0 @ _to_ycc(*write).T
    scale, offset = _scale(write_full)
    back, base = _scale(read_full)
    return _bytes(255 * ((coded * scale + offset - base) / back @ np.linalg.inv(_to_ycc(*read)).T))


def _to_ycc(kr: float, kb: float) -> np.ndarray:
    luma = np.array([kr, 1 - kr - kb, kb])
    red, blue = np.array([1.0, 0, 0]), np.array([0, 0, 1.0])
    return np.stack([luma, (blue - luma) / (2 - 2 * kb), (red - luma) / (2 - 2 * kr)])


def _scale(full: bool) -> tuple[np.ndarray, np.ndarray]:
    """8-bit code = value * scale + offset, for Y' in [0, 1] and colour differences in [-0.5, 0.5]."""
    return (
        (np.full(3, 255.0), np.array([0, 128.0, 128]))
        if full
        else (np.array([219.0, 224, 224]), np.array([16, 128.0, 128]))
    )


def _range(full: bool) -> str:
    return "full range" if full else "limited range"


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
