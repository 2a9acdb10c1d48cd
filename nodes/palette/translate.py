"""Translating one palette's classes into another's, and one palette's colours into the colours a mistake made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .errors import PaletteError
from .palette import Palette, load_palette


def translation(palette: Palette) -> tuple[Palette, np.ndarray]:
    """(the palette the clip is handed on in, uint8 [256] from ids of `palette` to ids of that one).

    A palette without a target is handed on as it is.
    """
    if not palette.target:
        return palette, np.arange(256, dtype=np.uint8)
    target = load_palette(palette.target)
    table = np.zeros(256, dtype=np.uint8)
    for index, entry in enumerate(palette.entries):
        if entry.maps_to not in target.names:
            raise PaletteError(
                f"Palette '{palette.name}', class '{entry.name}': it is translated to '{entry.maps_to}', which palette "
                f"'{target.name}' does not have. Write \"as\": one of {', '.join(target.names)}."
            )
        table[index] = target.names.index(entry.maps_to)
    return target, table


def recoloured(palette: Palette, colours: np.ndarray) -> Palette:
    """The same classes drawn in other colours uint8 [classes, 3]."""
    entries = tuple(
        replace(entry, rgb=(int(r), int(g), int(b))) for entry, (r, g, b) in zip(palette.entries, colours, strict=True)
    )
    return replace(palette, entries=entries)
