"""From the tensors a file keeps for one linear weight to codes and scales in the one form of `quant`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .quant import FP8, INT8, MXFP8, NVFP4, QuantWeight, swap_nibbles, untile_scales


@dataclass(frozen=True)
class Format:
    """One way to store a linear weight `P`.

    Attributes:
        name: as shown to people, and the word in ComfyUI's description of a layer where it has one.
        kind: the formula in `quant`.
        dtypes: of the codes, as the header spells them.
        high_first: 4-bit codes with the even column in the high nibble.
        tiled: block scales lie in 128 x 4 tiles.
    """

    name: str
    kind: str
    dtypes: tuple[str, ...]
    high_first: bool = False
    tiled: bool = False


def assemble(form: Format, parts: Mapping[str, Tensor], about: Mapping[str, Any]) -> QuantWeight:
    return _ASSEMBLERS[form.kind](form, parts, about)


def _rowwise(form: Format, parts: Mapping[str, Tensor], about: Mapping[str, Any]) -> QuantWeight:
    """fp8 and int8: one scale, or one per row."""
    codes = parts["codes"]
    rotation = int(about.get("convrot_groupsize", 256)) if about.get("convrot") else 0
    if rotation and codes.shape[1] % rotation:
        raise ValueError(f"its {codes.shape[1]} columns do not divide into rotated groups of {rotation}")
    return QuantWeight(
        form.kind, codes, _row_scale(parts["scale"], codes.shape[0]), None, _columns(parts, codes), rotation
    )


def _nvfp4(form: Format, parts: Mapping[str, Tensor], about: Mapping[str, Any]) -> QuantWeight:
    codes = swap_nibbles(parts["codes"]) if form.high_first else parts["codes"]
    blocks = _blocks(form, parts["scale"], codes.shape[0], codes.shape[1] * 2, 16).view(torch.float8_e4m3fn)
    return QuantWeight(NVFP4, codes, _row_scale(parts["scale_2"], codes.shape[0]), blocks, _columns(parts, codes))


def _mxfp8(form: Format, parts: Mapping[str, Tensor], about: Mapping[str, Any]) -> QuantWeight:
    codes = parts["codes"]
    blocks = _blocks(form, parts["scale"], codes.shape[0], codes.shape[1], 32)
    return QuantWeight(MXFP8, codes, torch.ones(codes.shape[0], 1), blocks)


_ASSEMBLERS: Mapping[str, Callable[[Format, Mapping[str, Tensor], Mapping[str, Any]], QuantWeight]] = {
    FP8: _rowwise,
    INT8: _rowwise,
    NVFP4: _nvfp4,
    MXFP8: _mxfp8,
}


def _blocks(form: Format, stored: Tensor, rows: int, columns: int, group: int) -> Tensor:
    if columns % group:
        raise ValueError(f"its {columns} columns do not divide into groups of {group}")
    if form.tiled:
        return untile_scales(stored, rows, columns // group)
    scales = stored.contiguous().view(torch.uint8)
    if tuple(scales.shape) != (rows, columns // group):
        raise ValueError(f"its block scales are {list(scales.shape)} instead of {[rows, columns // group]}")
    return scales


def _row_scale(stored: Tensor, rows: int) -> Tensor:
    """float32 [rows, 1] from a scalar, [rows] or [rows, 1]."""
    flat = stored.to(torch.float32).flatten()
    if flat.numel() not in (1, rows):
        raise ValueError(f"its scale is {list(stored.shape)}, not one value nor one for each of {rows} rows")
    return flat[:, None].expand(rows, 1).contiguous()


def _columns(parts: Mapping[str, Tensor], codes: Tensor) -> Tensor | None:
    return parts["columns"].to(torch.float32).flatten() if "columns" in parts else None
