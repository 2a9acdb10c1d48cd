"""Gated residual add, RMSNorm and modulation by table rows: one pass over the residual stream.

`x[r] += gate[row[r]] * branch[r]` in place, then `y[r] = rms_norm(x[r]) * weight * (1 + scale[row[r]]) + shift[row[r]]`
from the unrounded sum. The gate may be another block's than shift and scale: the end of one block and the start of the
next are then one pass.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import fp8_rows
from .fp8_rows import Fp8Rows, quantised, room, scale_of
from .launch import jit, need_columns, need_rows, power_of_two, tl

ROWS_AT_ONCE = 2048  # widened to float32 together by the reference


def reference(
    x: Tensor,
    weight: Tensor,
    eps: float,
    shift: Tensor,
    scale: Tensor,
    row: Tensor,
    out: torch.dtype,
    *,
    branch: Tensor | None = None,
    gate: Tensor | None = None,
) -> Tensor | Fp8Rows:
    """x [rows, width], with a branch changed in place; weight [width]; shift, scale, gate [table rows, width], any row
    stride; row [rows] int32, valid indices into the tables; branch [rows, width].

    Returns y [rows, width] in `out`; for float8_e4m3fn as codes with a scale per row.
    """
    _together(branch, gate)
    y = torch.empty(x.shape, dtype=torch.float32 if out == torch.float8_e4m3fn else out, device=x.device)
    for start in range(0, len(x), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        wide, at = x[part].float(), row[part].long()
        if branch is not None and gate is not None:
            wide = wide + gate[at].float() * branch[part].float()
            x[part] = wide
        normed = F.rms_norm(wide, wide.shape[-1:], weight.float(), eps)
        y[part] = normed * (1 + scale[at].float()) + shift[at].float()
    return fp8_rows.reference(y) if out == torch.float8_e4m3fn else y


def _together(branch: Tensor | None, gate: Tensor | None) -> None:
    if (branch is None) != (gate is None):
        given, missing = ("gate", "branch") if branch is None else ("branch", "gate")
        raise ValueError(f"a {given} came without a {missing}, and a residual add needs both; pass both or neither")


@jit
def _stream(X, BRANCH, GATE, column, WIDTH: tl.constexpr, ADD: tl.constexpr):
    """Some columns of a row in float32; with ADD after the gated branch, the rounded sum stored."""
    live = column < WIDTH
    x = tl.load(X + column, mask=live, other=0.0).to(tl.float32)
    if ADD:
        branch = tl.load(BRANCH + column, mask=live, other=0.0).to(tl.float32)
        x += branch * tl.load(GATE + column, mask=live, other=0.0).to(tl.float32)
        tl.store(X + column, x.to(X.dtype.element_ty), mask=live)
    return x


@jit
def _modulated(x, inverse, WEIGHT, SHIFT, SCALE, column, WIDTH: tl.constexpr):
    """x normed and modulated; zero in columns past the width."""
    live = column < WIDTH
    weight = tl.load(WEIGHT + column, mask=live, other=0.0).to(tl.float32)
    scale = tl.load(SCALE + column, mask=live, other=0.0).to(tl.float32)
    shift = tl.load(SHIFT + column, mask=live, other=0.0).to(tl.float32)
    return x * inverse * weight * (1.0 + scale) + shift


@jit
def kernel(
    X,
    BRANCH,
    GATE,
    WEIGHT,
    SHIFT,
    SCALE,
    ROW,
    Y,
    Y_SCALE,
    EPS,
    BRANCH_STRIDE,
    GATE_STRIDE,
    SHIFT_STRIDE,
    SCALE_STRIDE,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    ADD: tl.constexpr,
    FP8: tl.constexpr,
):
    """One program per row, held in one to three blocks of columns."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(ROW + row).to(tl.int64)
    X += row * WIDTH
    Y += row * WIDTH
    BRANCH += row * BRANCH_STRIDE
    GATE += at * GATE_STRIDE
    SHIFT += at * SHIFT_STRIDE
    SCALE += at * SCALE_STRIDE
    column0 = tl.arange(0, BLOCK)
    column1 = column0 + BLOCK
    column2 = column1 + BLOCK
    x0 = _stream(X, BRANCH, GATE, column0, WIDTH, ADD)
    squares = x0 * x0
    if PARTS > 1:
        x1 = _stream(X, BRANCH, GATE, column1, WIDTH, ADD)
        squares += x1 * x1
    if PARTS > 2:
        x2 = _stream(X, BRANCH, GATE, column2, WIDTH, ADD)
        squares += x2 * x2
    inverse = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / WIDTH + EPS)
    y0 = _modulated(x0, inverse, WEIGHT, SHIFT, SCALE, column0, WIDTH)
    if PARTS > 1:
        y1 = _modulated(x1, inverse, WEIGHT, SHIFT, SCALE, column1, WIDTH)
    if PARTS > 2:
        y2 = _modulated(x2, inverse, WEIGHT, SHIFT, SCALE, column2, WIDTH)
    if FP8:
        largest = tl.abs(y0)
        if PARTS > 1:
            largest = tl.maximum(largest, tl.abs(y1))
        if PARTS > 2:
            largest = tl.maximum(largest, tl.abs(y2))
        y_scale = scale_of(tl.max(largest, axis=0))
        tl.store(Y_SCALE + row, y_scale)
        tl.store(Y + column0, quantised(y0, y_scale), mask=column0 < WIDTH)
        if PARTS > 1:
            tl.store(Y + column1, quantised(y1, y_scale), mask=column1 < WIDTH)
        if PARTS > 2:
            tl.store(Y + column2, quantised(y2, y_scale), mask=column2 < WIDTH)
    else:
        tl.store(Y + column0, y0.to(Y.dtype.element_ty), mask=column0 < WIDTH)
        if PARTS > 1:
            tl.store(Y + column1, y1.to(Y.dtype.element_ty), mask=column1 < WIDTH)
        if PARTS > 2:
            tl.store(Y + column2, y2.to(Y.dtype.element_ty), mask=column2 < WIDTH)


def blocks(width: int) -> dict[str, int]:
    """Blocks of columns that waste the fewest lanes: 5376 columns are three of 2048 and not one of 8192."""
    block, parts = power_of_two(width), 1
    for count in (2, 3):
        smaller = power_of_two(-(-width // count))
        if smaller >= 256 and smaller * count < block * parts:
            block, parts = smaller, count
    return {"BLOCK": block, "PARTS": parts}


def tuning(width: int) -> dict[str, int]:
    """Blocks and warps for a row of `width` columns."""
    return blocks(width) | {"num_warps": 8 if width > 1024 else 4}


def launch(
    x: Tensor,
    weight: Tensor,
    eps: float,
    shift: Tensor,
    scale: Tensor,
    row: Tensor,
    out: torch.dtype,
    *,
    branch: Tensor | None = None,
    gate: Tensor | None = None,
    **changes: int,
) -> Tensor | Fp8Rows:
    """`reference`, by one kernel; `changes` to the tuning are for measurements."""
    rows, width = x.shape
    _together(branch, gate)
    need_rows(x=x, weight=weight, row=row)
    need_columns(branch=branch, gate=gate, shift=shift, scale=scale)
    fp8 = out == torch.float8_e4m3fn
    made = room(x, width) if fp8 else torch.empty(rows, width, dtype=out, device=x.device)
    codes, y_scale = made if isinstance(made, Fp8Rows) else (made, row)
    add = branch is not None and gate is not None
    if rows:
        # a pointer that is not read still needs a tensor
        kernel[(rows,)](
            x,
            branch if add else x,
            gate if add else weight,
            weight,
            shift,
            scale,
            row,
            codes,
            y_scale,
            eps,
            branch.stride(0) if branch is not None else 0,
            gate.stride(0) if gate is not None else 0,
            shift.stride(0),
            scale.stride(0),
            WIDTH=width,
            ADD=add,
            FP8=fp8,
            **(tuning(width) | changes),
        )
    return made
