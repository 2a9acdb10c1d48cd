"""The prefix bank in fp8: half the bytes, one scale per row and head, widened one layer at a time when it is used.

Keys have unit size per channel before rotation and values are smooth, so e4m3 with a scale of its own for every 128
numbers loses little; what it loses is measured in the tests. Scales are bf16 values, so code times scale rounds once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..model import Stretch
from .bank_forms import Key, cut, new_stretch, tail_rows

FP8_MAX = 448.0
ROWS_AT_ONCE = 1024  # widened to float32 together


@dataclass(frozen=True, eq=False)
class NarrowRows:
    """Rows [rows, heads, head_dim] as float8_e4m3fn codes and bf16 scales [rows, heads, 1]."""

    codes: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor) -> NarrowRows:
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
        from ...kernels import widen_heads

        widen = widen_heads.launch if widen_heads.runs_on(target) else widen_heads.reference
        widen(self.codes, self.scale, target)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes


def _up_to_bfloat16(scale: Tensor) -> Tensor:
    """The smallest bf16 value at or above each positive float32; 1 for 0."""
    bits = scale.view(torch.int32)
    up = ((bits + 0xFFFF) >> 16 << 16).view(torch.float32).to(torch.bfloat16)
    return torch.where(scale > 0, up, torch.ones_like(up))


class Narrow:
    """Banks in fp8. The prefix of the layer at hand is widened in front of its moving rows, in one room for all layers."""

    def __init__(self) -> None:
        self._banks: dict[Key, list[tuple[NarrowRows, NarrowRows]]] = {}
        self._room: Stretch | None = None
        self._taken = 0

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for bank in self._banks.values() for layer in bank for rows in layer)

    def own(self, key: Key, layer: int, like: Tensor) -> Stretch:
        return self._take(0, like)

    def finish(self, key: Key, layer: int) -> Stretch:
        """The prefix itself attends the unquantised keys and values."""
        bank, written = self._banks.setdefault(key, []), cut(self._whole, 0, self._taken)
        bank[layer:] = [(NarrowRows.of(written[0]), NarrowRows.of(written[1]))]
        return written

    def tail(self, key: Key, layer: int, like: Tensor) -> Stretch:
        return self._take(self._prefix(key, layer), like)

    def seen(self, key: Key, layer: int, rows: int) -> tuple[Stretch, ...]:
        prefix = self._prefix(key, layer)
        for narrow, wide in zip(self._banks[key][layer], self._whole, strict=True):
            narrow.into(wide[:prefix])
        return (cut(self._whole, 0, prefix + rows),)

    @property
    def _whole(self) -> Stretch:
        assert self._room is not None  # own or tail came before
        return self._room

    def _prefix(self, key: Key, layer: int) -> int:
        return len(self._banks[key][layer][0].codes)

    def _take(self, start: int, like: Tensor) -> Stretch:
        self._taken = len(like)
        if self._room is None or len(self._room[0]) < start + len(like):
            self._room = None  # let go of the smaller one first
            self._room = new_stretch(tail_rows(start + len(like)), like)
        return cut(self._room, start, len(like))
