"""Sparse attention of moving rows over a bank of earlier rows and themselves: an experiment, for weights not trained with it.

Bank and moving rows each lie in tile order, runs (text, picture, sound) before grids (latents). Runs are dense, as queries and
as keys; a tile of a moving grid sees, besides them, the grid tiles it is forced to see and those whose mean keys its mean query
likes best. Built from the steps of `sparse_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .block_sparse import Lists, Spans
from .dense_attention import DenseChoice
from .sparse_attention import Steps
from .tile_lists import coarse_scores
from .tiles import Tiles


@dataclass(frozen=True)
class WindowTiles:
    """Where bank and moving rows lie in the one stretch of keys, and what may be left out of it; tensors on the device.

    keys: tiles of the stretch in the order moving runs, bank runs, bank grids, moving grids. forced [moving grid tiles, grid
    tiles] bool in that order, budget [moving grid tiles] int32: grid tiles that each sees, `most` is the largest of them.
    """

    bank: Tiles
    moving: Tiles
    bank_rows: slice
    moving_rows: slice
    keys: Spans
    forced: Tensor
    budget: Tensor
    most: int
    all_seen: bool  # nothing is left out

    @classmethod
    def of(cls, bank: Tiles, moving: Tiles, forced: Tensor, kept: int, *, moving_first: bool) -> WindowTiles:
        """`kept` grid tiles or all that are forced, whichever is more; tensors go where `bank` is.

        `moving_first`: the moving rows stand before the bank in the stretch, not behind it.
        """
        bank_at, moving_at = (moving.rows, 0) if moving_first else (0, bank.rows)
        parts = (
            (moving, moving_at, slice(0, moving.n_prefix)),
            (bank, bank_at, slice(0, bank.n_prefix)),
            (bank, bank_at, slice(bank.n_prefix, None)),
            (moving, moving_at, slice(moving.n_prefix, None)),
        )
        starts = torch.cat([tiles.starts[which] + at for tiles, at, which in parts])
        sizes = torch.cat([tiles.sizes[which] for tiles, _, which in parts])
        counts = forced.sum(-1).clamp(min=kept).int()
        device = bank.order.device
        return cls(
            bank=bank,
            moving=moving,
            bank_rows=slice(bank_at, bank_at + bank.rows),
            moving_rows=slice(moving_at, moving_at + moving.rows),
            keys=Spans(starts, sizes, bank.extent),
            forced=forced.to(device),
            budget=counts.to(device),
            most=int(counts.max()),
            all_seen=int(counts.min()) == forced.shape[1],
        )


def grid_means(steps: Steps, x: Tensor, tiles: Tiles) -> Tensor:
    """x [rows, heads, d] of `tiles`, in their order -> mean row of each grid tile [heads, grid tiles, d] float32."""
    return steps.means(x[tiles.prefix_rows :], grid_spans(tiles))


def grid_spans(tiles: Tiles) -> Spans:
    """Grid tiles, counted from the first row of a grid."""
    first = tiles.n_prefix
    return Spans(tiles.starts[first:] - tiles.prefix_rows, tiles.sizes[first:], tiles.extent)


def window_lists(steps: Steps, q: Tensor, k: Tensor, tiles: WindowTiles, bank_means: Tensor) -> tuple[Tensor, Tensor]:
    """What the moving grid tiles see among the grid tiles: listed and count, as `block_sparse.Lists` has them."""
    own = grid_means(steps, k[tiles.moving_rows], tiles.moving)
    scores = coarse_scores(grid_means(steps, q, tiles.moving), torch.cat([bank_means, own], 1))
    runs = tiles.moving.n_prefix + tiles.bank.n_prefix
    return steps.pick(scores.masked_fill(tiles.forced, torch.inf), tiles.budget, tiles.most, runs)


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, tiles: WindowTiles, bank_means: Tensor, *, steps: Steps, dense: DenseChoice
) -> Tensor:
    """q [moving rows, heads, d]; k, v [bank and moving rows, heads, d], all after norm and rotation -> like q.

    bank_means is `grid_means` of the bank's keys, which stay the same. What every row sees of the bank goes to the dense
    attention where its result can be joined with that of the lists.
    """
    rows = tiles.moving.prefix_rows
    listed, count = window_lists(steps, q, k, tiles, bank_means)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if rows:
        out[:rows] = dense.run(q[:rows], k, v)
    before, always = None, tiles.moving.n_prefix + tiles.bank.n_prefix
    if tiles.bank.prefix_rows and dense.run_lse is not None:
        start = tiles.bank_rows.start
        seen = slice(start, start + tiles.bank.prefix_rows)
        other, lse = dense.run_lse(q[rows:], k[seen], v[seen])
        before, always = (other.contiguous(), lse.contiguous()), tiles.moving.n_prefix
    lists = Lists(always, listed, count)
    steps.attend(q[rows:], k, v, grid_spans(tiles.moving), tiles.keys, lists, out[rows:], before=before)
    return out
