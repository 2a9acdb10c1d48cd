"""How much of the true attention the chosen tiles hold: the probe before sparse attention is trusted on a checkpoint.

For sampled query rows the true attention mass of every key tile is compared with the tiles chosen by means, and with the same
number of tiles chosen by that mass itself, which no choice of whole tiles can beat.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .block_sparse import seen_tiles
from .sparse_attention import Mode, Steps, choose_tiles
from .tiles import Tiles

ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Recall:
    """Mean share of the attention mass, by head [heads] float32: in the chosen tiles, and in the best ones of their number."""

    chosen: Tensor
    ceiling: Tensor


def tile_mass(q: Tensor, k: Tensor, tiles: Tiles, rows: Tensor) -> Tensor:
    """q, k [rows, d] of one head in tile order -> share of each tile in the attention of the sampled rows [sampled, n], float32."""
    masses = []
    for some in rows.split(ROWS_AT_ONCE):
        weight = (q[some].float() @ k.float().t() * q.shape[-1] ** -0.5).softmax(-1)
        mass = torch.zeros(len(some), tiles.n_tiles, device=q.device)
        masses.append(mass.index_add_(1, tiles.of_row, weight))
    return torch.cat(masses)


def recall(
    q: Tensor,
    k: Tensor,
    tiles: Tiles,
    sparsity: float,
    *,
    steps: Steps,
    rows_per_head: int = 128,
    seed: int = 0,
    mode: Mode = "exempt",
    forced: Tensor | None = None,
) -> Recall:
    """q, k [rows, heads, d] in tile order, as `sparse_attention.vsa` takes them; the sampled rows are rows of grids."""
    kept = tiles.budget(sparsity)
    lists = choose_tiles(steps, q, k, None, tiles, kept, mode, forced).lists
    random = torch.Generator().manual_seed(seed)
    held, best = [], []
    for head in range(q.shape[1]):
        rows = torch.randint(tiles.prefix_rows, tiles.rows, (rows_per_head,), generator=random).to(q.device)
        mass = tile_mass(q[:, head], k[:, head], tiles, rows)
        one = type(lists)(lists.always, lists.listed[head : head + 1], lists.count[head : head + 1])
        seen = seen_tiles(one, tiles.n_tiles)[0, tiles.of_row[rows].long() - tiles.n_prefix]
        held.append((mass * seen).sum(-1).mean())
        free = mass[:, lists.always :].sort(-1, descending=True).values
        counted = torch.arange(free.shape[1], device=q.device) < (seen.sum(-1) - lists.always)[:, None]
        best.append((mass[:, : lists.always].sum(-1) + (free * counted).sum(-1)).mean())
    return Recall(torch.stack(held), torch.stack(best))
