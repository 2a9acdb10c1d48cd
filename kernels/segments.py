"""Many short sequences of several sizes, described once for every kind of attention that can take them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

# [batch, heads, rows, d] each -> [batch, heads, queries, d]
DenseAttention = Callable[[Tensor, Tensor, Tensor], Tensor]

TILE_QUERIES = 128  # queries that one program of the Triton kernel takes


@dataclass(frozen=True)
class Group:
    """Neighbouring segments of equal size: `keys` of the `rows` reserved for a segment can be seen, the first ones."""

    segments: int
    queries: int
    keys: int
    rows: int


@dataclass(frozen=True)
class Segments:
    """Segments in the order of their rows. `whole` says that every reserved key row can be seen."""

    groups: tuple[Group, ...]
    whole: bool
    max_queries: int
    max_keys: int
    queries_before: Tensor  # [segments + 1] int32, of each segment and in all
    rows_before: Tensor  # likewise for key rows
    tiles: Tensor  # [n, 4] int32, see `segment_attention`

    @classmethod
    def of(cls, groups: tuple[Group, ...], device: torch.device) -> Segments:
        single = [group for group in groups for _ in range(group.segments)]
        queries = [0, *accumulate(group.queries for group in single)]
        rows = [0, *accumulate(group.rows for group in single)]
        tiles = tile_rows([(q, g.queries, k, g.keys) for q, k, g in zip(queries, rows, single, strict=False)])
        return cls(
            groups,
            all(group.keys == group.rows for group in groups),
            max(group.queries for group in groups),
            max(group.keys for group in groups),
            *(torch.tensor(values, dtype=torch.int32, device=device) for values in (queries, rows, tiles)),
        )


def by_groups(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, out: Tensor, dense: DenseAttention | None = None
) -> None:
    """One batched call without a mask per group; q, out [queries, heads, d], k, v [rows, heads, d]. Fills `out`."""
    dense = dense or F.scaled_dot_product_attention
    query, row = 0, 0
    for group in segments.groups:
        query_stop, row_stop = query + group.segments * group.queries, row + group.segments * group.rows
        some = q[query:query_stop].unflatten(0, (group.segments, group.queries))
        keys, values = (x[row:row_stop].unflatten(0, (group.segments, group.rows))[:, : group.keys] for x in (k, v))
        mixed = dense(some.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2))
        out[query:query_stop].unflatten(0, (group.segments, group.queries)).copy_(mixed.transpose(1, 2))
        query, row = query_stop, row_stop


def tile_rows(segments: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Cut segments (first query row, queries, first key row, keys) into tiles, those with most work first."""
    tiles = [
        (first + start, min(TILE_QUERIES, queries - start), key, keys)
        for first, queries, key, keys in segments
        for start in range(0, queries, TILE_QUERIES)
    ]
    return sorted(tiles, key=lambda tile: -tile[3])
