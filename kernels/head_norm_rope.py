"""Behind the q, k, v projection of the transformer: norm and rotate q and k per head, write k and v into the arena.

A head's channels i and i + half turn together for i < half; those from 2 * half on keep still.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .launch import jit, need_rows, power_of_two, tl


def reference(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    k_out: Tensor,
    v_out: Tensor,
    q_rows: Tensor | None = None,
) -> Tensor:
    """qkv [rows, 3 * heads * d], all of q, then k, then v; weights [d]; cos, sin [rows, half].

    Writes keys and values to k_out, v_out [rows, heads, d] and returns the queries [rows, heads, d], or those of the
    rows that q_rows [n] int32 names. Norm and rotation in float32, one rounding.
    """
    heads, width = k_out.shape[1:]
    q, k, v = qkv.view(len(qkv), 3, heads, width).unbind(1)
    k_out.copy_(_turned(k, k_weight, cos, sin, eps))
    v_out.copy_(v)
    if q_rows is not None:
        q, cos, sin = (x.index_select(0, q_rows.long()) for x in (q, cos, sin))
    return _turned(q, q_weight, cos, sin, eps).contiguous()


def _turned(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    half = cos.shape[-1]
    cos, sin = cos[:, None].float(), sin[:, None].float()
    normed = F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps)
    a, b, still = normed[..., :half], normed[..., half : 2 * half], normed[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, still), dim=-1).to(x.dtype)


@jit
def _turn(
    SOURCE,
    WEIGHT,
    COS,
    SIN,
    OUT,
    head,
    EPS,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Heads of one row, read once: the two halves that turn, and the rest.

    Weights and angles are addressed for every head: loaded once for all, they would change their layout through shared
    memory.
    """
    column = tl.broadcast_to(tl.arange(0, BLOCK)[None, :], (BLOCK_HEADS, BLOCK))
    here = (head < HEADS)[:, None]
    turns = here & (column < HALF)
    at = head[:, None] * WIDTH + column
    a = tl.load(SOURCE + at, mask=turns, other=0.0).to(tl.float32)
    b = tl.load(SOURCE + HALF + at, mask=turns, other=0.0).to(tl.float32)
    squares = a * a + b * b
    if 2 * HALF < WIDTH:
        rest = here & (column < WIDTH - 2 * HALF)
        still = tl.load(SOURCE + 2 * HALF + at, mask=rest, other=0.0).to(tl.float32)
        squares += still * still
    inverse = (1.0 / tl.sqrt(tl.sum(squares, axis=1) / WIDTH + EPS))[:, None]
    a = a * inverse * tl.load(WEIGHT + column, mask=turns, other=0.0).to(tl.float32)
    b = b * inverse * tl.load(WEIGHT + HALF + column, mask=turns, other=0.0).to(tl.float32)
    cos = tl.load(COS + column, mask=turns, other=0.0).to(tl.float32)
    sin = tl.load(SIN + column, mask=turns, other=0.0).to(tl.float32)
    tl.store(OUT + at, (a * cos - b * sin).to(OUT.dtype.element_ty), mask=turns)
    tl.store(OUT + HALF + at, (b * cos + a * sin).to(OUT.dtype.element_ty), mask=turns)
    if 2 * HALF < WIDTH:
        still = still * inverse * tl.load(WEIGHT + 2 * HALF + column, mask=rest, other=0.0).to(tl.float32)
        tl.store(OUT + 2 * HALF + at, still.to(OUT.dtype.element_ty), mask=rest)


@jit
def kernel(
    QKV,
    Q_WEIGHT,
    K_WEIGHT,
    COS,
    SIN,
    Q_ROWS,
    Q,
    K,
    V,
    EPS,
    QUERIES,
    ROWS,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    PICKED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_COPY: tl.constexpr,
):
    """One program per BLOCK_HEADS heads and row of q, then of k, then of v."""
    program = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    stride = HEADS * WIDTH
    if program < QUERIES:
        row = program
        if PICKED:
            row = tl.load(Q_ROWS + program).to(tl.int64)
        _turn(
            QKV + row * (3 * stride), Q_WEIGHT, COS + row * HALF, SIN + row * HALF, Q + program * stride, head, EPS,
            HEADS, WIDTH, HALF, BLOCK_HEADS, BLOCK,
        )  # fmt: skip
    elif program < QUERIES + ROWS:
        row = program - QUERIES
        _turn(
            QKV + row * (3 * stride) + stride, K_WEIGHT, COS + row * HALF, SIN + row * HALF, K + row * stride, head, EPS,
            HEADS, WIDTH, HALF, BLOCK_HEADS, BLOCK,
        )  # fmt: skip
    else:
        row = program - QUERIES - ROWS
        within = tl.arange(0, BLOCK_COPY)
        column = tl.program_id(1) * (BLOCK_HEADS * WIDTH) + within
        live = (within < BLOCK_HEADS * WIDTH) & (column < stride)
        v = tl.load(QKV + row * (3 * stride) + 2 * stride + column, mask=live)
        tl.store(V + row * stride + column, v, mask=live)


def tuning(heads: int) -> dict[str, int]:
    """Heads per program and warps."""
    return {"BLOCK_HEADS": min(8, power_of_two(heads)), "num_warps": 2}


def launch(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    k_out: Tensor,
    v_out: Tensor,
    q_rows: Tensor | None = None,
    **changes: int,
) -> Tensor:
    """`reference`, by one kernel; `changes` to the tuning are for measurements."""
    heads, width = k_out.shape[1:]
    rows, half = len(qkv), cos.shape[1]
    need_rows(qkv=qkv, cos=cos, sin=sin, k_out=k_out, v_out=v_out)
    queries = rows if q_rows is None else len(q_rows)
    q = torch.empty(queries, heads, width, dtype=qkv.dtype, device=qkv.device)
    options = tuning(heads) | changes
    if rows:
        # a pointer that is not read still needs a tensor
        kernel[(queries + 2 * rows, -(-heads // options["BLOCK_HEADS"]))](
            qkv,
            q_weight,
            k_weight,
            cos,
            sin,
            qkv if q_rows is None else q_rows,
            q,
            k_out,
            v_out,
            eps,
            queries,
            rows,
            HEADS=heads,
            WIDTH=width,
            HALF=half,
            PICKED=q_rows is not None,
            BLOCK=power_of_two(max(half, width - 2 * half)),
            BLOCK_COPY=power_of_two(options["BLOCK_HEADS"] * width),
            **options,
        )
    return q
