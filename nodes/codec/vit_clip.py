"""The causal ViT decoder over whole clips at once: differentiable, for training, and equal to the stream.

All pairs pass a layer together; only attention looks back, over the two pairs before. No ring, keys are concatenated.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import CodecError
from .space import PIXEL_MEAN, PIXEL_STD, frames_to_drop
from .vit import CausalViT, Layout, Rope
from .windows import CACHE_LATENTS, CHUNK_LATENTS


def decode_pairs(network: CausalViT, latents: Tensor, *, clamp: bool = True) -> Tensor:
    """Normalised latents [B, T, 24, h, w] from the start of a stream, T even -> RGB frames float32 [B, F, 3, H, W].

    `clamp=False` keeps values outside [0, 1], where a clamp would stop the gradient.
    """
    count = latents.shape[1]
    if not count or count % CHUNK_LATENTS:
        raise CodecError(f"{count} latents arrived; the parallel decoder needs whole pairs. Drop or repeat the last.")
    layout = Layout(network.config, (latents.shape[3], latents.shape[4]), CHUNK_LATENTS, latents.device)
    tables = [layout.rope(clock, clock) for clock in range(0, count, CHUNK_LATENTS)]
    rope = [
        Rope(torch.stack([t[kind].cos for t in tables]), torch.stack([t[kind].sin for t in tables])) for kind in (0, 1)
    ]
    pairs = latents.unflatten(1, (-1, CHUNK_LATENTS))
    pixels = network(pairs, layout, rope, ClipAttend(layout)).flatten(1, 2)
    pixels = torch.cat([pixels[:, i, frames_to_drop(i) :] for i in range(count)], dim=1)
    mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (PIXEL_MEAN, PIXEL_STD))
    rgb = pixels * std + mean
    return rgb.clamp(0, 1) if clamp else rgb


class ClipAttend:
    """Attention of all pairs of a clip; q, k, v [B, pairs, tokens + suffix, heads, head_dim]."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.stack([self._pair(layer, pair, q, k, v) for pair in range(q.shape[1])], dim=1)

    def _pair(self, layer: int, pair: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        windows = self._layout.windows[layer % 2]
        tokens = q.shape[2] - windows.suffix
        first = max(0, pair - CACHE_LATENTS // CHUNK_LATENTS)
        now, seen = q[:, pair], [kv[:, first : pair + 1, :tokens] for kv in (k, v)]  # [B, pairs seen, tokens, ...]
        suffix = [kv[:, pair, tokens:] for kv in (k, v)]
        out, start = [], 0
        for group in windows.groups:
            queries = CHUNK_LATENTS * group.tokens
            cut = slice(start, start + group.windows * queries)
            keys, values = (
                torch.cat(
                    (
                        past[:, :, cut].unflatten(2, (group.windows, queries)).transpose(1, 2).flatten(2, 3),
                        extra[:, None].expand(-1, group.windows, -1, -1, -1),
                    ),
                    dim=2,
                )
                for past, extra in zip(seen, suffix, strict=True)
            )
            some = now[:, cut].unflatten(1, (group.windows, queries))
            out.append(attention(some, keys, values).flatten(1, 2))
            start = cut.stop
        everything = (torch.cat((past.flatten(1, 2), extra), 1) for past, extra in zip(seen, suffix, strict=True))
        return torch.cat((*out, attention(now[:, tokens:], *everything)), dim=1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention over [..., tokens, heads, head_dim]."""
    q, k, v = (x.transpose(-3, -2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(-3, -2)
