"""A layer with an adapter beside it instead of in it: y = W x + s B (A x), for weights that cannot be merged into.

A small change merged into coarse codes is mostly lost to their rounding; beside them it keeps its precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .patches import WeightPatch


class Residual(nn.Module):
    """`layer` plus patches of its weight [out, in], evaluated on the rows that pass through."""

    def __init__(self, layer: nn.Module, patches: Sequence[WeightPatch], dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.spans = [(patch.rows, patch.strength * patch.scale) for patch in patches]
        self.ups = nn.ParameterList(_fixed(patch.value, dtype) for patch in patches)
        self.downs = nn.ParameterList(
            _fixed(patch.down if patch.down is not None else torch.empty(0), dtype) for patch in patches
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        for (rows, scale), up, down in zip(self.spans, self.ups, self.downs, strict=True):
            up, down = up.to(x.device), down.to(x.device)
            change = F.linear(F.linear(x, down) if down.numel() else x, up)
            start, stop = rows or (0, y.shape[-1])
            y[..., start:stop] += scale * change
        return y


def _fixed(tensor: Tensor, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(tensor.to(dtype), requires_grad=False)
