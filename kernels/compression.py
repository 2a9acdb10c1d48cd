"""The compression branch of Video Sparse Attention: attention among the means of all tiles, gated and added to every row.

The gate is a plain linear of the block's input, without activation; only checkpoints trained with it have one.
"""

from __future__ import annotations

from torch import Tensor

from .launch import jit, need_rows, power_of_two, tl


def reference(out: Tensor, gate: Tensor, mixed: Tensor, of_row: Tensor) -> Tensor:
    """`out += gate * mixed[tile of the row]`, in place, in float32 with one rounding.

    out, gate [rows, heads, d] in tile order, mixed [heads, tiles, d] float32, of_row [rows] int32.
    """
    return out.copy_(out.float() + gate.float() * mixed[:, of_row.long()].transpose(0, 1))


@jit
def kernel(
    OUT,
    GATE,
    MIXED,
    OF_ROW,
    TOTAL_ROWS,
    TILES,
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
    tile = tl.load(OF_ROW + row, mask=live, other=0)
    here = live[:, None] & (channel < WIDTH)[None, :]
    at = (row * HEADS + head)[:, None] * WIDTH + channel[None, :]
    mean = (head.to(tl.int64) * TILES + tile)[:, None] * WIDTH + channel[None, :]
    out = tl.load(OUT + at, mask=here, other=0.0).to(tl.float32)
    gate = tl.load(GATE + at, mask=here, other=0.0).to(tl.float32)
    out += gate * tl.load(MIXED + mean, mask=here, other=0.0)
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=here)


def tuning(heads: int) -> dict[str, int]:
    """Rows and heads of a program, and warps."""
    return {"ROWS": 4, "BLOCK_HEADS": min(8, power_of_two(heads)), "num_warps": 4}


def launch(out: Tensor, gate: Tensor, mixed: Tensor, of_row: Tensor, **changes: int) -> Tensor:
    """`reference`, by one kernel; `changes` to the tuning are for measurements."""
    rows, heads, width = out.shape
    need_rows(out=out, gate=gate, mixed=mixed, of_row=of_row)
    options = tuning(heads) | changes
    if rows:
        kernel[(-(-rows // options["ROWS"]), -(-heads // options["BLOCK_HEADS"]))](
            out, gate, mixed, of_row, rows, mixed.shape[1],
            HEADS=heads, WIDTH=width, BLOCK_WIDTH=power_of_two(width), **options,
        )  # fmt: skip
    return out
