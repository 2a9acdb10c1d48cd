"""Behind the q, k, v projection of the ViT decoder: norm and rotate q and k, put q where its window wants it and k, v
straight into the key ring.

Rows come in picture order. Row r's query goes to row `query_rows[r]`; a token's key and value go to one ring row, a
suffix token's to one copy per window.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .launch import jit, power_of_two, tl

HEADS_PER_PROGRAM = 16


def reference(
    qkv: Tensor, cos: Tensor, sin: Tensor, query_rows: Tensor, key_rows: Tensor, copies: int, pool: Tensor, eps: float
) -> Tensor:
    """Write keys and values into `pool` and return the queries [rows, heads, head_dim] in their new order.

    qkv [rows, heads * 3 * head_dim], per head q, k, v; cos, sin [rows, half] float32: the first 2 * half channels of a
    head turn, split in halves; query_rows [rows] int32; key_rows int32: one ring row per token, then `copies` rows
    per suffix token; pool [2, ring rows, heads, head_dim].
    """
    heads, width = pool.shape[2:]
    q, k, v = qkv.view(len(qkv), heads, 3 * width).split(width, dim=-1)
    q, k = (_rotate(F.rms_norm(x.float(), (width,), eps=eps), cos, sin).to(qkv.dtype) for x in (q, k))
    suffix = (len(key_rows) - len(qkv)) // (copies - 1) if copies > 1 else 0
    tokens = len(qkv) - suffix
    where = key_rows.long()
    for store, new in zip(pool, (k, v), strict=True):
        store.index_copy_(0, where[:tokens], new[:tokens].contiguous())
        if suffix:
            store.index_copy_(0, where[tokens:], new[tokens:].repeat_interleave(copies, dim=0))
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out.index_copy_(0, query_rows.long(), q)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    a, b, still = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, still), dim=-1)


@jit
def kernel(
    QKV,
    COS,
    SIN,
    QUERY_ROWS,
    KEY_ROWS,
    Q,
    K,
    V,
    EPS,
    TOKENS,
    COPIES,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """One program per row and BLOCK_HEADS heads. The partner channel of a rotation is a second load of the same lines."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    channel = tl.arange(0, BLOCK_WIDTH)
    live = (head < HEADS)[:, None] & (channel < WIDTH)[None, :]
    turns = channel < 2 * HALF
    first = channel < HALF
    partner = tl.where(first, channel + HALF, tl.where(turns, channel - HALF, channel))
    angle = row * HALF + tl.where(first, channel, channel - HALF)
    cos = tl.load(COS + angle, mask=turns, other=1.0)[None, :]
    sin = tl.load(SIN + angle, mask=turns, other=0.0)
    sin = tl.where(first, -sin, sin)[None, :]

    source = QKV + row * (3 * HEADS * WIDTH) + head[:, None] * (3 * WIDTH)
    target = head[:, None] * WIDTH + channel[None, :]
    out_type = Q.dtype.element_ty
    q = tl.load(source + channel[None, :], mask=live, other=0.0).to(tl.float32)
    q_partner = tl.load(source + partner[None, :], mask=live, other=0.0).to(tl.float32)
    norm = (1.0 / tl.sqrt(tl.sum(q * q, axis=1) / WIDTH + EPS))[:, None]
    q = q * norm * cos + q_partner * norm * sin
    query_row = tl.load(QUERY_ROWS + row).to(tl.int64)
    tl.store(Q + query_row * (HEADS * WIDTH) + target, q.to(out_type), mask=live)

    k = tl.load(source + WIDTH + channel[None, :], mask=live, other=0.0).to(tl.float32)
    k_partner = tl.load(source + WIDTH + partner[None, :], mask=live, other=0.0).to(tl.float32)
    norm = (1.0 / tl.sqrt(tl.sum(k * k, axis=1) / WIDTH + EPS))[:, None]
    k = (k * norm * cos + k_partner * norm * sin).to(out_type)
    v = tl.load(source + 2 * WIDTH + channel[None, :], mask=live, other=0.0)
    is_token = row < TOKENS
    begin = tl.where(is_token, row, TOKENS + (row - TOKENS) * COPIES)
    count = tl.where(is_token, 1, COPIES)
    for copy in range(count):
        key_row = tl.load(KEY_ROWS + begin + copy).to(tl.int64) * (HEADS * WIDTH)
        tl.store(K + key_row + target, k, mask=live)
        tl.store(V + key_row + target, v, mask=live)


def launch(
    qkv: Tensor, cos: Tensor, sin: Tensor, query_rows: Tensor, key_rows: Tensor, copies: int, pool: Tensor, eps: float
) -> Tensor:
    """`reference`, by one kernel."""
    heads, width = pool.shape[2:]
    rows = len(qkv)
    suffix = (len(key_rows) - rows) // (copies - 1) if copies > 1 else 0
    q = torch.empty(rows, heads, width, dtype=qkv.dtype, device=qkv.device)
    block = min(HEADS_PER_PROGRAM, power_of_two(heads))
    kernel[(rows, -(-heads // block))](
        qkv,
        cos,
        sin,
        query_rows,
        key_rows,
        q,
        pool[0],
        pool[1],
        eps,
        rows - suffix,
        copies,
        HEADS=heads,
        WIDTH=width,
        HALF=cos.shape[1],
        BLOCK_HEADS=block,
        BLOCK_WIDTH=power_of_two(width),
        num_warps=4,
    )
    return q
