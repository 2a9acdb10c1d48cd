"""Tiles of one continuation window for sparse attention, and which of them a tile must see in any case. No torch in here.

Video and reference latents are cut into tiles of 8 x 8 rows, one latent deep: a deeper tile would hold other latents in every
chunk. The structure of the picture comes from the aligned reference, so that the tiles of it are never left to a choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from .rows import PATCH, Geometry, Grid
from .window import Window

TILE = (1, 8, 8)  # rows in (t, h, w)
REFERENCE, VIDEO = "reference", "video"


@dataclass(frozen=True)
class WindowTile:
    """A tile of one latent: `latent` counts those of the window (sink, recent, new), `row` and `column` tiles."""

    kind: str
    latent: int
    row: int
    column: int


@dataclass(frozen=True)
class TilePlan:
    """Tiles of the moving rows as queries, those of prefix and moving rows as keys; reference before video in either part.

    `forced` names, for every query in turn, the keys it sees in any case, by ascending number. Text, picture and sound are no
    tiles of a latent and not in here: every row sees them, and they see every row.
    """

    queries: tuple[WindowTile, ...]
    keys: tuple[WindowTile, ...]
    forced: tuple[tuple[int, ...], ...]

    @property
    def forced_share(self) -> float:
        """Of the keys, on average: keeping less than this changes nothing."""
        return sum(map(len, self.forced)) / (len(self.queries) * len(self.keys))


def tile_plan(window: Window, geometry: Geometry, *, reference: bool = True) -> TilePlan:
    """The tiles of a continuation; `reference=False` is a branch without reference rows."""
    sink, count = len(window.sink_latents), len(window.window_latents)
    sides = {VIDEO: row_sides(geometry.target)}
    if reference:
        sides = {REFERENCE: row_sides(geometry.reference), **sides}

    def part(latents: range) -> tuple[WindowTile, ...]:
        return tuple(
            WindowTile(kind, latent, row, column)
            for kind, (height, width) in sides.items()
            for latent in latents
            for row in range(-(-height // TILE[1]))
            for column in range(-(-width // TILE[2]))
        )

    prefix, moving = part(range(sink)), part(range(sink, count))
    keys = prefix + moving
    new = range(count - len(window.latents), count)
    forced = tuple(
        tuple(number for number, key in enumerate(keys) if must_see(query, key, new, sides)) for query in moving
    )
    return TilePlan(moving, keys, forced)


def must_see(query: WindowTile, key: WindowTile, new: range, sides: dict[str, Grid]) -> bool:
    """Whether a query sees a key whatever their scores: every tile that is being denoised; of its own kind the same tile in
    every latent and its eight neighbours in its own; of the other kind what is aligned with it."""
    if key.kind == VIDEO and key.latent in new:
        return True
    if query.kind != key.kind:
        video, map_ = (query, key) if query.kind == VIDEO else (key, query)
        return video.latent == map_.latent and aligned(video, map_, sides)
    steps = abs(query.row - key.row), abs(query.column - key.column)
    return max(steps) <= 1 if query.latent == key.latent else steps == (0, 0)


def aligned(video: WindowTile, map_: WindowTile, sides: dict[str, Grid]) -> bool:
    """Whether the picture area of a reference tile overlaps that of a video tile, grown by one reference row on each side."""
    (height, width), (map_height, map_width) = sides[VIDEO], sides[REFERENCE]
    return overlap(video.row, map_.row, height, map_height) and overlap(video.column, map_.column, width, map_width)


def overlap(video: int, map_: int, side: int, map_side: int) -> bool:
    """The same along one axis of `side` video rows and `map_side` reference rows, exactly: in units of 1 / (side * map_side)."""
    start, stop = video * TILE[1], min((video + 1) * TILE[1], side)
    map_start, map_stop = map_ * TILE[1], min((map_ + 1) * TILE[1], map_side)
    return start * map_side - side < map_stop * side and map_start * side < stop * map_side + side


def row_sides(grid: Grid) -> Grid:
    """Rows of a latent along height and width."""
    return grid[0] // PATCH[1], grid[1] // PATCH[2]
