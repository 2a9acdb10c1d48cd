"""Tiles of Video Sparse Attention: a packed sequence cut into runs of neighbouring rows that are chosen together.

A run of rows (text, audio, pictures) is cut every `prod(tile)` rows; a grid of latents is cut into boxes of `tile`, clipped at
its far sides. A tile never crosses a segment. In tile order the rows of a tile follow one another without padding, so a model
that permutes its rows once per forward (`order`, `inverse`) has every tile at rows `starts[t] .. starts[t] + sizes[t]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Triple = tuple[int, int, int]
Segment = int | Triple  # a run of rows, or a grid (t, h, w) of them


@dataclass(frozen=True)
class Tiles:
    """Tiles of the runs come first (`n_prefix` of them), then those of the grids (`n_video`), each in packed order.

    order [rows] int64: packed row of each row in tile order; inverse [rows] int64: row in tile order of each packed row;
    starts, sizes [n] int32: first row, in tile order, and rows of each tile; of_row [rows] int32: tile of each row in tile
    order. `prefix_rows` rows in tile order belong to the runs.
    """

    tile: Triple
    n_prefix: int
    n_video: int
    prefix_rows: int
    order: Tensor
    inverse: Tensor
    starts: Tensor
    sizes: Tensor
    of_row: Tensor

    @classmethod
    def of(cls, segments: Sequence[Segment], tile: Triple) -> Tiles:
        """The plan of a packed sequence, on the CPU; `segments` in packed order, empty ones are left out."""
        extent = math.prod(tile)
        if min(tile) < 1:
            raise ValueError(f"a tile of {tile} holds nothing; each extent must be 1 or more, as in (4, 4, 4)")
        runs: list[Tensor] = []
        boxes: list[Tensor] = []
        offset = 0
        for segment in segments:
            rows = segment if isinstance(segment, int) else math.prod(segment)
            packed = torch.arange(offset, offset + rows)
            offset += rows
            if rows and isinstance(segment, int):
                runs += packed.split(extent)
            elif rows and not isinstance(segment, int):
                boxes += _boxes(packed.view(segment), tile)
        plan = cls._laid_out(tile, runs, boxes)
        assert len(plan.order) == offset and torch.equal(plan.order.sort().values, torch.arange(offset))
        assert plan.n_tiles == 0 or (int(plan.sizes.min()) >= 1 and int(plan.sizes.max()) <= extent)
        return plan

    @classmethod
    def _laid_out(cls, tile: Triple, runs: list[Tensor], boxes: list[Tensor]) -> Tiles:
        order = torch.cat([*runs, *boxes]) if runs or boxes else torch.zeros(0, dtype=torch.int64)
        sizes = torch.tensor([len(rows) for rows in (*runs, *boxes)], dtype=torch.int32)
        starts = (sizes.cumsum(0) - sizes).int()
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        of_row = torch.arange(len(sizes), dtype=torch.int32).repeat_interleave(sizes)
        prefix_rows = sum(len(rows) for rows in runs)
        return cls(tile, len(runs), len(boxes), prefix_rows, order, inverse, starts, sizes, of_row)

    @property
    def extent(self) -> int:
        """Rows of a full tile."""
        return math.prod(self.tile)

    @property
    def n_tiles(self) -> int:
        return self.n_prefix + self.n_video

    @property
    def rows(self) -> int:
        return len(self.order)

    @property
    def slots(self) -> int:
        """Rows of the padded form, in which every tile owns `extent` slots."""
        return self.n_tiles * self.extent

    def padded(self) -> tuple[Tensor, Tensor]:
        """The padded form of other programs: packed row of each slot, -1 for padding [slots]; slot of each packed row."""
        within = torch.arange(self.rows, device=self.order.device) - self.starts[self.of_row.long()]
        slot = self.of_row.long() * self.extent + within
        source = torch.full((self.slots,), -1, dtype=torch.int64, device=self.order.device)
        source[slot] = self.order
        return source, slot[self.inverse]

    def to(self, device: torch.device | str) -> Tiles:
        """The same plan with its tensors there."""
        names = ("order", "inverse", "starts", "sizes", "of_row")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def budget(self, sparsity: float) -> int:
        """Tiles of the grids that a query tile keeps, at least one; the double expression is that of FastVideo."""
        return kept_tiles(sparsity, self.n_video)


def kept_tiles(sparsity: float, n_video: int) -> int:
    """`ceil((1 - sparsity) * n_video)` within 1 .. n_video; not `ceil(keep * n_video)`, which rounds differently at 0.95."""
    return max(1, min(math.ceil((1 - sparsity) * n_video), n_video))


def _boxes(rows: Tensor, tile: Triple) -> list[Tensor]:
    """Row numbers [t, h, w] of a grid as the rows of its boxes, t outermost; boxes are clipped, not shifted."""
    return [
        box.flatten()
        for slab in rows.split(tile[0], 0)
        for bar in slab.split(tile[1], 1)
        for box in bar.split(tile[2], 2)
    ]
