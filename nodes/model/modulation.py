"""Adaptive layer-norm modulation: which shift, scale and gate a row gets, given its time and its modality.

Times are the network's own, t = 1 - sigma, not scaled: 0 is pure noise, 1 is clean.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import MODALITIES


class Modulation(Protocol):
    """Modulation vectors of one forward pass over rows at M distinct times."""

    @property
    def times(self) -> tuple[float, ...]:
        """The M times, ascending, each exactly a float32 value."""

    def block(self, index: int) -> Tensor:
        """[3M, 6, hidden]; row time_index * 3 + tag; slots shift, scale, gate of the attention, then of the MLP."""

    def final(self) -> Tensor:
        """[M, 2, hidden]; row time_index; slots shift, scale."""


def canonical_time(time: float) -> float:
    """`time` rounded to float32, with -0.0 made 0.0: two times are the same time when these are equal."""
    if not math.isfinite(time):
        raise ValueError(f"time {time} was asked for; a time is a finite number from 0 to 1. Check the time grid.")
    return struct.unpack("<f", struct.pack("<f", time))[0] + 0.0


def distinct_times(times: Iterable[float]) -> tuple[float, ...]:
    """The sorted distinct float32 values of `times`; a row's time_index counts in this order."""
    return tuple(sorted({canonical_time(time) for time in times}))


def modulation_rows(time_index: Tensor, tags: Tensor) -> Tensor:
    """Table row of every packed row, [..., S] long; tag -1 (filler rows) counts as video."""
    return time_index * MODALITIES + tags.clamp(min=0)


def time_vector(
    times: Sequence[float], freq_dim: int, proj_in: Callable, proj_out: Callable, device: torch.device
) -> Tensor:
    """What every AdaLN projection reads: silu of the embedded times, float32 [M, time_dim].

    Sinusoids of the unscaled time, cosines first, frequencies 10000^(-j / (freq_dim / 2)), then a two-layer MLP. The
    last SiLU belongs to the AdaLN projections; it is done here because it must come before the cast to their dtype.
    """
    half = freq_dim // 2
    exponent = -math.log(10000.0) * torch.arange(half, dtype=torch.float32, device=device)
    angles = torch.tensor(times, dtype=torch.float32, device=device)[:, None] * torch.exp(exponent / half)
    features = torch.cat([angles.cos(), angles.sin()], dim=-1)
    return F.silu(proj_out(F.silu(proj_in(features))))


def curve_coordinates(times: Sequence[float], table: Tensor) -> Tensor:
    """What the projections of a curve checkpoint read: float32 [M, k], linear between the G >= 2 rows of `table` [G, k].

    The rows lie evenly over the times from 0 to 1; a time outside takes the nearest end. ComfyUI's form: no SiLU follows.
    """
    table = table.float()
    places = torch.tensor(times, dtype=torch.float32, device=table.device).clamp(0.0, 1.0) * (len(table) - 1)
    lower = places.floor().long().clamp(max=len(table) - 2)
    return torch.lerp(table[lower], table[lower + 1], (places - lower)[:, None])


class TimeMLP(nn.Module):
    """The two float32 layers of `time_embedder`."""

    def __init__(self, freq_dim: int, hidden: int, out: int, *, device: torch.device | None, operations) -> None:
        super().__init__()
        self.freq_dim = freq_dim
        self.proj_in = operations.Linear(freq_dim, hidden, bias=True, device=device, dtype=torch.float32)
        self.proj_out = operations.Linear(hidden, out, bias=True, device=device, dtype=torch.float32)

    def forward(self, times: Sequence[float], device: torch.device) -> Tensor:
        with torch.autocast(device.type, enabled=False):  # float32 even when training under autocast
            return time_vector(times, self.freq_dim, self.proj_in, self.proj_out, device)


class AdaLNProjection(nn.Module):
    """One layer's projection of the time vector, [M, time_dim] -> [M * modalities, slots, hidden]."""

    def __init__(self, time_dim: int, hidden: int, *, modalities: int, slots: int, device, dtype, operations) -> None:
        super().__init__()
        self.slots = slots
        self.linear = operations.Linear(time_dim, modalities * slots * hidden, bias=True, device=device, dtype=dtype)
        self.hidden = hidden

    def forward(self, vector: Tensor) -> Tensor:
        return self.linear(vector).view(-1, self.slots, self.hidden)


class ProjectedModulation:
    """Modulation straight from the full AdaLN weights, one projection per block when the block asks."""

    def __init__(self, times: tuple[float, ...], vector: Tensor, blocks: Sequence[nn.Module], final: nn.Module) -> None:
        self.times = times
        self._vector = vector
        self._blocks = blocks
        self._final = final

    def block(self, index: int) -> Tensor:
        return self._blocks[index](self._vector)

    def final(self) -> Tensor:
        return self._final(self._vector)
