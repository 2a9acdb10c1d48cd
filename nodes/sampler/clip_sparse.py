"""Sparse attention of a whole clip by the pack's kernels: tiles of 4x4x4 rows of the video, chosen by their means."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...kernels.sparse_attention import Chosen, Forced, choose_tiles
from ...kernels.sparse_dispatch import SparseChoice, choose_sparse
from ...kernels.tile_lists import HEADS_AT_ONCE
from ...kernels.tiles import Tiles, kept_tiles
from ..model import LayerAttention
from .clip_aligned import aligned_tiles
from .clip_attention import UNTRAINED, VSA, VSA_TARGET_REF, RowSegments, Sparsity
from .clip_probe import AutoDense, RowsProbe
from .clip_recipes import TILE

FLOAT_BYTES = INDEX_BYTES = 4
SCORE_COPIES = 3  # of one group of heads: the scores, their softmax, and what is sorted


@dataclass(frozen=True)
class SparseClip:
    """A `ClipAttention` that keeps the share of `sparsity`; steps and layers that are dense keep every tile, gates included.

    With `auto_dense` layers whose chosen tiles hold too little of the attention are dense too.
    """

    sparsity: Sparsity
    dtype: torch.dtype
    head_dim: int
    auto_dense: AutoDense | None = None

    def prepare(self, segments: RowSegments, device: torch.device) -> PreparedSparse:
        """Raises `AttentionError` where no form of it can run on the device, or not at this length."""
        choice = choose_sparse(device, self.dtype, self.head_dim)
        choice.need_rows(segments.rows)
        target_ref = self.sparsity.target_ref
        tiles = Tiles.of(segments.cut(target_ref=target_ref), TILE).to(device)
        forced = None
        if target_ref and segments.reference is not None:
            forced = Forced.of(aligned_tiles(segments.reference[1], segments.grid, TILE)).to(device)
        probe = self.auto_dense.of(tiles, choice.steps, forced) if self.auto_dense else None
        return PreparedSparse(self.sparsity, choice, tiles, forced, probe)

    def working_bytes(self, segments: RowSegments, heads: int, head_dim: int, itemsize: int) -> int:
        """Means and lists of all heads, scores of some, and the attention to the rows before the video beside the result."""
        cut = segments.cut(target_ref=self.sparsity.target_ref)
        grids = [one for one in cut if not isinstance(one, int)]
        of_video = sum(math.prod(-(-side // step) for side, step in zip(grid, TILE, strict=True)) for grid in grids)
        tiles = of_video + sum(-(-one // math.prod(TILE)) for one in cut if isinstance(one, int))
        kept = kept_tiles(1.0 - self.sparsity.keep / 100.0, of_video)
        means = 4 * heads * tiles * head_dim * FLOAT_BYTES
        scores = SCORE_COPIES * HEADS_AT_ONCE * tiles**2 * FLOAT_BYTES
        lists = heads * of_video * kept * INDEX_BYTES
        results = segments.rows * heads * (2 * head_dim * itemsize + FLOAT_BYTES)
        probe = self.auto_dense.working_bytes(segments.rows, head_dim) if self.auto_dense else 0
        return means + scores + lists + max(results, probe)

    def facts(self) -> dict[str, Any]:
        about = {"name": VSA, "tile": list(TILE), **asdict(self.sparsity)}
        about["dense_layers"] = sorted(self.sparsity.dense_layers)
        if about.pop("target_ref"):
            about |= {"name": VSA_TARGET_REF, "experimental": UNTRAINED}
        if self.auto_dense is not None:
            about["auto_dense"] = self.auto_dense.facts()
        return about

    def found(self) -> dict[str, Any]:
        return {} if self.auto_dense is None else {"attention_recall": self.auto_dense.found()}


@dataclass(frozen=True)
class PreparedSparse:
    """The same for one arrangement of rows; `tiles` are on the device, `forced` those that are chosen in any case."""

    sparsity: Sparsity
    choice: SparseChoice
    tiles: Tiles
    forced: Forced | None = None
    probe: RowsProbe | None = None

    @property
    def order(self) -> Tensor:
        return self.tiles.order

    def at(self, step: int) -> LayerAttention:
        """The attention of a denoising step."""
        return partial(self.run, step)

    def run(self, step: int, layer: int, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None) -> Tensor:
        """One layer's attention in tile order."""
        left_out = self.share_left_out(step, layer)
        if left_out and self.probe is not None and self.probe.vetoes(step, layer, q, k, left_out):
            left_out = 0.0
        return self.choice.run(q, k, v, self.tiles, left_out, gate=gate, forced=self.forced)

    def share_left_out(self, step: int, layer: int) -> float:
        """Of the video tiles: what FastVideo calls the sparsity."""
        dense = step < self.sparsity.dense_first_steps or layer in self.sparsity.dense_layers
        return 0.0 if dense else 1.0 - self.sparsity.keep / 100.0

    def choose(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None) -> Chosen:
        """The choice of tiles alone, as `run` makes it; for measurements."""
        kept = self.tiles.budget(self.share_left_out(self.sparsity.dense_first_steps, -1))
        return choose_tiles(self.choice.steps, q, k, None if gate is None else v, self.tiles, kept, forced=self.forced)
