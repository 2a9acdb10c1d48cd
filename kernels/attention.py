"""Attention over packed rows, the torch reference: softmax(q kᵀ / sqrt(head_dim)) v, never causal."""

from __future__ import annotations

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Every query row looks at every key row, or at those the mask lets it see.

    q [Sq, heads, head_dim], k and v [Sk, heads, head_dim] -> [Sq, heads, head_dim]; all three may have one leading
    batch dimension. mask [Sq, Sk], or [batch, Sq, Sk]: bool, True where the query sees the key.
    """
    shape = q.shape
    # torch's fused kernels only take four dimensions
    q, k, v = (rearrange(x, "... rows heads d -> (...) heads rows d") for x in (q, k, v))
    if mask is not None:
        mask = mask.unsqueeze(-3)  # the same for every head
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return rearrange(out, "batch heads rows d -> batch rows heads d").reshape(shape)
