"""The ViT decoder as one would first write it, to measure against: a padded canvas per layer, a key mask, a cache that is
joined anew for every layer, frame and suffix tokens apart, bf16 by autocast. Same numbers as the stream in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from ..codec import CausalViT
from ..codec.vit import EPS, Block, Rope, space_angles, time_angles
from ..codec.windows import CACHE_LATENTS, CHUNK_LATENTS, Windows


class PlainDecoder:
    """One stream of pairs on one grid; `autocast` is the dtype of matrix products and attention, None for float32."""

    def __init__(self, network: CausalViT, grid: tuple[int, int], autocast: torch.dtype | None) -> None:
        self._network, self._grid, self._autocast = network, grid, autocast
        self._device = network.register_tokens.device
        self._clock = 0
        config = network.config
        self._cache: list[tuple[Tensor, Tensor] | None] = [None] * config.layers
        picture = torch.arange(CHUNK_LATENTS * grid[0] * grid[1])
        self._space = [
            space_angles(config, Windows(grid, config.window, shift, config.suffix), picture)
            for shift in (0, config.window // 2)
        ]

    @torch.inference_mode()
    def pair(self, latents: Tensor) -> Tensor:
        """Normalised latents [2, 24, h, w] -> ImageNet-normalised pictures [2, 4, 3, H, W]."""
        network, suffix = self._network, self._network.config.suffix
        with torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None):
            with torch.autocast(self._device.type, enabled=False):
                x, extra = network.embed(latents).split((CHUNK_LATENTS * self._grid[0] * self._grid[1], suffix))
            ropes = self._ropes()
            for layer, block in enumerate(network.blocks):
                x, extra = self._layer(layer, block, x, extra, ropes[layer % 2])  # type: ignore[arg-type]
        self._clock += CHUNK_LATENTS
        rows = network.proj_out(network.norm_out(x))
        return network.arrange(rows.unflatten(0, (CHUNK_LATENTS, *self._grid)))

    def _ropes(self) -> list[tuple[Rope, Rope]]:
        """Tables of frame tokens and of the suffix, for plain and shifted layers."""
        config, tokens = self._network.config, self._grid[0] * self._grid[1]
        time = time_angles(config, self._clock, CHUNK_LATENTS, self._clock)
        of = torch.arange(CHUNK_LATENTS * tokens) // tokens
        of = torch.cat((of, torch.full((config.suffix,), CHUNK_LATENTS)))
        ropes = []
        for space in self._space:
            angles = torch.cat((time[of], space), dim=1)
            cos, sin = angles.cos().float().to(self._device), angles.sin().float().to(self._device)
            ropes.append(
                (Rope(cos[: -config.suffix], sin[: -config.suffix]), Rope(cos[-config.suffix :], sin[-config.suffix :]))
            )
        return ropes

    def _layer(
        self, layer: int, block: Block, x: Tensor, extra: Tensor, ropes: tuple[Rope, Rope]
    ) -> tuple[Tensor, Tensor]:
        config = self._network.config
        compute = self._autocast or torch.float32
        parts = []
        for rows, rope in zip((x, extra), ropes, strict=True):
            qkv = block.attn.to_qkv(block.norm1(rows)).unflatten(-1, (config.heads, -1))
            q, k, v = qkv.chunk(3, dim=-1)
            q, k = (rope.rotate(F.rms_norm(part.float(), part.shape[-1:], eps=EPS)).to(compute) for part in (q, k))
            parts.append((q, k, v.to(compute)))
        (q, k, v), (q_extra, k_extra, v_extra) = parts
        seen = self._cache[layer]
        k, v = (rows.unflatten(0, (CHUNK_LATENTS, *self._grid)) for rows in (k, v))
        if seen is not None:
            k, v = torch.cat((seen[0], k)), torch.cat((seen[1], v))
        self._cache[layer] = (k[-CACHE_LATENTS:].clone(), v[-CACHE_LATENTS:].clone())
        out = self._in_windows(layer, q.unflatten(0, (CHUNK_LATENTS, *self._grid)), k, v, k_extra, v_extra)
        everything = [torch.cat((rows.flatten(0, 2), more)) for rows, more in ((k, k_extra), (v, v_extra))]
        out_extra = attend(q_extra[None], *(rows[None] for rows in everything))[0]
        x, extra = (
            rows + block.attn.to_out(mixed.flatten(-2)).float() * block.scale1
            for rows, mixed in ((x, out), (extra, out_extra))
        )
        x, extra = (rows + block.ff(block.norm2(rows)).float() * block.scale2 for rows in (x, extra))
        return x, extra

    def _in_windows(self, layer: int, q: Tensor, k: Tensor, v: Tensor, k_extra: Tensor, v_extra: Tensor) -> Tensor:
        """q [2, h, w, heads, d], k and v [latents, h, w, heads, d] -> [2 * h * w, heads, d]."""
        (height, width), side = self._grid, self._network.config.window
        shift = side // 2 if layer % 2 else 0
        bottom, right = -(height + shift) % side, -(width + shift) % side

        def windows(rows: Tensor) -> Tensor:
            canvas = F.pad(rows, (0, 0, 0, 0, shift, right, shift, bottom))
            return rearrange(canvas, "t (y a) (x b) heads d -> (y x) (t a b) heads d", a=side, b=side)

        real = windows(torch.ones(len(k), height, width, 1, 1, dtype=torch.uint8, device=k.device)).flatten(1).bool()
        count = len(real)
        mask = F.pad(real, (0, len(k_extra)), value=True)[:, None, None, :]
        keys, values = (
            torch.cat((windows(rows), more.expand(count, -1, -1, -1)), dim=1)
            for rows, more in ((k, k_extra), (v, v_extra))
        )
        mixed = attend(windows(q), keys, values, mask)
        rows = (height + shift + bottom) // side
        canvas = rearrange(mixed, "(y x) (t a b) heads d -> t (y a) (x b) heads d", y=rows, a=side, b=side)
        return canvas[:, shift : shift + height, shift : shift + width].flatten(0, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention over [batch, tokens, heads, d]."""
    q, k, v = (rows.transpose(1, 2) for rows in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
