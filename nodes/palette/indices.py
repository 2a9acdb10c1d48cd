"""Class numbers in the place of colours: grey pictures, the red channel of a raw camera image, palette-mode pictures.

Numbers come as grey, as grey in three channels, or in one channel with the others empty. In 16 bits they may be scaled by
257 or 256, and carry an instance (class * 1000 + instance, as Cityscapes does).
"""

from __future__ import annotations

from math import gcd

import numpy as np

from .palette import Palette, builtin_palettes, load_palette
from .pixels import Raw, to_rgb
from .snap import NEAR, colour_table

# Class numbers stay under this in every list of classes that is drawn in near-black shades.
DARKEST_COLOUR = 40
# Many data sets mark pixels without a class so, next to smaller numbers.
VOID = 255
_INSTANCES = 1000


def index_channel(raw: Raw, palette: Palette) -> np.ndarray | None:
    """The class numbers [H, W] of a frame that holds numbers rather than colours; None when it holds colours.

    A frame that could be either (all black) holds numbers.
    """
    values = raw.values
    highest = max(max(entry.numbers, default=0) for entry in palette.entries)
    if raw.lookup is not None:
        drawn = _drawn_in_known_colours(raw, palette)
        return None if drawn or _top(values) > highest else values
    numbers = values if values.ndim == 2 else _only_channel(values)
    if numbers is None:
        return None
    numbers = _without_instances(_unscaled(numbers), palette)
    if _top(numbers) > max(DARKEST_COLOUR, highest):
        return None
    if values.ndim == 3 and _top(numbers) > DARKEST_COLOUR and _are_colours(raw, palette):
        return None
    return numbers


def unknown_numbers(present: np.ndarray, palette: Palette) -> list[int]:
    """Which of the numbers stand for no class; 255 is taken for "no class" where others are known."""
    known = {number for entry in palette.entries for number in entry.numbers}
    return [int(value) for value in present if int(value) not in known and (int(value) != VOID or len(present) < 2)]


def palettes_with_numbers(present: np.ndarray, palette: Palette) -> list[str]:
    """Names of other built-in palettes in which every number stands for a class."""
    others = (load_palette(name) for name in builtin_palettes() if name != palette.name)
    return [other.name for other in others if not unknown_numbers(present, other)]


def describe_levels(levels: np.ndarray) -> str:
    """What grey levels of no known class look like, in words."""
    shown = ", ".join(map(str, levels[:8])) + (", ..." if len(levels) > 8 else "")
    step = gcd(*(int(level) for level in levels if 0 < level < VOID)) if (levels > 0).any() else 0
    hint = f", class numbers times {step}?" if step > 1 else ""
    return f"grey levels that name no class ({shown}{hint})"


def _only_channel(values: np.ndarray) -> np.ndarray | None:
    """The channel [H, W] that holds everything, if the three are equal or two are empty."""
    channels = [values[..., c] for c in range(3)]
    filled = [channel for channel in channels if channel.any()]
    if len(filled) < 2:
        return filled[0] if filled else channels[0]
    same = len(filled) == 3 and np.array_equal(channels[0], channels[1]) and np.array_equal(channels[0], channels[2])
    return channels[0] if same else None


def _top(numbers: np.ndarray) -> int:
    """The largest number, the mark of no class left out."""
    return int(numbers.max(initial=0, where=numbers != VOID))


def _unscaled(numbers: np.ndarray) -> np.ndarray:
    if numbers.dtype == np.uint16 and numbers.max(initial=0) > 255:
        for factor in (257, 256):
            if not (numbers % factor).any():
                return numbers // factor
    return numbers


def _without_instances(numbers: np.ndarray, palette: Palette) -> np.ndarray:
    if numbers.dtype != np.uint16 or numbers.max(initial=0) < _INSTANCES:
        return numbers
    classes = np.where(numbers >= _INSTANCES, numbers // _INSTANCES, numbers)
    return numbers if unknown_numbers(np.unique(classes), palette) else classes


def _are_colours(raw: Raw, palette: Palette) -> bool:
    """Whether every value that occurs is a class colour."""
    rgb = to_rgb(raw)[::2, ::2]
    return bool((colour_table(palette).judge(rgb) >= NEAR << 8).all())


def _drawn_in_known_colours(raw: Raw, palette: Palette) -> bool:
    """Whether most of a palette-mode image has colours of `palette` or of another palette we know."""
    rgb = to_rgb(raw)[::2, ::2]
    if not rgb.any():
        return False
    known = [palette, *(load_palette(name) for name in builtin_palettes() if name != palette.name)]
    return any((colour_table(one).judge(rgb) >= NEAR << 8).mean() >= 0.5 for one in known)
