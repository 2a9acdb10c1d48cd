"""Video Sparse Attention twice: as specified, on rows in packed order inside diffusers' transformer, and as an attention of
the clip sampler that works on rows in tile order. They share no code.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from diffusers.models.transformers.transformer_minimax_h3 import _apply_rotary_emb
from torch import Tensor

# ------------------------------------------------------------------------------------------- as specified, packed order


def tiles(runs: list[int], grid: tuple[int, int, int], tile: tuple[int, int, int]) -> tuple[list[Tensor], int]:
    """Packed rows of every tile, those of the runs first, and how many these are."""
    extent, start, found = math.prod(tile), 0, []
    for run in runs:
        found += torch.arange(start, start + run).split(extent)
        start += run
    prefix = len(found)
    rows = torch.arange(start, start + math.prod(grid)).view(grid)
    for t in range(0, grid[0], tile[0]):
        for h in range(0, grid[1], tile[1]):
            for w in range(0, grid[2], tile[2]):
                found.append(rows[t : t + tile[0], h : h + tile[1], w : w + tile[2]].flatten())
    return found, prefix


def vsa(
    q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, found: list[Tensor], prefix: int, sparsity: float
) -> Tensor:
    """q, k, v, gate [S, heads, d] in packed order -> [S, heads, d]."""
    count, scale = len(found), q.shape[-1] ** -0.5
    pooled = [torch.stack([x[rows].mean(0) for rows in found], dim=1) for x in (q, k, v)]  # [heads, tiles, d]
    scores = pooled[0] @ pooled[1].transpose(1, 2) * scale
    video = count - prefix
    kept = max(1, min(math.ceil((1 - sparsity) * video), video))
    out = torch.empty_like(q)
    coarse = scores.softmax(-1) @ pooled[2]
    for head in range(q.shape[1]):
        for tile, rows in enumerate(found):
            chosen = set(range(count))
            if tile >= prefix:
                best = scores[head, tile, prefix:].topk(kept).indices + prefix
                chosen = {*range(prefix), *best.tolist()}
            seen = torch.cat([found[number] for number in sorted(chosen)])
            weights = (q[rows, head] @ k[seen, head].T * scale).softmax(-1)
            out[rows, head] = weights @ v[seen, head]
            if gate is not None:
                out[rows, head] += gate[rows, head] * coarse[head, tile]
    return out


class VsaProcessor:
    """diffusers' attention of one layer, with its softmax replaced. `gate` is the weight [inner, hidden] or None."""

    _attention_backend = None
    _parallel_config = None

    def __init__(self, gate: Tensor | None, found: list[Tensor], prefix: int, sparsity: float) -> None:
        self.gate, self.tiles = gate, (found, prefix, sparsity)

    def __call__(self, attn: Any, hidden_states: Tensor, rotary_emb: Any = None, attention_mask: Any = None) -> Tensor:
        q, k, v = (
            project(hidden_states).unflatten(-1, (attn.heads, -1)) for project in (attn.to_q, attn.to_k, attn.to_v)
        )
        q, k = (_apply_rotary_emb(x, *rotary_emb) for x in (attn.norm_q(q), attn.norm_k(k)))
        gate = None if self.gate is None else (hidden_states[0] @ self.gate.T).unflatten(-1, (attn.heads, -1))
        out = vsa(q[0], k[0], v[0], gate, *self.tiles)
        return attn.to_out[0](out.flatten(1)[None])


# --------------------------------------------------------------------------------- for the clip sampler, tile order


class TileOrdered:
    """A `ClipAttention` in plain PyTorch: every tile is a slice of neighbouring rows."""

    def __init__(
        self,
        sparsity: float,
        tile: tuple[int, int, int] = (4, 4, 4),
        dense_steps: int = 0,
        dense_layers: tuple[int, ...] = (),
    ) -> None:
        self.sparsity, self.tile, self.dense_steps, self.dense_layers = sparsity, tile, dense_steps, dense_layers
        self.calls: list[tuple[int, int, bool]] = []  # step, layer, whether there was a gate

    def facts(self) -> dict[str, Any]:
        return {"name": "tiles in plain PyTorch", "sparsity": self.sparsity}

    def found(self) -> dict[str, Any]:
        return {}

    def working_bytes(self, segments: Any, heads: int, head_dim: int, itemsize: int) -> int:
        return 0

    def prepare(self, segments: Any, device: Any) -> Prepared:
        return Prepared(self, segments)


class Prepared:
    def __init__(self, attention: TileOrdered, segments: Any) -> None:
        self.attention = attention
        found, self.prefix = tiles(list(segments.runs), segments.grid, attention.tile)
        self.order = torch.cat(found)
        self.sizes = [len(rows) for rows in found]

    def at(self, step: int) -> Any:
        if step < self.attention.dense_steps:
            return None
        return lambda layer, q, k, v, gate: self.run(step, layer, q, k, v, gate)

    def run(self, step: int, layer: int, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None) -> Tensor:
        self.attention.calls.append((step, layer, gate is not None))
        scale, heads, count = q.shape[-1] ** -0.5, q.shape[1], len(self.sizes)
        means = [torch.stack([part.mean(0) for part in x.split(self.sizes)]) for x in (q, k, v)]
        scores = torch.einsum("ihd,jhd->hij", means[0], means[1]) * scale
        mask = torch.ones(heads, count, count, dtype=torch.bool)
        video = count - self.prefix
        sparsity = 0.0 if layer in self.attention.dense_layers else self.attention.sparsity
        kept = max(1, min(math.ceil((1 - sparsity) * video), video))
        among = scores[:, self.prefix :, self.prefix :]
        bar = among.sort(-1, descending=True).values[..., kept - 1 : kept]
        mask[:, self.prefix :, self.prefix :] = among >= bar
        sizes = torch.tensor(self.sizes)
        rows = mask.repeat_interleave(sizes, 1).repeat_interleave(sizes, 2)
        logits = torch.einsum("ihd,jhd->hij", q, k) * scale
        out = torch.einsum("hij,jhd->ihd", logits.masked_fill(~rows, -torch.inf).softmax(-1), v)
        if gate is not None:
            coarse = torch.einsum("hij,jhd->ihd", scores.softmax(-1), means[2])
            out = out + gate * coarse.repeat_interleave(sizes, 0)
        return out
