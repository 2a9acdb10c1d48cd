"""Mean row of every tile and head, in float32: what Video Sparse Attention ranks tiles by."""

from __future__ import annotations

import torch
from torch import Tensor

from .block_sparse import Spans
from .launch import jit, power_of_two, tl


def reference(x: Tensor, tiles: Spans) -> Tensor:
    """x [rows, heads, d] in tile order -> [heads, tiles, d] float32: sums of float32 over the rows of a tile, by their number."""
    tile = torch.arange(len(tiles.starts), device=x.device).repeat_interleave(tiles.sizes)
    sums = torch.zeros(len(tiles.starts), *x.shape[1:], dtype=torch.float32, device=x.device)
    sums.index_add_(0, tile, x.float())
    return (sums / tiles.sizes[:, None, None]).transpose(0, 1).contiguous()


@jit
def kernel(
    X,
    OUT,
    STARTS,
    SIZES,
    TILES,
    STRIDE,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program per tile and BLOCK columns, ROWS rows at a time."""
    tile = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    size = tl.load(SIZES + tile)
    base = X + tl.load(STARTS + tile).to(tl.int64) * STRIDE
    inside = column < COLUMNS
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, ROWS):
        at = (start + row)[:, None] * STRIDE + column[None, :]
        x = tl.load(base + at, mask=(start + row < size)[:, None] & inside[None, :], other=0.0)
        total += tl.sum(x.to(tl.float32), 0)
    out = ((column // WIDTH).to(tl.int64) * TILES + tile) * WIDTH + column % WIDTH
    tl.store(OUT + out, total / size, mask=inside)


def tuning() -> dict[str, int]:
    """Most columns and rows of a program at a time, and warps."""
    return {"BLOCK": 512, "ROWS": 8, "num_warps": 4}


def launch(x: Tensor, tiles: Spans, **changes: int) -> Tensor:
    """`reference`, by one kernel; `changes` to the tuning are for measurements."""
    heads, width = x.shape[1:]
    if x.stride(2) != 1 or x.stride(1) != width:
        raise ValueError(
            f"x {tuple(x.shape)} has strides {x.stride()}, and a kernel needs the heads of a row contiguous"
        )
    columns, count = heads * width, len(tiles.starts)
    out = torch.empty(heads, count, width, dtype=torch.float32, device=x.device)
    options = tuning() | changes
    options["BLOCK"] = min(options["BLOCK"], power_of_two(columns))
    if count:
        kernel[(count, -(-columns // options["BLOCK"]))](
            x, out, tiles.starts, tiles.sizes, count, x.stride(0), COLUMNS=columns, WIDTH=width, **options
        )
    return out
