"""The prefix bank: per denoising step, the keys and values of the rows that never change after chunk 1.

Prefix rows attend only to each other and their inputs are frozen (text, picture, sink with its noise), so their keys and
values are computed once per step and every later chunk only runs its moving rows against them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .bank_fp8 import Fp8Recorder, Fp8StepBank


@dataclass
class LayerRecorder:
    """Takes the keys and values of a prefix-only forward, layer by layer."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store `[rows, heads, head_dim]` of `layer`; the prefix attends itself only."""
        if layer != len(self.keys):
            raise RuntimeError(f"prefix layer {layer} arrived after {len(self.keys)} layers; layers must come in order")
        self.keys.append(key)
        self.values.append(value.clone())  # a view of the layer's whole qkv output, which must not stay in memory
        return key, value


@dataclass(frozen=True)
class StepBank:
    """The finished prefix of one denoising step; moving rows attend `[prefix | moving]`."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([self.keys[layer], key]), torch.cat([self.values[layer], value])

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


class PrefixBank:
    """One step bank per (branch, step); filled on demand and counted, because a prefill costs a full prefix forward.

    With `fp8` the banks take half the bytes and are no longer exact.
    """

    def __init__(self, fp8: bool = False) -> None:
        self._steps: dict[tuple[str, int], StepBank | Fp8StepBank] = {}
        self._fp8 = fp8
        self.prefills = 0

    def get(self, branch: str, step: int) -> StepBank | Fp8StepBank | None:
        return self._steps.get((branch, step))

    def recorder(self) -> LayerRecorder | Fp8Recorder:
        """What takes the keys and values of the prefix-only forward."""
        return Fp8Recorder() if self._fp8 else LayerRecorder()

    def store(self, branch: str, step: int, recorder: LayerRecorder | Fp8Recorder) -> StepBank | Fp8StepBank:
        if isinstance(recorder, Fp8Recorder):
            bank: StepBank | Fp8StepBank = Fp8StepBank(tuple(recorder.keys), tuple(recorder.values))
        else:
            bank = StepBank(tuple(recorder.keys), tuple(recorder.values))
        self._steps[branch, step] = bank
        self.prefills += 1
        return bank

    @property
    def nbytes(self) -> int:
        return sum(bank.nbytes for bank in self._steps.values())
