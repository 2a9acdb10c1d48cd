"""The prefix bank in fp8: half the bytes, one scale per row and head, widened one layer at a time when it is used.

Keys have unit size per channel before rotation and values are smooth, so e4m3 with a scale of its own for every 128
numbers loses little; what it loses is measured in the tests. Scales are bf16 values, so code times scale rounds once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

FP8_MAX = 448.0
ROWS_AT_ONCE = 1024  # widened to float32 together


@dataclass(frozen=True, eq=False)
class Fp8Rows:
    """Rows [rows, heads, head_dim] as float8_e4m3fn codes and bf16 scales [rows, heads, 1]."""

    codes: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Fp8Rows:
        """Quantise; the largest number of every row and head comes to lie at or just below 448."""
        codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
        scale = torch.empty(*x.shape[:-1], 1, dtype=torch.bfloat16, device=x.device)
        for start in range(0, x.shape[0], ROWS_AT_ONCE):
            wide = x[start : start + ROWS_AT_ONCE].float()
            one = _up_to_bfloat16(wide.abs().amax(dim=-1, keepdim=True) / FP8_MAX)
            scale[start : start + len(wide)] = one
            codes[start : start + len(wide)] = (wide / one.float()).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        return cls(codes, scale)

    def into(self, target: Tensor) -> None:
        """Write code * scale into `target`, rounded to its dtype."""
        torch.mul(self.codes.to(target.dtype), self.scale.to(target.dtype), out=target)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes


def _up_to_bfloat16(scale: Tensor) -> Tensor:
    """The smallest bf16 value at or above each positive float32; 1 for 0."""
    bits = scale.view(torch.int32)
    up = ((bits + 0xFFFF) >> 16 << 16).view(torch.float32).to(torch.bfloat16)
    return torch.where(scale > 0, up, torch.ones_like(up))


@dataclass
class Fp8Recorder:
    """Takes the keys and values of a prefix-only forward, layer by layer, and keeps them in fp8."""

    keys: list[Fp8Rows] = field(default_factory=list)
    values: list[Fp8Rows] = field(default_factory=list)

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store `[rows, heads, head_dim]` of `layer`; the prefix itself attends the unquantised ones."""
        if layer != len(self.keys):
            raise RuntimeError(f"prefix layer {layer} arrived after {len(self.keys)} layers; layers must come in order")
        self.keys.append(Fp8Rows.of(key))
        self.values.append(Fp8Rows.of(value))
        return key, value


@dataclass(frozen=True, eq=False)
class Fp8StepBank:
    """The finished prefix of one denoising step in fp8; moving rows attend `[prefix | moving]` as with the plain one."""

    keys: tuple[Fp8Rows, ...]
    values: tuple[Fp8Rows, ...]

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return _joined(self.keys[layer], key), _joined(self.values[layer], value)

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in (*self.keys, *self.values))


def _joined(prefix: Fp8Rows, moving: Tensor) -> Tensor:
    rows = prefix.codes.shape[0]
    both = moving.new_empty(rows + moving.shape[0], *moving.shape[1:])
    prefix.into(both[:rows])
    both[rows:] = moving
    return both
