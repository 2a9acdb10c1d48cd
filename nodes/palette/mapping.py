"""How a clip of one shape lies in a video of another: fitted, filled or stretched.

Pure geometry in exact fractions of the sides, so that the class map, which the network reads at its own size, and the
picture, which has the size of the video, are laid out alike: a point of the clip's first frame and the same point of
the picture land on the same place of the video.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .errors import ClipError
from .resize import Size, floor_indices

FIT, FILL, STRETCH = "fit", "fill", "stretch"
MAPPINGS = (FIT, FILL, STRETCH)

# Shapes closer than this are the same: 1920x1080 is a 1344x768 to 1.6 %, and bands of 6 pixels would help nobody.
SAME_SHAPE = Fraction(2, 100)


@dataclass(frozen=True)
class Box:
    """A rectangle in whole pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class Placement:
    """Shares of the sides, (height, width) each: `shown` of the source, in its middle, covers `covered` of the frame, in its
    middle. At least one of the two is whole."""

    shown: tuple[Fraction, Fraction] = (Fraction(1), Fraction(1))
    covered: tuple[Fraction, Fraction] = (Fraction(1), Fraction(1))

    @property
    def is_whole(self) -> bool:
        """Whether the whole source covers the whole frame."""
        return self == Placement()

    def source_box(self, size: Size) -> Box:
        """The part of a source of `size` (height, width) that is shown."""
        return _middle(size, self.shown)

    def frame_box(self, size: Size) -> Box:
        """The part of a frame of `size` (height, width) that the source covers."""
        return _middle(size, self.covered)


def shape_of(size: Size, pixel_aspect: Fraction = Fraction(1)) -> Fraction:
    """Width over height as shown, of (height, width) pixels that are `pixel_aspect` times as wide as high."""
    return Fraction(size[1], size[0]) * pixel_aspect


def place(source: Fraction, frame: Fraction, mapping: str) -> Placement:
    """Where a source of shape `source` (width over height) lies in a frame of shape `frame`.

    "fit" shows all of it and leaves bands free, "fill" covers the frame and cuts what stands out, "stretch" covers the frame
    with all of it. Raises `ClipError` for another word.
    """
    if mapping not in MAPPINGS:
        raise ClipError(f"The mapping is set to '{mapping}'; it is one of {', '.join(MAPPINGS)}. Set it to fit.")
    ratio = source / frame
    if mapping == STRETCH or abs(ratio - 1) <= SAME_SHAPE:
        return Placement()
    narrower = (Fraction(1), ratio) if ratio < 1 else (1 / ratio, Fraction(1))  # the source inside the frame
    if mapping == FIT:
        return Placement(covered=narrower)
    return Placement(shown=(narrower[1], narrower[0]))


def place_labels(labels: np.ndarray, size: Size, placement: Placement, free: int) -> np.ndarray:
    """`labels` [H, W] laid into a frame of `size` by index gather (floor rule); what stays free is of class `free`."""
    part, box = placement.source_box((labels.shape[0], labels.shape[1])), placement.frame_box(size)
    rows = part.top + floor_indices(part.height, box.height)
    columns = part.left + floor_indices(part.width, box.width)
    if placement.is_whole and labels.shape == size:
        return labels
    inside = labels[rows].take(columns, axis=1)
    if (box.height, box.width) == size:
        return inside
    out = np.full(size, free, dtype=labels.dtype)
    out[box.top : box.top + box.height, box.left : box.left + box.width] = inside
    return out


def describe(placement: Placement) -> str:
    """One clause for people: what the mapping costs; empty when nothing is lost."""
    (shown_h, shown_w), (covered_h, covered_w) = placement.shown, placement.covered
    if covered_w < 1:
        return f"bands left and right take {float(1 - covered_w):.0%} of the width"
    if covered_h < 1:
        return f"bands above and below take {float(1 - covered_h):.0%} of the height"
    if shown_w < 1:
        return f"{float(1 - shown_w):.0%} of the width is cut off, half on each side"
    if shown_h < 1:
        return f"{float(1 - shown_h):.0%} of the height is cut off, half above and half below"
    return ""


def _middle(size: Size, part: tuple[Fraction, Fraction]) -> Box:
    height, width = (max(1, round(side * share)) for side, share in zip(size, part, strict=True))
    return Box((size[0] - height) // 2, (size[1] - width) // 2, height, width)
