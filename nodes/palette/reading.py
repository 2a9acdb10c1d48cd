"""How the pixels of a clip are to be read: as the palette's colours, as colours that a mistake changed, or as class indices.

The decision is taken once per clip from a few of its frames and then applied to every frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .flat import flat_colours
from .hypotheses import MIN_GAIN, OTHER_PALETTE, FlatColours, explain
from .indices import describe_levels, index_channel, palettes_with_numbers, unknown_numbers
from .palette import Palette
from .pixels import Raw, hidden_colours, to_rgb, unmultiplied
from .snap import NEAR, colour_table

if TYPE_CHECKING:
    from .reader import FrameSource

CLASS_INDICES = "class indices instead of colours"
PREMULTIPLIED = "premultiplied alpha"
TRANSPARENT = "transparent areas"

# Share of the transparent pixels that must carry class colours before transparency is named.
HIDDEN_CLASSES = 0.5

# Frames looked at: these, as far as the clip reaches; the later ones while all before were black.
SAMPLE_FRAMES, LATER_FRAMES = (0, 7, 23), (47, 95, 191, 383, 767)


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
    samples = _samples(source)
    numbered = _index_reading(samples, palette)
    if numbered is not None:
        return numbered
    turn: Callable[[Raw], np.ndarray] = to_rgb
    cause = ""
    if _is_premultiplied(samples, palette):
        cause = PREMULTIPLIED
        if fix:
            turn = _rgb_unmultiplied
    elif _hides_classes(samples, palette):
        cause = TRANSPARENT
    frames = [turn(raw) for raw in samples]
    flat = flat_colours(frames)
    found = explain(flat, palette)
    if found.cause == OTHER_PALETTE:
        return Reading(palette, palette, turn, flat, found.cause, found.detail, trusted=False)
    if found.cause:
        seen = found.seen if fix else palette
        return Reading(palette, seen, turn, flat, found.cause, found.detail, trusted=fix)
    if flat.is_grey and flat.score(palette) < 1 - MIN_GAIN:
        detail = describe_levels(np.unique(flat.colours[:, 0]))
        return Reading(palette, palette, turn, flat, CLASS_INDICES, detail, trusted=False)
    return Reading(palette, palette, turn, flat, cause, "", trusted=fix or cause != PREMULTIPLIED)


def _samples(source: FrameSource) -> list[Raw]:
    samples: list[Raw] = []
    for k, raw in zip(
        (k for k in (*SAMPLE_FRAMES, *LATER_FRAMES) if k < source.timeline.frames),
        source.open(lambda k: k in SAMPLE_FRAMES or k in LATER_FRAMES),
        strict=True,
    ):
        if k in LATER_FRAMES and any(one.values.any() for one in samples):
            break
        samples.append(raw)
    return samples


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


def _hides_classes(samples: list[Raw], palette: Palette) -> bool:
    """Whether transparent pixels carry class colours other than black."""
    hidden = np.concatenate([hidden_colours(raw) for raw in samples])
    filled = hidden[hidden.any(axis=-1)]
    if 2 * len(filled) <= len(hidden) or not len(hidden):
        return False
    return bool((colour_table(palette).judge(filled) >= NEAR << 8).mean() > HIDDEN_CLASSES)


def _index_reading(samples: list[Raw], palette: Palette) -> Reading | None:
    """A reading as class indices, when the sample frames hold indices rather than colours."""
    channels = [channel for channel in (index_channel(raw, palette) for raw in samples) if channel is not None]
    if len(channels) < len(samples) or not any(channel.any() for channel in channels):
        return None
    table = np.zeros(65536, dtype=np.int32)
    for class_id, entry in enumerate(palette.entries):
        table[list(entry.numbers)] = class_id
    present = np.unique(np.concatenate([np.unique(channel) for channel in channels]))
    missing = unknown_numbers(present, palette)
    colours = palette.colours

    def numbers_to_rgb(raw: Raw) -> np.ndarray:
        channel = index_channel(raw, palette)
        if channel is None:  # a frame unlike the sample: its brightness is the best that is left
            channel = to_rgb(raw)[..., 0]
        return colours.take(table.take(channel), axis=0)

    others = palettes_with_numbers(present, palette)
    fits = f"; they all stand for classes in {', '.join(others)}" if others else ""
    detail = f"numbers {present.min()} to {present.max()} as palette '{palette.name}' counts{fits}"
    if missing:
        listed = ", ".join(map(str, missing[:8]))
        detail = f"they reach {present.max()}, but palette '{palette.name}' has no class for {listed}{fits}"
    elif any(raw.converted for raw in samples):
        detail = "they were coded as YCbCr, which changes them"
    if missing or any(raw.converted for raw in samples):
        return Reading(palette, palette, numbers_to_rgb, flat_colours([]), CLASS_INDICES, detail, trusted=False)
    frames = [numbers_to_rgb(raw) for raw in samples]
    return Reading(palette, palette, numbers_to_rgb, flat_colours(frames), CLASS_INDICES, detail)
