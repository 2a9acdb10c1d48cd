"""Rows of heads in fp8 back to the compute dtype: `codes * scale`, one scale for the channels of a row and head."""

from __future__ import annotations

import torch
from torch import Tensor

from .fp8_rows import CAPABILITY
from .launch import jit, need_rows, power_of_two, refusal, tl

TUNING = {"HEADS_AT_ONCE": 32, "num_warps": 4}


def reference(codes: Tensor, scale: Tensor, out: Tensor) -> None:
    """codes [rows, heads, d] float8_e4m3fn, scale [rows, heads, 1] bf16; fills out [rows, heads, d], rounded once."""
    torch.mul(codes.to(out.dtype), scale.to(out.dtype), out=out)


@jit
def kernel(CODES, SCALE, OUT, COUNT, WIDTH: tl.constexpr, BLOCK: tl.constexpr, HEADS_AT_ONCE: tl.constexpr):
    """One program per HEADS_AT_ONCE heads, counted over all rows."""
    head = tl.program_id(0).to(tl.int64) * HEADS_AT_ONCE + tl.arange(0, HEADS_AT_ONCE)
    channel = tl.arange(0, BLOCK)
    live = (head < COUNT)[:, None] & (channel < WIDTH)[None, :]
    at = head[:, None] * WIDTH + channel[None, :]
    codes = tl.load(CODES + at, mask=live, other=0.0).to(tl.float32)
    scale = tl.load(SCALE + head, mask=head < COUNT, other=0.0).to(tl.float32)
    tl.store(OUT + at, (codes * scale[:, None]).to(OUT.dtype.element_ty), mask=live)


def runs_on(tensor: Tensor) -> bool:
    """Whether the kernel can run where `tensor` is, which holds a card that knows fp8."""
    return tensor.is_cuda and not refusal(tensor, CAPABILITY)


def launch(codes: Tensor, scale: Tensor, out: Tensor, **changes: int) -> None:
    """`reference`, by one kernel; `changes` to the tuning are for measurements."""
    need_rows(codes=codes, scale=scale, out=out)
    rows, heads, width = codes.shape
    options = TUNING | changes
    if rows:
        grid = (-(-rows * heads // options["HEADS_AT_ONCE"]),)
        kernel[grid](codes, scale, out, rows * heads, WIDTH=width, BLOCK=power_of_two(width), **options)
