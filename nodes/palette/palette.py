"""Palettes: ordered classes, each with the flat colour it is drawn in and the words that name it in a prompt.

A palette is a versioned JSON file, `data/racing.json` being the one the released model was trained on. The id of a
class is its place in the file. The distance inside which a pixel surely belongs to a class follows from the palette's
own geometry: never more than `MAX_RADIUS`, and at most half of the way to the class's closest neighbour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .errors import PaletteError

FORMAT = "streamrender-h3-palette"
VERSION = 1
DATA = Path(__file__).parent / "data"

# A pixel farther than this (Euclidean, 8-bit RGB) from every class is a blend, not a class: the closest pair of the
# racing palette is 61.8 apart.
MAX_RADIUS = 30.0
# Two colours closer than this cannot be told apart once a codec has touched them (the closest pair of ADE20K is 7.07).
MIN_DISTANCE = 7.0
MAX_CLASSES = 255

RGB = tuple[int, int, int]


@dataclass(frozen=True)
class PaletteClass:
    """One class: its name, the colour it is drawn in (8-bit RGB), the words for the prompt.

    `numbers` are the values that stand for it in images of class indices; `maps_to` is the class of the palette's target
    that it is translated to, if the palette has a target.
    """

    name: str
    rgb: RGB
    words: str = ""
    numbers: tuple[int, ...] = ()
    maps_to: str = ""


@dataclass(frozen=True)
class Palette:
    """Ordered classes; the id of a class is its index. `target` names the palette it is translated to, if any."""

    name: str
    entries: tuple[PaletteClass, ...]
    target: str = ""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    @cached_property
    def colours(self) -> np.ndarray:
        """uint8 [classes, 3], in id order."""
        return np.array([entry.rgb for entry in self.entries], dtype=np.uint8)

    @cached_property
    def radii(self) -> np.ndarray:
        """float64 [classes]: how far from the class colour a pixel may lie and still surely belong to the class."""
        distance = colour_distances(self.colours)
        return np.minimum(MAX_RADIUS, 0.5 * distance.min(axis=1, initial=2 * MAX_RADIUS))

    @cached_property
    def blend_distances(self) -> np.ndarray:
        """float64 [classes]: how far each class colour lies from the nearest mixture of two other classes."""
        rgb = self.colours.astype(np.float64)
        ends = rgb[None] - rgb[:, None]  # [a, b, 3]: from class a to class b
        length2 = np.maximum((ends**2).sum(-1), 1.0)
        distances = np.empty(len(rgb))
        for index, colour in enumerate(rgb):
            offset = colour - rgb  # [a, 3]
            along = np.clip(np.einsum("ac,abc->ab", offset, ends) / length2, 0.0, 1.0)
            gap2 = ((offset[:, None] - along[..., None] * ends) ** 2).sum(-1)
            gap2[index] = gap2[:, index] = np.inf
            distances[index] = np.sqrt(gap2.min())
        return distances

    def index(self, name: str) -> int:
        """The id of a class by name."""
        if name not in self.names:
            raise PaletteError(
                f"Palette '{self.name}' has no class '{name}'; it has {', '.join(self.names)}. Use one of these."
            )
        return self.names.index(name)


def colour_distances(colours: np.ndarray) -> np.ndarray:
    """Euclidean RGB distances float64 [n, n] between colours [n, 3], with infinity on the diagonal."""
    rgb = colours.astype(np.float64)
    distance = np.sqrt(((rgb[:, None] - rgb[None]) ** 2).sum(-1))
    np.fill_diagonal(distance, np.inf)
    return distance


def builtin_palettes() -> tuple[str, ...]:
    """Names of the palettes that come with the pack."""
    return tuple(sorted(path.stem for path in DATA.glob("*.json")))


def load_palette(name_or_path: str | Path) -> Palette:
    """A palette by built-in name, or from a JSON file.

    The file is either the versioned form of `data/racing.json` or a plain object `{"class name": [R, G, B], ...}` (also
    `"#RRGGBB"`). Raises `PaletteError` for an unknown name or file, bad JSON, bad or (nearly) equal colours.
    """
    text = str(name_or_path)
    if text in builtin_palettes():
        return _load_file(DATA / f"{text}.json")
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        raise PaletteError(
            f"Palette '{text}' was not found: it is neither a built-in name ({', '.join(builtin_palettes())}) nor a "
            f"JSON file on disk. Choose a built-in name or give the full path of a palette file."
        )
    return _read_file(path)


@lru_cache(maxsize=32)
def _load_file(path: Path) -> Palette:
    return _read_file(path)


def _read_file(path: Path) -> Palette:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PaletteError(
            f"Palette file '{path}' could not be read ({error}); a JSON text file is needed. "
            f"Open it in a text editor and correct it."
        ) from error
    return parse_palette(data, str(path), default_name=path.stem)


def parse_palette(data: Any, origin: str, *, default_name: str = "palette") -> Palette:
    """A palette from parsed JSON; `origin` names it in errors."""
    if not isinstance(data, Mapping):
        raise PaletteError(
            f"Palette '{origin}' holds a JSON {type(data).__name__}; an object is needed. "
            f'Write {{"road": [128, 64, 128], ...}} or the versioned form.'
        )
    if "classes" not in data:
        rows = [{"name": name, "rgb": rgb} for name, rgb in data.items()]
        return checked_palette(default_name, rows, origin)
    version = data.get("version", VERSION)
    if data.get("format", FORMAT) != FORMAT or version != VERSION:
        raise PaletteError(
            f"Palette '{origin}' says format '{data.get('format', FORMAT)}' version {version}; this pack reads "
            f"'{FORMAT}' version {VERSION}. Update the pack or rewrite the file."
        )
    return checked_palette(
        str(data.get("name", default_name)), data["classes"], origin, target=str(data.get("target", ""))
    )


def checked_palette(name: str, rows: Any, origin: str, *, target: str = "") -> Palette:
    """Build a palette from rows of name, rgb, words, refusing what labels cannot be read with."""
    if not isinstance(rows, list) or not 2 <= len(rows) <= MAX_CLASSES:
        count = len(rows) if isinstance(rows, list) else 0
        raise PaletteError(
            f"Palette '{origin}' has {count} classes; between 2 and {MAX_CLASSES} are needed. Add or remove classes."
        )
    entries = tuple(_entry(row, index, origin) for index, row in enumerate(rows))
    names = [entry.name for entry in entries]
    for class_name in names:
        if names.count(class_name) > 1:
            raise PaletteError(
                f"Palette '{origin}' has the class name '{class_name}' {names.count(class_name)} times; names must "
                f"differ. Rename or remove one."
            )
    palette = Palette(name, entries, target)
    distance = colour_distances(palette.colours)
    first, second = divmod(int(distance.argmin()), len(entries))
    if distance[first, second] < MIN_DISTANCE:
        one, other = entries[first], entries[second]
        how = "the same colour" if one.rgb == other.rgb else "nearly the same colour"
        raise PaletteError(
            f"Palette '{origin}' gives '{one.name}' {list(one.rgb)} and '{other.name}' {list(other.rgb)} {how} "
            f"({distance[first, second]:.1f} apart, at least {MIN_DISTANCE:.0f} is needed). Change one or merge them."
        )
    return palette


def _entry(row: Any, index: int, origin: str) -> PaletteClass:
    if not isinstance(row, Mapping) or "name" not in row or "rgb" not in row:
        raise PaletteError(
            f"Palette '{origin}', class {index}: got {row!r}; a name and a colour are needed. "
            f'Write {{"name": "road", "rgb": [128, 64, 128]}}.'
        )
    numbers = row.get("numbers", [index])
    if not isinstance(numbers, list) or not all(isinstance(n, int) and 0 <= n <= 65535 for n in numbers):
        raise PaletteError(
            f"Palette '{origin}', class '{row['name']}': numbers {numbers!r} must be a list of whole numbers from 0 to 65535. "
            f"Correct or remove them."
        )
    return PaletteClass(
        str(row["name"]),
        _rgb(row["rgb"], str(row["name"]), origin),
        str(row.get("words", "")),
        tuple(numbers),
        str(row.get("as", "")),
    )


def _rgb(value: Any, class_name: str, origin: str) -> RGB:
    if isinstance(value, str):
        digits = value.removeprefix("#")
        if len(digits) == 6 and all(c in "0123456789abcdefABCDEF" for c in digits):
            return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:], 16)
    elif isinstance(value, (list, tuple)) and len(value) == 3:
        r, g, b = value
        if all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= 255 for v in (r, g, b)):
            return r, g, b
    raise PaletteError(
        f"Palette '{origin}', class '{class_name}': colour {value!r} is not three whole numbers from 0 to 255. "
        f"Write [R, G, B] or '#RRGGBB'."
    )


RACING = load_palette("racing")
