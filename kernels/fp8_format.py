"""What rows in fp8 are: float8_e4m3fn codes with one scale each, the row's largest value at 448, and how torch makes them.

`codes * scale` is the row again; a row of zeros has scale 1. The kernel that makes them is `fp8_rows`; this file needs no Triton.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FP8_MAX = 448.0
ROWS_AT_ONCE = 2048  # widened to float32 together


class Fp8Rows(NamedTuple):
    """codes [rows, width] float8_e4m3fn, scale [rows, 1] float32."""

    codes: Tensor
    scale: Tensor


def empty(rows: int, width: int, device: torch.device) -> Fp8Rows:
    """Rows to be filled."""
    codes = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=device)
    return Fp8Rows(codes, torch.empty(rows, 1, dtype=torch.float32, device=device))


def quantised(x: Tensor) -> Fp8Rows:
    """x [rows, width], any float dtype -> its codes and scales."""
    out = empty(x.shape[0], x.shape[1], x.device)
    for start in range(0, x.shape[0], ROWS_AT_ONCE):
        wide = x[start : start + ROWS_AT_ONCE].float()
        largest = wide.abs().amax(dim=-1, keepdim=True)
        # by a tensor: CUDA divides by a Python number as a product with its reciprocal
        one = torch.where(largest > 0, largest / torch.full_like(largest, FP8_MAX), torch.ones_like(largest))
        out.scale[start : start + len(wide)] = one
        out.codes[start : start + len(wide)] = (wide / one).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return out
