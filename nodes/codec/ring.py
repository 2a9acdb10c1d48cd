"""The bounded memory of the causal ViT decoder: a ring of keys and values per layer, and attention over it.

A key is rotated once, when it is written, and never moved: slots are overwritten in place, pair after pair. After a
pair is written the ring holds exactly what the pair may see, so attention needs no mask: every window is a segment of
its queries and the filled part of its keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.dispatch import SegmentAttention
from ...kernels.segments import Segments
from .vit import CausalViT, ViTConfig
from .windows import Windows


@dataclass(frozen=True)
class Call:
    """One pass through the network: where its latents stand in time and in the ring, and how much of it is filled."""

    clock: int  # absolute index of the first latent
    suffix_clock: int
    slots: tuple[int, ...]  # one per latent
    used: int  # slots filled, this call included; they are always the first ones
    restore: int | None = None  # a slot whose content comes back after the pass


def ring_bytes(config: ViTConfig, grid: tuple[int, int], itemsize: int) -> int:
    """Bytes of the ring, whatever the length of the stream.

    `2 * itemsize * hidden * sum over layers of (6 * h * w + suffix * windows of the layer)`: at 1344x768 in bf16
    4.78 GB for the released decoder.
    """
    rows = [Windows(grid, config.window, shift, config.suffix).rows for shift in (0, config.window // 2)]
    return 2 * itemsize * config.hidden * sum(rows[layer % 2] for layer in range(config.layers))


class Ring:
    """Keys and values of the last six latents: per layer [2, rows, heads, head_dim], rows as in `Windows`."""

    def __init__(
        self, network: CausalViT, windows: tuple[Windows, ...], device: torch.device, attention: SegmentAttention
    ) -> None:
        config, dtype = network.config, network.compute_dtype
        self.windows, self._device, self._attention = windows, device, attention
        # zeros, because a hidden row still meets a probability of zero
        self.pools = [
            torch.zeros(2, windows[layer % 2].rows, config.heads, config.head_dim, dtype=dtype, device=device)
            for layer in range(config.layers)
        ]
        self.suffix_rows = [w.suffix_rows().to(device) for w in windows]
        self._slot_rows: dict[tuple[int, ...], list[Tensor]] = {}
        self._segments: dict[tuple[int, int], list[Segments]] = {}
        self._hidden: dict[int, list[Tensor]] = {}

    @property
    def bytes(self) -> int:
        return sum(pool.untyped_storage().nbytes() for pool in self.pools)

    def rows(self, slots: tuple[int, ...]) -> list[Tensor]:
        """Ring rows of a chunk in `slots`, in window order, for plain and shifted layers."""
        if slots not in self._slot_rows:
            self._slot_rows[slots] = [w.slot_rows(slots).to(self._device) for w in self.windows]
        return self._slot_rows[slots]

    def segments(self, latents: int, used: int) -> list[Segments]:
        """The windows for attention, for plain and shifted layers."""
        if (latents, used) not in self._segments:
            self._segments[latents, used] = [w.segments(latents, used, self._device) for w in self.windows]
        return self._segments[latents, used]

    def read(self, layer: int, slots: tuple[int, ...]) -> Tensor:
        """Keys and values in `slots`, in window order: [2, len(slots) * h * w, heads, head_dim]."""
        return self.pools[layer].index_select(1, self.rows(slots)[layer % 2])

    def attend(self, call: Call, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the new keys and values, then attend; tensors [tokens + suffix, heads, head_dim] in window order."""
        kind, pool = layer % 2, self.pools[layer]
        back = None if call.restore is None else (call.restore,)
        kept = None if back is None else self.read(layer, back)
        tokens = len(q) - self.windows[kind].suffix
        for store, new in zip(pool, (k, v), strict=True):
            store.index_copy_(0, self.rows(call.slots)[kind], new[:tokens])
            store.index_copy_(0, self.suffix_rows[kind], new[tokens:].repeat(len(self.windows[kind].members), 1, 1))
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        segments = self.segments(len(call.slots), call.used)[kind]
        self._attention(q[:tokens], pool[0], pool[1], segments, out[:tokens])
        out[tokens:] = self._attend_everywhere(layer, q[tokens:], call)
        if back is not None and kept is not None:
            pool.index_copy_(1, self.rows(back)[kind], kept)
        return out

    def _attend_everywhere(self, layer: int, q: Tensor, call: Call) -> Tensor:
        """The suffix queries [suffix, heads, head_dim] see every token of the picture once."""
        if call.used not in self._hidden:
            self._hidden[call.used] = [w.hidden_rows(call.used).to(self._device) for w in self.windows]
        keys, values = self.pools[layer].transpose(1, 2)  # [heads, rows, head_dim]
        scores = (q.transpose(0, 1) @ keys.mT).float() * q.shape[-1] ** -0.5
        weights = scores.masked_fill(self._hidden[call.used][layer % 2], float("-inf")).softmax(dim=-1)
        return (weights.to(q.dtype) @ values).transpose(0, 1)
