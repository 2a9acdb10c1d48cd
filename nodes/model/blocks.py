"""The layers of the H3 transformer: attention with qk-norm and RoPE, SwiGLU, and the pre-norm blocks over them.

Rows are [..., S, hidden] with at most one leading batch dimension. Names of modules are the checkpoint's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...kernels.attention import attention
from .config import BLOCK_SLOTS, FINAL_SLOTS, MODALITIES, H3Config
from .modulation import AdaLNProjection
from .rope import Rope, rotate

# q [Sq, heads, d], k and v [Sk, heads, d] -> [Sq, heads, d]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Stretch = tuple[Tensor, Tensor]  # keys and values of neighbouring rows, each [rows, heads, head_dim]


class Bank(Protocol):
    """Keys and values that outlive one forward pass, kept per layer."""

    def extend(self, layer: int, k: Tensor, v: Tensor, /) -> tuple[Tensor, Tensor]:
        """Given the rows' own k and v [..., S, heads, head_dim] (after qk-norm and RoPE), return those to attend to.

        v is a view into the layer's q, k and v: copy it to keep it, or all three stay in memory.
        """


class LayerAttention(Protocol):
    """The attention of one forward, told which layer it is in: sparse attention takes some keys and leaves others."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, /) -> Tensor:
        """q, k and v [S, heads, head_dim] after qk-norm and RoPE -> [S, heads, head_dim], before the output projection.

        `gate` [S, heads, head_dim] is the layer's projection of its modulated input, without activation; None where the
        layer has no such weight.
        """


class Attention(nn.Module):
    """Bidirectional self-attention over one document. `qkv_proj` holds all of q, then all of k, then all of v.

    With `gated` there is a third projection, `to_gate_compress`. Only a `LayerAttention` asks for it.
    """

    def __init__(self, config: H3Config, *, gated: bool = False, device, dtype, operations: Any) -> None:
        super().__init__()
        at = {"device": device, "dtype": dtype}
        self.heads, self.head_dim = config.heads, config.head_dim
        self.qkv_proj = operations.Linear(config.hidden, 3 * config.inner, bias=False, **at)
        self.q_norm = operations.RMSNorm(config.head_dim, eps=config.eps, **at)
        self.k_norm = operations.RMSNorm(config.head_dim, eps=config.eps, **at)
        self.out_proj = operations.Linear(config.inner, config.hidden, bias=False, **at)
        self.to_gate_compress: nn.Module | None = None
        if gated:
            self.to_gate_compress = operations.Linear(config.hidden, config.inner, bias=False, **at)

    def forward(
        self,
        x: Tensor,
        rope: Rope | None = None,
        visible: Tensor | None = None,
        bank: Bank | None = None,
        layer: int = 0,
        attend: Attend | None = None,
        sparse: LayerAttention | None = None,
    ) -> Tensor:
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.heads, self.head_dim)).unbind(-3)
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        if bank is not None:
            k, v = bank.extend(layer, k, v)
        if sparse is not None:
            gate = self.to_gate_compress(x).unflatten(-1, q.shape[-2:]) if self.to_gate_compress else None
            mixed = sparse(layer, q, k, v, gate)
        else:
            mixed = attention(q, k, v, visible) if attend is None else attend(q, k, v)
        return self.out_proj(mixed.flatten(-2))


class MLP(nn.Module):
    """SwiGLU, gate half first."""

    def __init__(self, config: H3Config, *, device, dtype, operations: Any) -> None:
        super().__init__()
        self.fc1 = operations.Linear(config.hidden, 2 * config.ffn, bias=False, device=device, dtype=dtype)
        self.fc2 = operations.Linear(config.ffn, config.hidden, bias=False, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.silu(gate) * up)


class RefinerBlock(nn.Module):
    """Pre-norm block of the text refiner: no position, no time."""

    def __init__(self, config: H3Config, *, gated: bool = False, device, dtype, operations: Any) -> None:
        super().__init__()
        at = {"device": device, "dtype": dtype, "operations": operations}
        self.norm1 = operations.RMSNorm(config.hidden, eps=config.eps, device=device, dtype=dtype)
        self.attn = Attention(config, gated=gated, **at)
        self.norm2 = operations.RMSNorm(config.hidden, eps=config.eps, device=device, dtype=dtype)
        self.mlp = MLP(config, **at)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TokenRefiner(nn.Module):
    """Text rows of one prompt look at each other before they join the packed sequence."""

    def __init__(self, config: H3Config, *, device, dtype, operations: Any) -> None:
        super().__init__()
        at = {"device": device, "dtype": dtype, "operations": operations}
        self.blocks = nn.ModuleList(RefinerBlock(config, **at) for _ in range(config.refiner_layers))
        self.final_norm = operations.RMSNorm(config.hidden, eps=config.eps, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)


class Block(RefinerBlock):
    """The transformer block: the refiner's layers, with position, and modulated per row by time and modality."""

    def __init__(self, config: H3Config, *, adaln: bool, device, dtype, operations: Any) -> None:
        super().__init__(config, gated=config.gate_compress, device=device, dtype=dtype, operations=operations)
        if adaln:
            self.adaln_proj = AdaLNProjection(
                config.time_dim,
                config.hidden,
                modalities=MODALITIES,
                slots=BLOCK_SLOTS,
                device=device,
                dtype=dtype,
                operations=operations,
            )

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        table: Tensor,
        row: Tensor,
        rope: Rope,
        visible: Tensor | None = None,
        bank: Bank | None = None,
        layer: int = 0,
        *,
        attend: Attend | None = None,
        sparse: LayerAttention | None = None,
        instead: Callable[[Block], Any] | None = None,
    ) -> Any:
        """x [..., S, hidden]; table [3M, 6, hidden]; row [S] or [..., S], the table row of every packed row.

        `attend` or `sparse` computes the attention, without mask. `instead` is run in place of the plain layers, while hooks
        keep the block's weights on the device; its result is returned.
        """
        if instead is not None:
            return instead(self)
        shift1, scale1, gate1, shift2, scale2, gate2 = table.unbind(1)
        h = self.norm1(x) * (1 + scale1[row]) + shift1[row]
        x = x + gate1[row] * self.attn(h, rope, visible, bank, layer, attend, sparse)
        h = self.norm2(x) * (1 + scale2[row]) + shift2[row]
        return x + gate2[row] * self.mlp(h)


class FinalLayer(nn.Module):
    """Last norm and the two float32 heads. The modulation knows only the time here, not the modality."""

    def __init__(self, config: H3Config, *, adaln: bool, device, dtype, operations: Any) -> None:
        super().__init__()
        self.norm = operations.RMSNorm(config.hidden, eps=config.eps, device=device, dtype=dtype)
        if adaln:
            self.adaln_proj = AdaLNProjection(
                config.time_dim,
                config.hidden,
                modalities=1,
                slots=FINAL_SLOTS,
                device=device,
                dtype=dtype,
                operations=operations,
            )
        full = {"bias": True, "device": device, "dtype": torch.float32}
        self.video_out = operations.Linear(config.hidden, config.video_features, **full)
        self.audio_out = operations.Linear(config.hidden, config.audio_channels, **full)

    def forward(self, x: Tensor, table: Tensor, time_index: Tensor, head: nn.Module) -> Tensor:
        """Velocity, float32 [..., R, features], of the rows x [..., R, hidden]; `head` is video_out or audio_out.

        table [M, 2, hidden]; time_index [R] or [..., R], the table row of every row.
        """
        shift, scale = table.unbind(1)
        return in_float32(head, self.norm(x) * (1 + scale[time_index]) + shift[time_index])


def in_float32(linear: nn.Module, x: Tensor) -> Tensor:
    """A float32 layer stays one under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return linear(x.float())
