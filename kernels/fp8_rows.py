"""Rows as float8_e4m3fn codes with one scale each, the row's largest value at 448: the left operand of an fp8 product.

`codes * scale` is the row again; a row of zeros has scale 1. Kernels that end in such rows share `quantised`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import fp8_format
from .fp8_format import Fp8Rows
from .launch import jit, need_columns, power_of_two, tl
from .launch import refusal as launch_refusal

CAPABILITY = (8, 9)  # the first that converts to float8_e4m3fn
MAX_WIDTH = 32768


def refusal(x: Tensor, width: int) -> str:
    """Why no kernel can make rows of `width` codes from x; empty when one can."""
    if width > MAX_WIDTH:
        return f"one program holds a whole row, {MAX_WIDTH} columns at most"
    if torch.version.hip is not None:
        return "ROCm has another float8"
    return launch_refusal(x, CAPABILITY)


def room(x: Tensor, width: int) -> Fp8Rows:
    """Rows that a kernel will fill, one for each of x. Raises `ValueError` where none could."""
    if reason := refusal(x, width):
        raise ValueError(
            f"{len(x)} rows of {width} in float8_e4m3fn: {reason}; take the torch reference or another dtype"
        )
    return fp8_format.empty(len(x), width, x.device)


reference = fp8_format.quantised


@jit
def scale_of(largest):
    """The scale of a row whose largest absolute value is given."""
    return tl.where(largest > 0.0, tl.div_rn(largest, 448.0), 1.0)


@jit
def quantised(y, scale):
    """y / scale as codes. One reciprocal per row and a correction by the remainder round the quotient as a division does."""
    inverse = 1.0 / tl.maximum(scale, 1.1754944e-38)
    quotient = y * inverse
    quotient = tl.fma(tl.fma(-quotient, scale, y), inverse, quotient)
    return quotient.to(tl.float8e4nv)


@jit
def kernel(X, CODES, SCALES, X_STRIDE, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    live = column < WIDTH
    x = tl.load(X + row * X_STRIDE + column, mask=live, other=0.0).to(tl.float32)
    scale = scale_of(tl.max(tl.abs(x), axis=0))
    tl.store(CODES + row * WIDTH + column, quantised(x, scale), mask=live)
    tl.store(SCALES + row, scale)


def tuning(width: int) -> dict[str, int]:
    """Warps for a row of `width` columns."""
    return {"num_warps": 16 if width > 8192 else 8 if width > 1024 else 4}


def launch(x: Tensor, **changes: int) -> Fp8Rows:
    """`reference`, by one kernel; rows of x may have any stride. `changes` to the tuning are for measurements."""
    rows, width = x.shape
    need_columns(x=x)
    out = room(x, width)
    if rows:
        options = tuning(width) | changes
        kernel[(rows,)](x, *out, x.stride(0), WIDTH=width, BLOCK=power_of_two(width), **options)
    return out
