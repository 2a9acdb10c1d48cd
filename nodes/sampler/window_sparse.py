"""The sparse window, an experiment: moving rows leave out bank and moving tiles that they like little.

It trades what the weights were trained with for attention alone, a third of a step at streaming lengths, so that it costs
likeness and gains next to no time. Off unless `Settings.window_keep` asks for it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...kernels.sparse_dispatch import SparseChoice, choose_sparse
from ...kernels.tiles import Tiles, kept_tiles
from ...kernels.window_attention import WindowTiles, grid_means, window_attention
from ..model import H3
from ..schedule import Geometry, Window, tile_plan
from ..schedule.window_tiles import TILE, row_sides
from .bank import StepBank
from .pack import Layout

log = logging.getLogger("streamrender_h3")

NAME = "sparse window (experimental)"
KEEP_PERCENT = 50.0
WARNING = (
    "sparse window attention is an experiment: StreamRender-H3 was not trained with it, so that the picture can lose the map, "
    "and at streaming lengths it does not pay, because attention is only a third of a step"
)


def sparse_facts(keep: float) -> dict[str, Any]:
    """What a report says of it."""
    return {"name": NAME, "keep_percent": keep, "tile": list(TILE), "warning": WARNING}


@dataclass(frozen=True)
class SparseWindow:
    """Keeps `keep` percent of the tiles of latents that a moving tile could see, and never fewer than it is forced to."""

    keep: float
    choice: SparseChoice

    @classmethod
    def choose(cls, keep: float, model: H3, device: torch.device) -> SparseWindow:
        """The form for this device, with a warning in the log. Raises `AttentionError` where a named one cannot run."""
        log.warning("%s (keeping %g %% of the tiles)", WARNING, keep)
        return cls(keep, choose_sparse(device, model.dtype, model.config.head_dim))

    def arrange(self, layout: Layout, window: Window, geometry: Geometry, *, reference: bool) -> Layout:
        """The layout of a continuation with prefix and moving rows in tile order, and this attention for the moving ones."""
        device = layout.moving.tags.device
        plan, parts = tile_plan(window, geometry, reference=reference), layout.plan.segments
        maps, videos = row_sides(geometry.reference), row_sides(geometry.target)
        sink_maps, sink = layout.sink_references, layout.sink_latents
        count, sounds = len(window.window_latents), len(parts["audio"]) - 2 * layout.sink_audio
        before = len(parts["text"]), len(parts["picture"])
        bank = Tiles.of((*before, (sink_maps, *maps), 2 * layout.sink_audio, (sink, *videos)), TILE)
        moving_maps = count - sink_maps if reference else 0
        moving = Tiles.of(((moving_maps, *maps), sounds, (count - sink, *videos)), TILE)
        assert (bank.rows, moving.rows) == (layout.plan.prefix_count, layout.plan.moving_count)
        assert moving.n_video == len(plan.queries) and bank.n_video + moving.n_video == len(plan.keys)
        forced = torch.zeros(len(plan.queries), len(plan.keys), dtype=torch.bool)
        for query, keys in enumerate(plan.forced):
            forced[query, list(keys)] = True
        log.info("sparse window: %.0f %% of the tiles are forced", 100 * plan.forced_share)
        share = 100.0 if self.choice.name == "off" else self.keep
        prepared = PreparedWindow(
            self.choice, bank.to(device), moving.to(device), forced, kept_tiles(1.0 - share / 100.0, len(plan.keys))
        )
        return replace(
            layout,
            prefix=layout.prefix.in_order(prepared.bank.order),
            moving=layout.moving.in_order(prepared.moving.order),
            sparse=prepared.at,
        )


@dataclass(frozen=True)
class PreparedWindow:
    """The same for one layout; `bank` and `moving` are on the device, `forced` is not."""

    choice: SparseChoice
    bank: Tiles
    moving: Tiles
    forced: Tensor
    kept: int
    _tiles: dict[bool, WindowTiles] = field(default_factory=dict)

    def at(self, bank: StepBank) -> Any:
        """The attention of one forward against this bank, a `LayerAttention`."""
        first = bank.moving_first
        if first not in self._tiles:
            self._tiles[first] = WindowTiles.of(self.bank, self.moving, self.forced, self.kept, moving_first=first)
        return partial(self.run, bank, self._tiles[first])

    def run(
        self, bank: StepBank, tiles: WindowTiles, layer: int, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None
    ) -> Tensor:
        """One layer's attention; a gate is left out, as the dense window leaves it out."""
        if tiles.all_seen:
            return self.choice.dense.run(q, k, v)
        steps = self.choice.steps
        if layer not in bank.means:
            bank.means[layer] = grid_means(steps, k[tiles.bank_rows], self.bank)
        return window_attention(q, k, v, tiles, bank.means[layer], steps=steps, dense=self.choice.dense)
