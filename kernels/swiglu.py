"""SwiGLU: `silu(gate) * value` of the two halves of a row, float32 inside and one rounding at the store."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import fp8_rows
from .fp8_rows import Fp8Rows, quantised, room, scale_of
from .launch import jit, need_rows, power_of_two, tl

MAX_BLOCK = 2048
ROWS_AT_ONCE = 2048  # widened to float32 together by the reference


def reference(x: Tensor, *, gate_first: bool = True, out: torch.dtype | None = None) -> Tensor | Fp8Rows:
    """x [rows, 2 * width] -> [rows, width] in `out`, x's dtype without; for float8_e4m3fn codes with a scale per row.

    The gate is the first half of a row, or the second one.
    """
    rows, width = x.shape[0], x.shape[1] // 2
    fp8 = out == torch.float8_e4m3fn
    y = torch.empty(rows, width, dtype=torch.float32 if fp8 else out or x.dtype, device=x.device)
    for start in range(0, rows, ROWS_AT_ONCE):
        first, second = x[start : start + ROWS_AT_ONCE].float().chunk(2, dim=-1)
        gate, value = (first, second) if gate_first else (second, first)
        y[start : start + ROWS_AT_ONCE] = F.silu(gate) * value
    return fp8_rows.reference(y) if fp8 else y


@jit
def kernel(
    X,
    Y,
    Y_SCALE,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    FP8: tl.constexpr,
):
    """One program per row and BLOCK columns, which are the whole row where it is quantised."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < WIDTH
    first = tl.load(X + row * 2 * WIDTH + column, mask=live, other=0.0).to(tl.float32)
    second = tl.load(X + row * 2 * WIDTH + WIDTH + column, mask=live, other=0.0).to(tl.float32)
    gate = first if GATE_FIRST else second
    value = second if GATE_FIRST else first
    y = gate * tl.sigmoid(gate) * value
    if FP8:
        scale = scale_of(tl.max(tl.abs(y), axis=0))
        tl.store(Y_SCALE + row, scale)
        tl.store(Y + row * WIDTH + column, quantised(y, scale), mask=live)
    else:
        tl.store(Y + row * WIDTH + column, y.to(Y.dtype.element_ty), mask=live)


def tuning(width: int, fp8: bool) -> dict[str, int]:
    """Columns and warps of a program."""
    if fp8:
        return {"BLOCK": power_of_two(width), "num_warps": 16 if width > 8192 else 8 if width > 1024 else 4}
    return {"BLOCK": min(MAX_BLOCK, power_of_two(width)), "num_warps": 4}


def launch(x: Tensor, *, gate_first: bool = True, out: torch.dtype | None = None, **changes: int) -> Tensor | Fp8Rows:
    """`reference`, by one kernel; `changes` to the tuning are for measurements."""
    rows, width = x.shape[0], x.shape[1] // 2
    need_rows(x=x)
    fp8 = out == torch.float8_e4m3fn
    made = room(x, width) if fp8 else torch.empty(rows, width, dtype=out or x.dtype, device=x.device)
    codes, scale = made if isinstance(made, Fp8Rows) else (made, x)
    options = tuning(width, fp8) | changes
    if rows:
        kernel[(rows, -(-width // options["BLOCK"]))](
            x, codes, scale, WIDTH=width, GATE_FIRST=gate_first, FP8=fp8, **options
        )
    return made
