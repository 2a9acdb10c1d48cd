"""The best tiles of every query tile: exactly as many as wanted, as ascending lists.

Scores are products of tile means. The k-th largest score is found bit by bit in its ordered integer form; where scores are
equal the tile that comes first counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .launch import jit, need_columns, power_of_two, tl

HEADS_AT_ONCE = 8  # scores of all heads of a long clip would be 740 MB


def coarse_scores(q_means: Tensor, k_means: Tensor) -> Tensor:
    """[heads, query tiles, d], [heads, key tiles, d] float32 -> [heads, query tiles, key tiles], scaled as attention is."""
    return torch.matmul(q_means, k_means.transpose(1, 2)) * q_means.shape[-1] ** -0.5


def reference(scores: Tensor, wanted: Tensor, most: int, offset: int = 0) -> tuple[Tensor, Tensor]:
    """scores [heads, query tiles, key tiles] float32, wanted [query tiles] int32, at most `most` and the key tiles.

    Returns listed [heads, query tiles, most] int32, ascending key tiles plus `offset`, 0 past the count; count [heads, query
    tiles] int32.
    """
    heads, queries, keys = scores.shape
    ranked = scores.sort(dim=-1, descending=True, stable=True).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen.scatter_(-1, ranked, (torch.arange(keys, device=scores.device) < wanted[:, None]).expand_as(scores))
    listed = (~chosen).byte().sort(dim=-1, stable=True).indices[..., :most] + offset
    valid = torch.arange(most, device=scores.device) < wanted[:, None]
    return torch.where(valid, listed, 0).int(), wanted.expand(heads, queries).contiguous()


@jit
def kernel(
    SCORES,
    WANTED,
    LISTED,
    COUNT,
    QUERIES,
    KEYS,
    MOST,
    OFFSET,
    HEAD_STRIDE,
    ROW_STRIDE,
    BLOCK: tl.constexpr,
):
    """One program per query tile and head."""
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    key = tl.arange(0, BLOCK)
    inside = key < KEYS
    wanted = tl.load(WANTED + query)
    scores = tl.load(SCORES + head * HEAD_STRIDE + query * ROW_STRIDE + key, mask=inside, other=0.0)
    bits = (scores + 0.0).to(tl.int32, bitcast=True)  # the sum makes -0 a 0
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    positive = tl.sum((inside & (ordered >= 0)).to(tl.int32), 0) >= wanted
    least = tl.where(positive, 0, -2147483648).to(tl.int32)
    for place in range(31):
        higher = least + (1 << (30 - place))
        enough = tl.sum((inside & (ordered >= higher)).to(tl.int32), 0) >= wanted
        least = tl.where(enough, higher, least)
    above = inside & (ordered > least)
    equal = inside & (ordered == least)
    room = wanted - tl.sum(above.to(tl.int32), 0)
    chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= room))
    at = tl.cumsum(chosen.to(tl.int32), 0) - 1
    row = head * QUERIES + query
    tl.store(LISTED + row * MOST + at, key + OFFSET, mask=chosen)
    tl.store(COUNT + row, wanted)


def launch(scores: Tensor, wanted: Tensor, most: int, offset: int = 0, **changes: int) -> tuple[Tensor, Tensor]:
    """`reference`, by one kernel; what stands past the count is undefined."""
    heads, queries, keys = scores.shape
    need_columns(scores=scores)
    listed = torch.empty(heads, queries, most, dtype=torch.int32, device=scores.device)
    count = torch.empty(heads, queries, dtype=torch.int32, device=scores.device)
    if heads and queries:
        block = power_of_two(keys)
        options = {"num_warps": 8 if block > 2048 else 4} | changes
        kernel[(queries, heads)](
            scores, wanted, listed, count, queries, keys, most, offset, scores.stride(0), scores.stride(1),
            BLOCK=block, **options,
        )  # fmt: skip
    return listed, count
