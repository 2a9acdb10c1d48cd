"""How the pixels of a clip are to be read: as the palette's colours, as colours that a mistake changed, or as class indices.

The decision is taken once per clip from a few of its frames and then applied to every frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from .flat import flat_colours
from .hypotheses import MIN_GAIN, OTHER_PALETTE, FlatColours, explain
from .palette import Palette, builtin_palettes, load_palette
from .pixels import Raw, to_rgb, unmultiplied
from .snap import NEAR, colour_table

if TYPE_CHECKING:
    from .reader import FrameSource

CLASS_INDICES = "class indices instead of colours"
PREMULTIPLIED = "premultiplied alpha"

# Frames looked at: these, as far as the clip reaches.
SAMPLE_FRAMES = (0, 7, 23)
# Class numbers stay under this in every list of classes that is drawn in near-black shades.
DARKEST_COLOUR = 40


@dataclass(frozen=True)
class Reading:
    """`to_rgb(raw)` gives uint8 [H, W, 3] in the colours of `seen`, whose classes are those of `palette`.

    `cause` and `detail` say what is unusual (empty if nothing); `trusted` is False when the labels cannot be right.
    """

    palette: Palette
    seen: Palette
    to_rgb: Callable[[Raw], np.ndarray]
    flat: FlatColours
    cause: str = ""
    detail: str = ""
    trusted: bool = True


def choose_reading(source: FrameSource, palette: Palette, *, fix: bool = True) -> Reading:
    """Decide from sample frames. With `fix` False a mistake is named but the colours are taken as they are."""
    last = max(SAMPLE_FRAMES)
    samples = [raw for k, raw in enumerate(islice(source.open(), last + 1)) if k in SAMPLE_FRAMES]
    numbered = _index_reading(samples, palette)
    if numbered is not None:
        return numbered
    turn: Callable[[Raw], np.ndarray] = to_rgb
    cause = ""
    if _is_premultiplied(samples, palette):
        cause = PREMULTIPLIED
        if fix:
            turn = _rgb_unmultiplied
    frames = [turn(raw) for raw in samples]
    flat = flat_colours(frames)
    found = explain(flat, palette)
    if found.cause == OTHER_PALETTE:
        return Reading(palette, palette, turn, flat, found.cause, found.detail, trusted=False)
    if found.cause:
        seen = found.seen if fix else palette
        return Reading(palette, seen, turn, flat, found.cause, found.detail, trusted=fix)
    grey = all(raw.values.ndim == 2 and raw.lookup is None for raw in samples)
    if grey and flat.score(palette) < 1 - MIN_GAIN:
        return Reading(palette, palette, turn, flat, CLASS_INDICES, "grey levels that name no class", trusted=False)
    return Reading(palette, palette, turn, flat, cause, "", trusted=fix or not cause)


def _rgb_unmultiplied(raw: Raw) -> np.ndarray:
    return to_rgb(unmultiplied(raw))


def _is_premultiplied(samples: list[Raw], palette: Palette) -> bool:
    """Whether half-transparent pixels are palette colours only after division by their alpha."""
    table = colour_table(palette)
    plain = divided = count = 0
    for raw in samples:
        if raw.lookup is None and raw.values.ndim == 3 and raw.values.shape[-1] == 4:
            alpha = raw.values[..., 3].astype(np.float64) / np.iinfo(raw.values.dtype).max
            partial = (alpha >= 0.5) & (alpha < 0.97)
            if partial.any():
                count += int(partial.sum())
                plain += int((table.judge(to_rgb(raw))[partial] >= NEAR << 8).sum())
                divided += int((table.judge(_rgb_unmultiplied(raw))[partial] >= NEAR << 8).sum())
    return count >= 8 and divided > 1.25 * plain + 0.1 * count


def _index_reading(samples: list[Raw], palette: Palette) -> Reading | None:
    """A reading as class indices, when the sample frames hold indices rather than colours."""
    channels = [index_channel(raw, palette) for raw in samples]
    if any(channel is None for channel in channels) or not any(
        channel.any() for channel in channels if channel is not None
    ):
        return None
    highest = max(int(channel.max()) for channel in channels if channel is not None)
    table = np.full(65536, -1, dtype=np.int32)
    for class_id, entry in enumerate(palette.entries):
        table[list(entry.numbers)] = class_id
    present = np.unique(np.concatenate([np.unique(channel) for channel in channels if channel is not None]))
    missing = [int(value) for value in present if table[value] < 0]
    coded = any(raw.converted for raw in samples)
    colours = palette.colours

    def numbers_to_rgb(raw: Raw) -> np.ndarray:
        channel = index_channel(raw, palette)
        if channel is None:  # a frame unlike the sample: its brightness is the best that is left
            channel = to_rgb(raw)[..., 0]
        return colours.take(np.maximum(table.take(channel), 0), axis=0)

    if missing or coded:
        detail = (
            "they were coded as YCbCr, which changes them"
            if coded
            else f"they reach {highest}, but palette '{palette.name}' has no class for {', '.join(map(str, missing[:8]))}"
        )
        return Reading(palette, palette, numbers_to_rgb, flat_colours([]), CLASS_INDICES, detail, trusted=False)
    frames = [numbers_to_rgb(raw) for raw in samples]
    return Reading(palette, palette, numbers_to_rgb, flat_colours(frames), CLASS_INDICES, f"numbers 0 to {highest}")


def index_channel(raw: Raw, palette: Palette) -> np.ndarray | None:
    """The class numbers [H, W] of a frame that holds numbers rather than colours; None when it holds colours.

    Numbers come as grey, as grey in three channels, or in the red channel with the others empty. In 16 bits they may be
    scaled by 257 or 256. A frame that could be either (all black) holds numbers.
    """
    values = raw.values
    highest = max(max(entry.numbers, default=0) for entry in palette.entries)
    if raw.lookup is not None:
        drawn = _drawn_in_known_colours(raw, palette)
        return None if drawn or values.max(initial=0) > highest else values
    if values.ndim == 2:
        numbers = values
    else:
        red, green, blue = values[..., 0], values[..., 1], values[..., 2]
        empty = not green.any() and not blue.any()
        grey = bool((red == green).all() and (red == blue).all())
        if not empty and not grey:
            return None
        numbers = red
    if numbers.dtype == np.uint16 and numbers.max(initial=0) > 255:
        for factor in (257, 256):
            if not (numbers % factor).any():
                numbers = numbers // factor
                break
    limit = DARKEST_COLOUR if values.ndim == 3 else max(DARKEST_COLOUR, highest)
    return numbers if numbers.max(initial=0) <= limit else None


def _drawn_in_known_colours(raw: Raw, palette: Palette) -> bool:
    """Whether most of a palette-mode image has colours of `palette` or of another palette we know."""
    rgb = to_rgb(raw)[::2, ::2]
    if not rgb.any():
        return False
    known = [palette, *(load_palette(name) for name in builtin_palettes() if name != palette.name)]
    return any((colour_table(one).judge(rgb) >= NEAR << 8).mean() >= 0.5 for one in known)
