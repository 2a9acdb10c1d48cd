"""Residual add with a scale per channel, then RMSNorm: one pass over the residual stream instead of five.

`x[r] += branch[source[r]] * scale` in place, float32, and `y[r] = rms_norm(x[r]) * weight` from the unrounded sum.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .launch import jit, power_of_two, tl


def reference(
    x: Tensor,
    weight: Tensor,
    eps: float,
    dtype: torch.dtype,
    branch: Tensor | None = None,
    scale: Tensor | None = None,
    source: Tensor | None = None,
) -> Tensor:
    """x [rows, width] float32, changed in place; weight and scale [width] float32; branch [rows, width], any dtype.

    `source` [rows] int32 names the branch row of every row, its own without. Returns y [rows, width] in `dtype`;
    without a branch only the norm is taken.
    """
    if branch is not None and scale is not None:
        moved = branch if source is None else branch.index_select(0, source.long())
        x.addcmul_(moved.float(), scale)
    return F.rms_norm(x, x.shape[-1:], weight, eps).to(dtype)


@jit
def kernel(X, BRANCH, SCALE, SOURCE, WEIGHT, Y, EPS, WIDTH: tl.constexpr, BLOCK: tl.constexpr, MODE: tl.constexpr):
    """One program per row. MODE 0: norm only, 1: branch in the order of x, 2: branch rows named by SOURCE."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    live = column < WIDTH
    x = tl.load(X + row * WIDTH + column, mask=live, other=0.0)
    if MODE > 0:
        origin = row
        if MODE == 2:
            origin = tl.load(SOURCE + row).to(tl.int64)
        branch = tl.load(BRANCH + origin * WIDTH + column, mask=live, other=0.0).to(tl.float32)
        x += branch * tl.load(SCALE + column, mask=live, other=0.0)
        tl.store(X + row * WIDTH + column, x, mask=live)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / WIDTH + EPS)
    y = x * inverse * tl.load(WEIGHT + column, mask=live, other=0.0)
    tl.store(Y + row * WIDTH + column, y.to(Y.dtype.element_ty), mask=live)


def launch(
    x: Tensor,
    weight: Tensor,
    eps: float,
    dtype: torch.dtype,
    branch: Tensor | None = None,
    scale: Tensor | None = None,
    source: Tensor | None = None,
) -> Tensor:
    """`reference`, by one kernel."""
    rows, width = x.shape
    y = torch.empty(rows, width, dtype=dtype, device=x.device)
    mode = 0 if branch is None else 1 if source is None else 2
    # a pointer that is not read still needs a tensor
    kernel[(rows,)](
        x,
        x if branch is None else branch,
        weight if scale is None else scale,
        x if source is None else source,
        weight,
        y,
        eps,
        WIDTH=width,
        BLOCK=power_of_two(width),
        MODE=mode,
        num_warps=8 if width > 1024 else 4,
    )
    return y
