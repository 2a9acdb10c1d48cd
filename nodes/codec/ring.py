"""The bounded memory of the causal ViT decoder: a ring of keys and values per layer, and attention over it.

A key is rotated once, when it is written, and never moved: slots are overwritten in place, pair after pair. After a
pair is written the ring holds exactly what the pair may see, so attention needs no mask: windows of equal size are one
batched call, on the filled part of their segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .vit import CausalViT
from .windows import SLOTS, Windows


@dataclass(frozen=True)
class Call:
    """One pass through the network: where its latents stand in time and in the ring, and how much of it is filled."""

    clock: int  # absolute index of the first latent
    suffix_clock: int
    slots: tuple[int, ...]  # one per latent
    used: int  # slots filled, this call included; they are always the first ones
    restore: int | None = None  # a slot whose content comes back after the pass


class Ring:
    """Keys and values of the last six latents.

    Per layer [2, rows, heads, head_dim], rows as in `Windows`. Bytes, whatever the length of the stream:
    `2 * itemsize * hidden * sum over layers of (6 * h * w + suffix * windows of the layer)`.
    """

    def __init__(self, network: CausalViT, windows: tuple[Windows, ...], device: torch.device) -> None:
        config, dtype = network.config, network.compute_dtype
        self._windows, self._device = windows, device
        # zeros, because a hidden row still meets a probability of zero
        self._pools = [
            torch.zeros(2, windows[layer % 2].rows, config.heads, config.head_dim, dtype=dtype, device=device)
            for layer in range(config.layers)
        ]
        self._suffix_rows = [w.suffix_rows().to(device) for w in windows]
        self._slot_rows: dict[tuple[int, ...], list[Tensor]] = {}
        self._hidden: dict[int, list[Tensor]] = {}

    @property
    def bytes(self) -> int:
        return sum(pool.untyped_storage().nbytes() for pool in self._pools)

    def read(self, layer: int, slots: tuple[int, ...]) -> Tensor:
        """Keys and values in `slots`, in window order: [2, len(slots) * h * w, heads, head_dim]."""
        return self._pools[layer].index_select(1, self._rows(slots, layer))

    def attend(self, call: Call, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the new keys and values, then attend; tensors [tokens + suffix, heads, head_dim] in window order."""
        windows, pool = self._windows[layer % 2], self._pools[layer]
        back = None if call.restore is None else (call.restore,)
        kept = None if back is None else self.read(layer, back)
        tokens = len(q) - windows.suffix
        for store, new in zip(pool, (k, v), strict=True):
            store.index_copy_(0, self._rows(call.slots, layer), new[:tokens])
            store.index_copy_(0, self._suffix_rows[layer % 2], new[tokens:].repeat(len(windows.members), 1, 1))
        out = torch.cat((*attend_in_windows(windows, pool, q, call), self._attend_everywhere(layer, q[tokens:], call)))
        if back is not None and kept is not None:
            pool.index_copy_(1, self._rows(back, layer), kept)
        return out

    def _attend_everywhere(self, layer: int, q: Tensor, call: Call) -> Tensor:
        """The suffix queries [suffix, heads, head_dim] see every token of the picture once."""
        if call.used not in self._hidden:
            self._hidden[call.used] = [w.hidden_rows(call.used).to(self._device) for w in self._windows]
        keys, values = self._pools[layer].transpose(1, 2)  # [heads, rows, head_dim]
        scores = (q.transpose(0, 1) @ keys.mT).float() * q.shape[-1] ** -0.5
        weights = scores.masked_fill(self._hidden[call.used][layer % 2], float("-inf")).softmax(dim=-1)
        return (weights.to(q.dtype) @ values).transpose(0, 1)

    def _rows(self, slots: tuple[int, ...], layer: int) -> Tensor:
        if slots not in self._slot_rows:
            self._slot_rows[slots] = [w.slot_rows(slots).to(self._device) for w in self._windows]
        return self._slot_rows[slots][layer % 2]


def attend_in_windows(windows: Windows, pool: Tensor, q: Tensor, call: Call) -> list[Tensor]:
    """Frame queries against the filled part of their window's segment, one call per group of equal windows."""
    out, token, row = [], 0, 0
    for group in windows.groups:
        queries, segment = len(call.slots) * group.tokens, windows.suffix + SLOTS * group.tokens
        token_stop, row_stop = token + group.windows * queries, row + group.windows * segment
        some = q[token:token_stop].unflatten(0, (group.windows, queries))
        filled = windows.suffix + call.used * group.tokens
        keys, values = pool[:, row:row_stop].unflatten(1, (group.windows, segment))[:, :, :filled].transpose(2, 3)
        mixed = F.scaled_dot_product_attention(some.transpose(1, 2), keys, values)
        out.append(mixed.transpose(1, 2).flatten(0, 1))
        token, row = token_stop, row_stop
    return out
