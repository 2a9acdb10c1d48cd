"""Changes of weights by adapters, and what merging them means: W + strength * (alpha / rank) * up @ down, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LOW_RANK, DIFFERENCE, REPLACEMENT = "low rank", "difference", "replacement"


@dataclass(frozen=True, eq=False)
class WeightPatch:
    """One change of one canonical tensor, or of some of its rows.

    Attributes:
        kind: "low rank", "difference" or "replacement".
        value: the up factor [rows, r]; else what is added or put in place, in the shape of the rows.
        down: the down factor [r, in] of a low-rank change.
        alpha: scale alpha / r of a low-rank change; None is a scale of 1.
        rows: half-open range of the tensor's rows; None for all.
        strength: chosen by the person.
    """

    kind: str
    value: Tensor
    down: Tensor | None = None
    alpha: float | None = None
    rows: tuple[int, int] | None = None
    strength: float = 1.0

    @property
    def scale(self) -> float:
        """Factor on up @ down without the strength."""
        return 1.0 if self.alpha is None or self.down is None else self.alpha / self.down.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rows it changes."""
        return (self.value.shape[0], self.down.shape[1]) if self.down is not None else tuple(self.value.shape)


def merged(weight: Tensor, patches: Sequence[WeightPatch], *, at_once: int = 0) -> Tensor:
    """`weight` with all `patches`, added in float32 and cast to its dtype once; a new tensor.

    `at_once` > 0 widens that many rows at a time, for weights whose float32 copy would be large.
    """
    if not patches:
        return weight
    result = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    step = at_once or max(1, len(weight))
    for start in range(0, len(weight), step):
        stop = min(start + step, len(weight))
        part = weight[start:stop].float()
        part = part.clone() if part.dtype == weight.dtype else part
        for patch in patches:
            _add(part, patch, start, stop)
        result[start:stop] = part
    return result


def added(table: Tensor, vectors: Tensor | None, patches: Sequence[WeightPatch]) -> Tensor:
    """What patches of a projection W add to its finished outputs: float32 `table` [n, out] = vectors W^T + bias.

    `vectors` [n, in] are the inputs the table was made from; None where only a bias is patched.
    """
    result = table.clone()
    for patch in patches:
        start, stop = patch.rows or (0, table.shape[1])
        value = patch.value.float()
        if value.ndim == 2:
            if vectors is None:
                raise ValueError("a weight of finished tables was to be patched without the inputs they were made from")
            value = (vectors if patch.down is None else vectors @ patch.down.float().T * patch.scale) @ value.T
        result[:, start:stop] += patch.strength * value
    return result


def _add(part: Tensor, patch: WeightPatch, start: int, stop: int) -> None:
    """Apply `patch` to `part`, which holds the rows [start, stop) of the tensor."""
    first, last = patch.rows or (0, patch.value.shape[0])
    low, high = max(first, start), min(last, stop)
    if low >= high or not patch.strength:
        return
    rows, value = part[low - start : high - start], patch.value[low - first : high - first].to(part.device).float()
    if patch.kind == REPLACEMENT:
        rows.copy_(value)
    elif patch.down is not None:
        rows += (patch.strength * patch.scale) * torch.mm(value, patch.down.to(part.device).float())
    else:
        rows += patch.strength * value
