"""SwiGLU, gate first: `silu(first half) * second half`, float32 inside and one rounding at the store."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .launch import jit, power_of_two, tl

MAX_BLOCK = 2048


def reference(x: Tensor) -> Tensor:
    """x [rows, 2 * width] -> [rows, width] of the same dtype."""
    gate, up = x.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


@jit
def kernel(X, Y, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row and BLOCK columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < WIDTH
    gate = tl.load(X + row * 2 * WIDTH + column, mask=live, other=0.0).to(tl.float32)
    up = tl.load(X + row * 2 * WIDTH + WIDTH + column, mask=live, other=0.0).to(tl.float32)
    tl.store(Y + row * WIDTH + column, (gate * tl.sigmoid(gate) * up).to(Y.dtype.element_ty), mask=live)


def launch(x: Tensor) -> Tensor:
    """`reference`, by one kernel."""
    rows, width = x.shape[0], x.shape[1] // 2
    y = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    block = min(MAX_BLOCK, power_of_two(width))
    kernel[(rows, -(-width // block))](x, y, WIDTH=width, BLOCK=block, num_warps=4)
    return y
