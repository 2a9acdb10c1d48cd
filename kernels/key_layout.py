"""Where the keys of a head lie for a kernel: rows of heads beside or below one another, read row by row or by tensor maps."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .launch import need_columns, power_of_two

BLOCK = 64  # rows of a query or key block; a tile has one, or a few of them


def map_steps(x: Tensor) -> tuple[int, int]:
    """Rows and columns from head to head of the matrix that a tensor map sees: heads beside or below one another."""
    rows, _, width = x.shape
    return (0, width) if x.stride(1) == width else (rows, 0)


def mapped(k: Tensor, v: Tensor, wanted: bool) -> tuple[tuple[Any, Any], int]:
    """k and v [rows, heads, d] as tensor maps that hand out BLOCK rows of one head, zeros past the last; 1 where that is so.

    Needs steps of sixteen bytes, a head of a power of two, and heads that follow one another in a row or row after row.
    """
    rows, heads, width = k.shape
    beside = k.stride(1) == width
    below = k.stride(0) == width and k.stride(1) == rows * width
    even = all(x.data_ptr() % 16 == 0 and x.stride(0) * x.element_size() % 16 == 0 for x in (k, v))
    if not (wanted and even and (beside or below) and width == max(16, power_of_two(width))):
        return (k, v), 0
    from triton.tools.tensor_descriptor import TensorDescriptor

    shape = [rows, heads * width] if beside else [rows * heads, width]
    return tuple(TensorDescriptor(x, shape, [x.stride(0), 1], [BLOCK, width]) for x in (k, v)), 1


def need_layout(q: Tensor, *keys: Tensor, out: Tensor) -> None:
    """Raises `ValueError` for what a kernel would misread: channels apart, keys and values of several layouts."""
    need_columns(q=q, **dict(zip(("k", "v", "k2", "v2"), keys, strict=False)))
    if len({x.stride() for x in keys}) > 1:
        raise ValueError(
            f"k and v have strides {', '.join(str(x.stride()) for x in keys)}, and a kernel needs the same; "
            "call .contiguous() on them first"
        )
    if out.stride(2) != 1 or out.stride(1) != out.shape[2]:
        raise ValueError(
            f"out {tuple(out.shape)} has strides {out.stride()}, and a kernel writes whole rows; make it contiguous"
        )
