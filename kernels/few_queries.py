"""A few queries against very many keys: the keys are cut into pieces that run side by side, then merged.

The suffix tokens of the ViT decoder look at every token of the picture: five queries, some 24,000 keys. The visible
keys are spans of rows, so nothing is masked and nothing is read that does not count.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .launch import jit, power_of_two, tl

LOG2E = 1.4426950408889634
PIECE_KEYS = 512
BLOCK_KEYS = 64


def reference(q: Tensor, k: Tensor, v: Tensor, spans: Tensor, out: Tensor) -> None:
    """q, out [queries, heads, d]; k, v [rows, heads, d]; spans [n, 2] int32: (first row, rows), disjoint. Fills `out`."""
    seen = torch.cat([torch.arange(first, first + count) for first, count in spans.tolist()]).to(k.device)
    some, keys, values = (x.transpose(0, 1) for x in (q, k[seen], v[seen]))
    out.copy_(F.scaled_dot_product_attention(some, keys, values).transpose(0, 1))


@jit
def partial_kernel(
    Q,
    K,
    V,
    SPANS,
    PARTS,
    STATS,
    SCALE,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """One program per span and head: unnormalised sums [span, head, query, d], maximum and total [.., 2], float32."""
    span = tl.program_id(0)
    head = tl.program_id(1)
    key = tl.load(SPANS + 2 * span).to(tl.int64)
    keys = tl.load(SPANS + 2 * span + 1)
    row = tl.arange(0, BM)
    column = tl.arange(0, BN)
    channel = tl.arange(0, BLOCK_WIDTH)
    wide = channel < WIDTH
    asked = row < QUERIES
    stride = HEADS * WIDTH
    q = tl.load(
        Q + row[:, None] * stride + head * WIDTH + channel[None, :], mask=asked[:, None] & wide[None, :], other=0.0
    )
    top = tl.full((BM,), -1e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    mixed = tl.zeros((BM, BLOCK_WIDTH), tl.float32)
    for start in range(0, keys, BN):
        live = (start + column) < keys
        at = (key + start + column)[:, None] * stride + head * WIDTH + channel[None, :]
        here = live[:, None] & wide[None, :]
        k = tl.load(K + at, mask=here, other=0.0)
        v = tl.load(V + at, mask=here, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
        scores = tl.where(live[None, :], scores, -1e30)
        higher = tl.maximum(top, tl.max(scores, 1))
        weight = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weight, 1)
        mixed = tl.dot(weight.to(v.dtype), v, mixed * fade[:, None], input_precision="ieee")
        top = higher
    part = (span * HEADS + head) * QUERIES + row
    tl.store(PARTS + part[:, None] * WIDTH + channel[None, :], mixed, mask=asked[:, None] & wide[None, :])
    tl.store(STATS + 2 * part, top, mask=asked)
    tl.store(STATS + 2 * part + 1, total, mask=asked)


@jit
def merge_kernel(
    PARTS,
    STATS,
    OUT,
    SPAN_COUNT,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_SPANS: tl.constexpr,
):
    """One program per query and head."""
    query = tl.program_id(0)
    head = tl.program_id(1)
    span = tl.arange(0, BLOCK_SPANS)
    channel = tl.arange(0, BLOCK_WIDTH)
    live = span < SPAN_COUNT
    wide = channel < WIDTH
    part = (span * HEADS + head) * QUERIES + query
    top = tl.load(STATS + 2 * part, mask=live, other=-1e30)
    factor = tl.where(live, tl.exp2(top - tl.max(top, 0)), 0.0)
    total = tl.sum(factor * tl.load(STATS + 2 * part + 1, mask=live, other=0.0), 0)
    mixed = tl.load(PARTS + part[:, None] * WIDTH + channel[None, :], mask=live[:, None] & wide[None, :], other=0.0)
    out = tl.sum(mixed * factor[:, None], 0) / total
    tl.store(OUT + (query * HEADS + head) * WIDTH + channel, out.to(OUT.dtype.element_ty), mask=wide)


def launch(q: Tensor, k: Tensor, v: Tensor, spans: Tensor, out: Tensor) -> None:
    """`reference`, by two kernels; `spans` best from `cut`."""
    queries, heads, width = q.shape
    parts = torch.empty(len(spans), heads, queries, width, dtype=torch.float32, device=q.device)
    stats = torch.empty(len(spans), heads, queries, 2, dtype=torch.float32, device=q.device)
    shape = {"QUERIES": queries, "HEADS": heads, "WIDTH": width, "BLOCK_WIDTH": max(16, power_of_two(width))}
    partial_kernel[(len(spans), heads)](
        q,
        k,
        v,
        spans,
        parts,
        stats,
        width**-0.5 * LOG2E,
        **shape,
        BM=max(16, power_of_two(queries)),
        BN=BLOCK_KEYS if q.element_size() == 2 else BLOCK_KEYS // 2,
        num_warps=4,
        num_stages=2,
    )
    merge_kernel[(queries, heads)](
        parts, stats, out, len(spans), **shape, BLOCK_SPANS=power_of_two(len(spans)), num_warps=4
    )


def cut(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans (first row, rows) of at most PIECE_KEYS rows, so that enough programs run."""
    return [
        (first + start, min(PIECE_KEYS, rows - start)) for first, rows in spans for start in range(0, rows, PIECE_KEYS)
    ]
