"""Attention over two disjoint sets of keys joined into attention over both, by their log-sum-exp."""

from __future__ import annotations

import torch
from torch import Tensor

from .launch import jit, need_rows, power_of_two, tl


def reference(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor) -> Tensor:
    """a, b [rows, heads, d]; lse_a, lse_b [heads, rows] float32, natural logarithm. Returns a, changed in place.

    A side whose log-sum-exp is -inf saw no key: it weighs nothing, whatever it holds. Where both saw none, a is 0.
    """
    top = torch.maximum(lse_a, lse_b)
    top = torch.where(top == -torch.inf, torch.zeros_like(top), top)
    of_a, of_b = (torch.exp(lse - top).t().unsqueeze(-1) for lse in (lse_a, lse_b))  # [rows, heads, 1]
    total = of_a + of_b
    mixed = torch.where(of_a > 0, a.float() * of_a, 0.0) + torch.where(of_b > 0, b.float() * of_b, 0.0)
    return a.copy_(torch.where(total > 0, mixed / total, 0.0))


@jit
def kernel(
    A,
    LSE_A,
    B,
    LSE_B,
    TOTAL_ROWS,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """One program per ROWS rows and BLOCK_HEADS heads."""
    pair = tl.arange(0, ROWS * BLOCK_HEADS)
    row = tl.program_id(0).to(tl.int64) * ROWS + pair // BLOCK_HEADS
    head = tl.program_id(1) * BLOCK_HEADS + pair % BLOCK_HEADS
    channel = tl.arange(0, BLOCK_WIDTH)
    live = (row < TOTAL_ROWS) & (head < HEADS)
    lse_at = head.to(tl.int64) * TOTAL_ROWS + row
    lse_a = tl.load(LSE_A + lse_at, mask=live, other=0.0)
    lse_b = tl.load(LSE_B + lse_at, mask=live, other=0.0)
    top = tl.maximum(lse_a, lse_b)
    top = tl.where(top == float("-inf"), 0.0, top)
    of_a = tl.exp(lse_a - top)
    of_b = tl.exp(lse_b - top)
    total = of_a + of_b
    inverse = tl.where(total > 0.0, 1.0 / total, 0.0)
    of_a = (of_a * inverse)[:, None]
    of_b = (of_b * inverse)[:, None]
    here = live[:, None] & (channel < WIDTH)[None, :]
    at = (row * HEADS + head)[:, None] * WIDTH + channel[None, :]
    a = tl.load(A + at, mask=here, other=0.0).to(tl.float32)
    b = tl.load(B + at, mask=here, other=0.0).to(tl.float32)
    mixed = tl.where(of_a > 0.0, a * of_a, 0.0) + tl.where(of_b > 0.0, b * of_b, 0.0)
    tl.store(A + at, mixed.to(A.dtype.element_ty), mask=here)


def tuning(heads: int) -> dict[str, int]:
    """Rows and heads of a program, and warps."""
    return {"ROWS": 4, "BLOCK_HEADS": min(8, power_of_two(heads)), "num_warps": 4}


def launch(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor, **changes: int) -> Tensor:
    """`reference`, by one kernel; `changes` to the tuning are for measurements."""
    rows, heads, width = a.shape
    need_rows(a=a, lse_a=lse_a, b=b, lse_b=lse_b)
    options = tuning(heads) | changes
    if rows:
        kernel[(-(-rows // options["ROWS"]), -(-heads // options["BLOCK_HEADS"]))](
            a, lse_a, b, lse_b, rows, HEADS=heads, WIDTH=width, BLOCK_WIDTH=power_of_two(width), **options
        )
    return a
