"""Sparse attention of a whole clip by the pack's kernels: tiles of 4x4x4 rows of the video, chosen by their means."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...kernels.sparse_attention import Chosen, choose_tiles
from ...kernels.sparse_dispatch import SparseChoice, choose_sparse
from ...kernels.tile_lists import HEADS_AT_ONCE
from ...kernels.tiles import Tiles, kept_tiles
from ..model import LayerAttention
from .clip_attention import RowSegments, Sparsity
from .clip_recipes import TILE

FLOAT_BYTES = INDEX_BYTES = 4
SCORE_COPIES = 3  # of one group of heads: the scores, their softmax, and what is sorted


@dataclass(frozen=True)
class SparseClip:
    """A `ClipAttention` that keeps the share of `sparsity`; steps and layers that are dense keep every tile, gates included."""

    sparsity: Sparsity
    dtype: torch.dtype
    head_dim: int

    def prepare(self, segments: RowSegments, device: torch.device) -> PreparedSparse:
        """Raises `AttentionError` where no form of it can run on the device, or not at this length."""
        choice = choose_sparse(device, self.dtype, self.head_dim)
        choice.need_rows(segments.rows)
        return PreparedSparse(self.sparsity, choice, Tiles.of((*segments.runs, segments.grid), TILE).to(device))

    def working_bytes(self, segments: RowSegments, heads: int, head_dim: int, itemsize: int) -> int:
        """Means and lists of all heads, scores of some, and the attention to the rows before the video beside the result."""
        of_video = math.prod(-(-side // step) for side, step in zip(segments.grid, TILE, strict=True))
        tiles = of_video + sum(-(-run // math.prod(TILE)) for run in segments.runs)
        kept = kept_tiles(1.0 - self.sparsity.keep / 100.0, of_video)
        means = 4 * heads * tiles * head_dim * FLOAT_BYTES
        scores = SCORE_COPIES * HEADS_AT_ONCE * tiles**2 * FLOAT_BYTES
        lists = heads * of_video * kept * INDEX_BYTES
        results = segments.rows * heads * (2 * head_dim * itemsize + FLOAT_BYTES)
        return means + scores + lists + results

    def facts(self) -> dict[str, Any]:
        about = asdict(self.sparsity)
        return {"name": "vsa", "tile": list(TILE), **about, "dense_layers": sorted(self.sparsity.dense_layers)}


@dataclass(frozen=True)
class PreparedSparse:
    """The same for one arrangement of rows; `tiles` are on the device."""

    sparsity: Sparsity
    choice: SparseChoice
    tiles: Tiles

    @property
    def order(self) -> Tensor:
        return self.tiles.order

    def at(self, step: int) -> LayerAttention:
        """The attention of a denoising step."""
        return partial(self.run, step)

    def run(self, step: int, layer: int, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None) -> Tensor:
        """One layer's attention in tile order."""
        return self.choice.run(q, k, v, self.tiles, self.share_left_out(step, layer), gate=gate)

    def share_left_out(self, step: int, layer: int) -> float:
        """Of the video tiles: what FastVideo calls the sparsity."""
        dense = step < self.sparsity.dense_first_steps or layer in self.sparsity.dense_layers
        return 0.0 if dense else 1.0 - self.sparsity.keep / 100.0

    def choose(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None) -> Chosen:
        """The choice of tiles alone, as `run` makes it; for measurements."""
        kept = self.tiles.budget(self.share_left_out(self.sparsity.dense_first_steps, -1))
        return choose_tiles(self.choice.steps, q, k, None if gate is None else v, self.tiles, kept)
