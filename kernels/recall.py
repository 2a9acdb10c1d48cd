"""How much of the true attention the chosen tiles hold: the probe before sparse attention is trusted on a checkpoint.

For sampled query rows the true attention mass of every key tile is compared with the tiles chosen by means, and with the same
number of tiles chosen by that mass itself, which no choice of whole tiles can beat.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .block_sparse import Lists, seen_tiles
from .sparse_attention import Forced, Mode, Steps, choose_tiles
from .tiles import Tiles

ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Recall:
    """Mean share of the attention mass, by head [heads] float32: in the chosen tiles, and in the best ones of their number."""

    chosen: Tensor
    ceiling: Tensor

    def stacked(self) -> Tensor:
        """Both as one tensor [2, heads], to be asked for at once."""
        return torch.stack((self.chosen, self.ceiling))


def tile_mass(q: Tensor, k: Tensor, tiles: Tiles, rows: Tensor) -> Tensor:
    """q, k [rows, d] of one head in tile order -> share of each tile in the attention of the sampled rows [sampled, n], float32."""
    masses = []
    for some in rows.split(ROWS_AT_ONCE):
        weight = (q[some].float() @ k.float().t() * q.shape[-1] ** -0.5).softmax(-1)
        mass = torch.zeros(len(some), tiles.n_tiles, device=q.device)
        masses.append(mass.index_add_(1, tiles.of_row, weight))
    return torch.cat(masses)


def sampled_rows(tiles: Tiles, heads: int, rows_per_head: int = 128, seed: int = 0) -> Tensor:
    """Rows of the grids to ask, in tile order [heads, rows_per_head] int64, with repetitions; the same on every device."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randint(tiles.prefix_rows, tiles.rows, (heads, rows_per_head), generator=random)
    return rows.to(tiles.order.device)


def recall(
    q: Tensor,
    k: Tensor,
    tiles: Tiles,
    sparsity: float,
    rows: Tensor,
    *,
    steps: Steps,
    mode: Mode = "exempt",
    forced: Forced | None = None,
) -> Recall:
    """q, k [rows, heads, d] in tile order, as `sparse_attention.vsa` takes them; `rows` [heads, sampled] from `sampled_rows`.

    One head at a time; the host never waits for the device.
    """
    lists = choose_tiles(steps, q, k, None, tiles, tiles.budget(sparsity), mode, forced).lists
    always, held, best = lists.always, [], []
    for head, asked in enumerate(rows):
        mass = tile_mass(q[:, head], k[:, head], tiles, asked)
        of = tiles.of_row[asked].long() - tiles.n_prefix
        own = Lists(always, lists.listed[head, of][None], lists.count[head, of][None])
        seen = seen_tiles(own, tiles.n_tiles)[0]
        held.append((mass * seen).sum(-1).mean())
        free = mass[:, always:].sort(-1, descending=True).values
        counted = torch.arange(free.shape[1], device=q.device) < own.count[0][:, None]
        best.append((mass[:, :always].sum(-1) + (free * counted).sum(-1)).mean())
    return Recall(torch.stack(held), torch.stack(best))
