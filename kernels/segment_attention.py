"""Attention of many short sequences in one launch: each query segment looks at its own key segment, without a mask.

The windows of the ViT decoder are such sequences, of several sizes at once. A tile is a run of queries of one segment
with the keys it sees: `(first query row, queries, first key row, keys)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .launch import jit, power_of_two, tl
from .segments import TILE_QUERIES

LOG2E = 1.4426950408889634


def reference(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, out: Tensor) -> None:
    """q, out [query rows, heads, d], k, v [key rows, heads, d], tiles [n, 4] int32: fills the rows of `out` in a tile."""
    for first, queries, key, keys in tiles.tolist():
        some, seen, values = (x.transpose(0, 1) for x in (q[first : first + queries], k[key:][:keys], v[key:][:keys]))
        out[first : first + queries] = F.scaled_dot_product_attention(some, seen, values).transpose(0, 1)


@jit
def kernel(
    Q,
    K,
    V,
    OUT,
    TILES,
    SCALE,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program per tile and head; softmax in base 2, running maximum from a large finite number."""
    tile = TILES + 4 * tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(tile).to(tl.int64)
    queries = tl.load(tile + 1)
    key = tl.load(tile + 2).to(tl.int64)
    keys = tl.load(tile + 3)
    row = tl.arange(0, BM)
    column = tl.arange(0, BN)
    channel = tl.arange(0, BLOCK_WIDTH)
    wide = channel < WIDTH
    stride = HEADS * WIDTH
    at_q = (first + row)[:, None] * stride + head * WIDTH + channel[None, :]
    q_live = (row < queries)[:, None] & wide[None, :]
    q = tl.load(Q + at_q, mask=q_live, other=0.0)
    at_k = (key + column)[:, None] * stride + head * WIDTH + channel[None, :]
    top = tl.full((BM,), -1e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    mixed = tl.zeros((BM, BLOCK_WIDTH), tl.float32)
    whole = keys // BN * BN
    for start in tl.range(0, whole, BN, num_stages=STAGES):
        k = tl.load(K + at_k + start * stride, mask=wide[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
        higher = tl.maximum(top, tl.max(scores, 1))
        weight = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weight, 1)
        v = tl.load(V + at_k + start * stride, mask=wide[None, :], other=0.0)
        mixed = tl.dot(weight.to(v.dtype), v, mixed * fade[:, None], input_precision="ieee")
        top = higher
    if whole < keys:
        live = (whole + column) < keys
        here = live[:, None] & wide[None, :]
        k = tl.load(K + at_k + whole * stride, mask=here, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
        scores = tl.where(live[None, :], scores, -1e30)
        higher = tl.maximum(top, tl.max(scores, 1))
        weight = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weight, 1)
        v = tl.load(V + at_k + whole * stride, mask=here, other=0.0)
        mixed = tl.dot(weight.to(v.dtype), v, mixed * fade[:, None], input_precision="ieee")
    tl.store(OUT + at_q, (mixed / total[:, None]).to(OUT.dtype.element_ty), mask=q_live)


def tuning(capability: tuple[int, int], itemsize: int) -> dict[str, int]:
    """Block of keys, pipeline stages and warps, for data centre cards as measured on an H200 (see README.md).

    Consumer cards have 99 KB of shared memory and keep to two stages.
    """
    if itemsize > 2:
        return {"BN": 32, "STAGES": 1, "num_warps": 8}
    if capability[0] in (9, 10):
        return {"BN": 64, "STAGES": 3, "num_warps": 8}
    return {"BN": 64, "STAGES": 2, "num_warps": 8}


def launch(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, out: Tensor, **changes: int) -> None:
    """`reference`, by one kernel; `changes` to the tuning are for measurements. A tile has TILE_QUERIES at most."""
    heads, width = q.shape[1:]
    capability = torch.cuda.get_device_capability(q.device) if q.is_cuda else (8, 0)
    kernel[(len(tiles), heads)](
        q,
        k,
        v,
        out,
        tiles,
        width**-0.5 * LOG2E,
        HEADS=heads,
        WIDTH=width,
        BLOCK_WIDTH=max(16, power_of_two(width)),
        BM=TILE_QUERIES,
        **(tuning(capability, q.element_size()) | changes),
    )
