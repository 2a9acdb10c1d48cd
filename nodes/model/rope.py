"""Three-axis rotary position embedding: time, height and width share one set of frequencies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Rope:
    """Cosine and sine of every row's angles, each [..., rows, 3 * rope_freqs], ordered time, height, width."""

    cos: Tensor
    sin: Tensor

    def __getitem__(self, rows: slice | Tensor) -> Rope:
        """The rotation of some of the rows, by slice or index."""
        return Rope(self.cos[..., rows, :], self.sin[..., rows, :])


def inverse_frequencies(count: int, theta: float, device: torch.device | None = None) -> Tensor:
    """theta^(-2i / 2count) for i = 0..count-1, float32 [count]. Files without `rope.inv_freq` hold exactly these."""
    exponent = torch.arange(0, 2 * count, 2, dtype=torch.float32, device=device) / (2 * count)
    return 1.0 / theta**exponent


class RotaryEmbedding(nn.Module):
    """Positions to rotations; `inv_freq` is stored in checkpoints and stays float32."""

    inv_freq: Tensor

    def __init__(self, count: int, theta: float, *, device: torch.device | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.compute_dtype = dtype
        self.register_buffer("inv_freq", inverse_frequencies(count, theta, device))

    def forward(self, positions: Tensor) -> Rope:
        """positions [..., rows, 3] (time, height, width), built in float64; angles are float32 products of float32."""
        positions = positions.to(self.inv_freq.device, torch.float32)
        angles = (positions.unsqueeze(-1) * self.inv_freq).flatten(-2)  # [..., rows, 3 * count]
        return Rope(angles.cos().to(self.compute_dtype), angles.sin().to(self.compute_dtype))


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Turn the leading channels of every head, x [..., rows, heads, head_dim].

    Channel d pairs with channel d + 3 * rope_freqs (split halves, not interleaved); channels beyond both pass through.
    """
    cos, sin = rope.cos.to(x.dtype).unsqueeze(-2), rope.sin.to(x.dtype).unsqueeze(-2)  # one angle for all heads
    half = cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
