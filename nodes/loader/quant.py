"""Quantised weights: what codes and scales mean, as formulas.

A linear weight [out, in] may be stored as small codes with scales beside them. Whatever a file calls them, here they have
one form, whose tensors all begin with the `out` rows: so rows can be permuted and joined like those of a plain weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

FP8, INT8, NVFP4, MXFP8 = "fp8", "int8", "nvfp4", "mxfp8"
NVFP4_GROUP, MXFP8_GROUP = 16, 32  # columns that share a block scale
FP8_MAX = 448.0  # largest float8_e4m3fn
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_ROWS_AT_ONCE = 2048  # widened to float32 together


@dataclass(frozen=True, eq=False)
class QuantWeight:
    """One linear weight [out, in] in codes.

    Attributes:
        kind: "fp8", "int8", "nvfp4" or "mxfp8".
        codes: fp8 or int8 [out, in]; nvfp4 uint8 [out, in / 2] with the even column in the low nibble.
        scale: float32 [out, 1].
        blocks: nvfp4 float8_e4m3fn [out, in / 16]; mxfp8 uint8 exponents [out, in / 32]; else None.
        columns: float32 [in], factors on the input that the file keeps apart; None when there are none.
        rotation: size of the Hadamard groups the columns were rotated by ("convrot"), 0 for none.
        exact_matmul: the file asks for a matrix product in full precision.
    """

    kind: str
    codes: Tensor
    scale: Tensor
    blocks: Tensor | None = None
    columns: Tensor | None = None
    rotation: int = 0
    exact_matmul: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in] of the weight that the codes stand for."""
        return self.codes.shape[0], self.codes.shape[1] * (2 if self.kind == NVFP4 else 1)

    @property
    def nbytes(self) -> int:
        parts = (self.codes, self.scale, self.blocks, self.columns)
        return sum(part.nbytes for part in parts if part is not None)

    def rows(self, start: int, stop: int) -> QuantWeight:
        """Some of the rows, as views."""
        blocks = None if self.blocks is None else self.blocks[start:stop]
        return replace(self, codes=self.codes[start:stop], scale=self.scale[start:stop], blocks=blocks)


def arrange(parts: Sequence[QuantWeight], rows: Callable[[Sequence[Tensor]], Tensor]) -> QuantWeight:
    """Join and permute rows of quantised weights with the row operation of a plain weight.

    Raises ValueError when the parts are not of one kind and rotation, or scale their inputs differently.
    """
    first = parts[0]
    alike = all(
        (part.kind, part.rotation, part.codes.dtype) == (first.kind, first.rotation, first.codes.dtype)
        for part in parts
    )
    columns = [part.columns for part in parts]
    same = all(one is None for one in columns) or (
        all(one is not None for one in columns) and all(torch.equal(one, columns[0]) for one in columns)  # type: ignore[arg-type]
    )
    if not (alike and same):
        kinds = ", ".join(
            sorted({f"{part.kind}{f' rotated by {part.rotation}' if part.rotation else ''}" for part in parts})
        )
        raise ValueError(
            f"tensors that make one weight are quantised differently ({kinds}); one kind is needed. "
            "Use the unquantised file, or one quantised throughout in one way."
        )

    def apply(tensors: Sequence[Tensor]) -> Tensor:
        if tensors[0].dtype.is_floating_point and tensors[0].dtype.itemsize == 1:  # fp8 has no cat on some devices
            return rows([tensor.view(torch.uint8) for tensor in tensors]).view(tensors[0].dtype)
        return rows(tensors)

    return replace(
        first,
        codes=apply([part.codes for part in parts]),
        scale=apply([part.scale for part in parts]),
        blocks=None if first.blocks is None else apply([part.blocks for part in parts if part.blocks is not None]),
        exact_matmul=any(part.exact_matmul for part in parts),
    )


# ------------------------------------------------------------------------------------------------------------- formulas


def dequantise(weight: QuantWeight, dtype: torch.dtype = torch.float32, *, folded: bool = True) -> Tensor:
    """The weight [out, in]: float32 by its formula, then rounded once to `dtype`.

    fp8 and int8: code * scale. nvfp4: e2m1(code) * block scale * scale. mxfp8: code * 2^(exponent - 127). A rotated weight
    is turned back. With `folded`, input factors are multiplied in. Widened a few thousand rows at a time.
    """
    out, columns = weight.shape
    dense = torch.empty(out, columns, dtype=dtype, device=weight.codes.device)
    for start in range(0, out, _ROWS_AT_ONCE):
        part = weight.rows(start, min(start + _ROWS_AT_ONCE, out))
        values = _FORMULAS[weight.kind](part)
        if weight.rotation:
            values = _turn_back(values, weight.rotation)
        values = values * part.scale
        if folded and weight.columns is not None:
            values = values * weight.columns
        dense[start : start + part.codes.shape[0]] = values.to(dtype)
    return dense


def _plain(weight: QuantWeight) -> Tensor:
    return weight.codes.to(torch.float32)


def _nvfp4(weight: QuantWeight) -> Tensor:
    """e2m1 * block scale is exact in float32: at most two and four significant bits."""
    assert weight.blocks is not None
    values = unpack_e2m1(weight.codes)
    return (values.unflatten(1, (-1, NVFP4_GROUP)) * weight.blocks.to(torch.float32).unsqueeze(-1)).flatten(1)


def _mxfp8(weight: QuantWeight) -> Tensor:
    assert weight.blocks is not None
    exponents = weight.blocks.to(torch.int32) - 127
    powers = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)
    return (weight.codes.to(torch.float32).unflatten(1, (-1, MXFP8_GROUP)) * powers.unsqueeze(-1)).flatten(1)


_FORMULAS = {FP8: _plain, INT8: _plain, NVFP4: _nvfp4, MXFP8: _mxfp8}


def unpack_e2m1(packed: Tensor) -> Tensor:
    """uint8 [out, n], the low nibble first, to the float32 values [out, 2 n] of the 4-bit codes."""
    table = torch.tensor(E2M1, dtype=torch.float32, device=packed.device)
    return table[torch.stack([packed & 0x0F, packed >> 4], dim=-1).flatten(-2).long()]


def swap_nibbles(packed: Tensor) -> Tensor:
    """Exchange the two 4-bit codes of every byte; its own inverse."""
    return (packed << 4) | (packed >> 4)


@lru_cache(maxsize=8)
def hadamard_signs(size: int) -> Tensor:
    """The regular Hadamard matrix of a power of 4 as its signs, float32 [size, size], symmetric; / sqrt(size) it is orthogonal."""
    if size < 4 or size & (size - 1) or size.bit_length() % 2 == 0:
        raise ValueError(f"rotation groups of {size} columns arrived; a power of 4 is needed. Use the unrotated file.")
    four = torch.tensor([[1.0, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]])
    matrix = four
    while len(matrix) < size:
        matrix = torch.kron(matrix, four)
    return matrix


def _turn_back(codes: Tensor, size: int) -> Tensor:
    """Integer codes [out, in] times the Hadamard matrix per group. Whole numbers below 2^24: exact in float32."""
    signs = hadamard_signs(size).to(codes.device)
    return (codes.unflatten(1, (-1, size)) @ signs).flatten(1) / size**0.5


# -------------------------------------------------------------------------------------------- the order of block scales


def _tiled_offsets(rows: int, columns: int, device: torch.device) -> tuple[Tensor, int]:
    """Where the scale (r, c) of a [rows, columns] matrix lies in tiles of 128 x 4, and how many places there are."""
    wide = -(-columns // 4)
    r = torch.arange(rows, device=device)[:, None]
    c = torch.arange(columns, device=device)[None]
    tile = (r // 128) * wide + c // 4
    return tile * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + c % 4, -(-rows // 128) * wide * 512


def untile_scales(stored: Tensor, rows: int, columns: int) -> Tensor:
    """Block scales out of 128 x 4 tiles (as cuBLAS wants them): [rows, columns] uint8."""
    offsets, places = _tiled_offsets(rows, columns, stored.device)
    flat = stored.contiguous().view(torch.uint8).flatten()
    if flat.numel() != places:
        raise ValueError(
            f"{flat.numel():,} tiled block scales arrived for {rows} rows of {columns}; {places:,} are needed. "
            "Download the file again."
        )
    return flat[offsets]


def tile_scales(scales: Tensor) -> Tensor:
    """The inverse of `untile_scales`: uint8 [rows, columns] into zero-padded tiles, flat."""
    offsets, places = _tiled_offsets(scales.shape[0], scales.shape[1], scales.device)
    flat = torch.zeros(places, dtype=torch.uint8, device=scales.device)
    flat[offsets.flatten()] = scales.view(torch.uint8).flatten()
    return flat


# ----------------------------------------------------------------------------------------------------- quantise on load


def quantise_fp8(weight: Tensor) -> QuantWeight:
    """A plain weight [out, in] as float8_e4m3fn with one scale per row, the row's largest value at 448."""
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    scale = torch.empty(weight.shape[0], 1, dtype=torch.float32, device=weight.device)
    for start in range(0, weight.shape[0], _ROWS_AT_ONCE):
        part = weight[start : start + _ROWS_AT_ONCE].float()
        largest = part.abs().amax(dim=1, keepdim=True)
        one = torch.where(largest > 0, largest / FP8_MAX, torch.ones_like(largest))
        scale[start : start + len(part)] = one
        codes[start : start + len(part)] = (part / one).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return QuantWeight(FP8, codes, scale)
