"""Video Sparse Attention (VSA-H3) of one packed sequence in tile order, for inference.

Tiles of runs (text, audio, pictures) are seen by every query and see every key; a tile of a grid sees, besides them, the grid
tiles whose mean keys its mean query likes best. What is dense about that goes to the dense attention of the card, which also
says its log-sum-exp; the kernel joins the chosen tiles to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from . import block_sparse, compression, tile_lists, tile_means
from .block_sparse import Lists, Spans
from .dense_attention import DenseChoice
from .tile_lists import HEADS_AT_ONCE, coarse_scores
from .tiles import Tiles

Mode = Literal["exempt", "compete"]


@dataclass(frozen=True)
class Steps:
    """The steps of the operation, as kernels or as their references."""

    means: Callable[[Tensor, Spans], Tensor]
    pick: Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor]]
    attend: Callable[..., None]
    add_gated: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


REFERENCE = Steps(tile_means.reference, tile_lists.reference, block_sparse.reference, compression.reference)
KERNELS = Steps(tile_means.launch, tile_lists.launch, block_sparse.launch, compression.launch)


@dataclass(frozen=True)
class Forced:
    """Grid tiles that query tiles of the grids see in any case: mask [n_video, n_video] bool (query tile, key tile).

    count [n_video] int32 says how many each sees, `most` the largest of these: known beforehand, so that nothing waits for it.
    """

    mask: Tensor
    count: Tensor
    most: int

    @classmethod
    def of(cls, mask: Tensor) -> Forced:
        count = mask.sum(-1, dtype=torch.int32)
        return cls(mask, count, int(count.max()) if len(count) else 0)

    def to(self, device: torch.device | str) -> Forced:
        """The same with its tensors there."""
        return replace(self, mask=self.mask.to(device), count=self.count.to(device))


@dataclass(frozen=True)
class Chosen:
    """Lists of the query tiles of the grids, and, where a gate asks for it, attention among all means [heads, n, d]."""

    lists: Lists
    mixed: Tensor | None


def spans(tiles: Tiles) -> Spans:
    return Spans(tiles.starts, tiles.sizes, tiles.extent)


def choose_tiles(
    steps: Steps,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    tiles: Tiles,
    kept: int,
    mode: Mode = "exempt",
    forced: Forced | None = None,
) -> Chosen:
    """What the query tiles of the grids see; with `v` also attention among means. Scores exist for a few heads at a time.

    `forced` tiles are taken out of the budget; a query tile with more of them than that sees all of them and no others.
    """
    everything = spans(tiles)
    means = [steps.means(x, everything) for x in (q, k, *([] if v is None else [v]))]
    first = tiles.n_prefix
    offset, wanted = (first, kept) if mode == "exempt" else (0, min(kept + first, tiles.n_tiles))
    budget = torch.full((tiles.n_video,), wanted, dtype=torch.int32, device=q.device)
    if forced is not None:
        budget = torch.maximum(budget, forced.count)
        wanted = max(wanted, forced.most)
    groups, mixed = [], []
    for at in range(0, q.shape[1], HEADS_AT_ONCE):
        some_q, some_k, *some_v = (x[at : at + HEADS_AT_ONCE] for x in means)
        if some_v:
            all_scores = coarse_scores(some_q, some_k)
            mixed.append(all_scores.softmax(-1) @ some_v[0])
            scores = all_scores[:, first:, offset:]
        else:
            scores = coarse_scores(some_q[:, first:], some_k[:, offset:])
        if forced is not None:
            scores[..., first - offset :].masked_fill_(forced.mask, torch.inf)
        groups.append(steps.pick(scores, budget, wanted, offset))
    listed, count = (torch.cat(parts) for parts in zip(*groups, strict=True))
    return Chosen(Lists(first if mode == "exempt" else 0, listed, count), torch.cat(mixed) if mixed else None)


def vsa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Tiles,
    sparsity: float,
    *,
    steps: Steps,
    dense: DenseChoice,
    gate: Tensor | None = None,
    mode: Mode = "exempt",
    forced: Forced | None = None,
) -> Tensor:
    """q, k, v, gate [rows, heads, d] in tile order (`tiles.order`), q and k after norm and rotation -> [rows, heads, d].

    gate is what the checkpoint's `to_gate_compress` makes of the block's input; None leaves the branch out. The result is what
    goes into the output projection, in tile order.
    """
    if len(q) != tiles.rows or len(k) != tiles.rows:
        raise ValueError(
            f"{len(q)} queries and {len(k)} keys for tiles of {tiles.rows} rows; make the tiles of this sequence"
        )
    kept = tiles.budget(sparsity)
    chosen = None
    if gate is not None or kept < tiles.n_video:
        chosen = choose_tiles(steps, q, k, None if gate is None else v, tiles, kept, mode, forced)
    if chosen is None or kept >= tiles.n_video:
        out = dense.run(q, k, v).contiguous()
    else:
        out = attend_chosen(q, k, v, tiles, chosen.lists, steps, dense)
    if gate is not None and chosen is not None and chosen.mixed is not None:
        steps.add_gated(out, gate, chosen.mixed, tiles.of_row)
    return out


def attend_chosen(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tiles, lists: Lists, steps: Steps, dense: DenseChoice
) -> Tensor:
    """Attention over rows: of the prefix dense, of the grids over the prefix dense where that can be joined, the rest by lists."""
    rows, first = tiles.prefix_rows, tiles.n_prefix
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    before = None
    if rows:
        out[:rows] = dense.run(q[:rows], k, v)
    if rows and lists.always and dense.run_lse is not None:
        other, lse = dense.run_lse(q[rows:], k[:rows], v[:rows])
        before = other.contiguous(), lse.contiguous()
        lists = Lists(0, lists.listed, lists.count)
    everything = spans(tiles)
    queries = Spans(tiles.starts[first:] - rows, tiles.sizes[first:], tiles.extent)
    steps.attend(q[rows:], k, v, queries, everything, lists, out[rows:], before=before)
    return out
