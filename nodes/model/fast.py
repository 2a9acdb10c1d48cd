"""One forward of the transformer as a GPU likes it: between two matrix products there is one kernel.

The residual add of a layer waits for the norm that reads it, also across the border of two blocks; keys and values go
straight into the bank; modulation is looked up by row inside the kernels. Layers whose weights are fp8 get their rows in
fp8 from the kernel before. After the last attention only the rows that are predicted go on. Same numbers as the plain
modules up to rounding; inference only, one document without batch dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...kernels.fp8_format import Fp8Rows
from .blocks import Block, LayerAttention, Stretch, in_float32
from .form import Form, Kernels, kernels_of
from .modulation import Modulation
from .rope import Rope
from .transformer import H3, PackedRows


class Arena(Protocol):
    """Keys and values of a forward and of rows that are not in it, per layer."""

    def reserve(self, layer: int, like: Tensor, /) -> Stretch:
        """Room for the keys and values of the forward's rows, shaped like `like` [rows, heads, head_dim]."""

    def attended(self, layer: int, /) -> tuple[Stretch, ...]:
        """What the rows attend to, once the room is filled."""


class NoBank:
    """Rows that attend to themselves alone. Every layer uses the same room."""

    def __init__(self) -> None:
        self._room: Stretch | None = None

    def reserve(self, layer: int, like: Tensor) -> Stretch:
        if self._room is None:
            self._room = like.new_empty(like.shape), like.new_empty(like.shape)
        return self._room

    def attended(self, layer: int) -> tuple[Stretch, ...]:
        assert self._room is not None  # reserve comes first
        return (self._room,)


@dataclass
class Stream:
    """The residual stream between two blocks: rows [R, hidden], and the last branch that is still to be added to them."""

    x: Tensor
    row: Tensor  # [R] int32, table rows of the modulation
    branch: Tensor | None = None
    gate: Tensor | None = None  # [3M, hidden], of the branch


@dataclass(frozen=True)
class Pass:
    """What all layers of one forward share."""

    do: Kernels
    form: Form
    arena: Arena
    rope: Rope
    eps: float
    predicted: Tensor  # long, of the rows, those that leave the last block
    sparse: LayerAttention | None


@torch.no_grad()
def run_fast(
    model: H3,
    rows: PackedRows,
    modulation: Modulation,
    form: Form,
    *,
    bank: Arena | None = None,
    sparse: LayerAttention | None = None,
) -> tuple[Tensor, Tensor]:
    """`model(rows, modulation, bank=bank, sparse=sparse)` by the kernels of `form`, and its attention where none is given.

    `sparse` sees all rows of the forward in every layer, and keys of a bank and of the forward as one stretch.
    """
    text, before, audio, video = rows.segments
    device = rows.text.device
    sounds, pictures = _numbers(rows.predict_audio, audio, device), _numbers(rows.predict_video, video, device)
    predicted = torch.cat((sounds + (text + before), pictures + (text + before + audio)))
    leaving = predicted if rows.order is None else rows.order.places[predicted]
    everything = Pass(kernels_of(form), form, bank or NoBank(), rows.rope, model.config.eps, leaving, sparse)
    stream = Stream(model.embed(rows), rows.modulation_row.int())
    last = len(model.blocks) - 1
    for layer, block in enumerate(model.blocks):
        table = modulation.block(layer)
        work = partial(_block, stream=stream, table=table, all_=everything, layer=layer, last=layer == last)
        block(stream.x, table, stream.row, rows.rope, instead=work)
    if not len(predicted):
        config, nothing = model.config, stream.x.new_empty(0, dtype=torch.float32)
        return nothing.view(0, config.video_features), nothing.view(0, config.audio_channels)
    return _heads(model, stream, modulation.final(), rows.time_index[predicted].int(), len(sounds), everything)


def _numbers(wanted: slice | Tensor | None, count: int, device: torch.device) -> Tensor:
    """Row numbers of a choice among `count` rows."""
    if isinstance(wanted, Tensor):
        return wanted
    return torch.arange(count, device=device)[wanted if wanted is not None else slice(0)]


def _block(block: Block, stream: Stream, table: Tensor, all_: Pass, layer: int, *, last: bool) -> None:
    shift1, scale1, gate1, shift2, scale2, gate2 = table.unbind(1)
    do, attn, mlp = all_.do, block.attn, block.mlp
    gates = [attn.to_gate_compress] if all_.sparse and attn.to_gate_compress else []
    y = do.norm_modulate(
        stream.x, block.norm1.weight, all_.eps, shift1, scale1, stream.row, _taken(stream.x, attn.qkv_proj, *gates),
        branch=stream.branch, gate=stream.gate,
    )  # fmt: skip
    stream.branch = None
    qkv = _product(attn.qkv_proj, y, stream.x)
    gate = _product(gates[0], y, stream.x).unflatten(-1, (attn.heads, attn.head_dim)) if gates else None
    keys, values = all_.arena.reserve(layer, qkv.view(len(qkv), 3, attn.heads, attn.head_dim)[:, 1])
    q = do.head_norm_rope(
        qkv, attn.q_norm.weight, attn.k_norm.weight, all_.rope.cos, all_.rope.sin, all_.eps, keys, values,
        q_rows=all_.predicted if last and all_.sparse is None else None,
    )  # fmt: skip
    del qkv, y
    seen = all_.arena.attended(layer)
    if last:
        stream.x, stream.row = stream.x[all_.predicted], stream.row[all_.predicted]
        if not len(q):
            return
    if all_.sparse is None:
        mixed = _attend(q, seen, all_)
    else:
        mixed = all_.sparse(layer, q, *_joined(seen), gate)
        mixed = mixed[all_.predicted] if last else mixed
    branch = _product(attn.out_proj, mixed.flatten(-2), stream.x)
    del q, mixed, gate
    y = do.norm_modulate(
        stream.x, block.norm2.weight, all_.eps, shift2, scale2, stream.row, _taken(stream.x, mlp.fc1),
        branch=branch, gate=gate1,
    )  # fmt: skip
    del branch
    wide = _product(mlp.fc1, y, stream.x)
    stream.branch = _product(mlp.fc2, do.swiglu(wide, out=_taken(stream.x, mlp.fc2)), stream.x)
    stream.gate = gate2


def _attend(q: Tensor, seen: tuple[Stretch, ...], all_: Pass) -> Tensor:
    """One stretch in one call; two in two calls that are merged, or joined where the attention has no LSE to merge by."""
    attention = all_.form.attention
    if len(seen) == 1:
        return attention.run(q, *seen[0])
    if attention.run_lse is None:
        return attention.run(q, *_joined(seen))
    (out, lse), *more = (attention.run_lse(q, *stretch) for stretch in seen)
    for other, other_lse in more:
        out = all_.do.lse_merge(out, lse, other, other_lse)
    return out


def _joined(seen: tuple[Stretch, ...]) -> Stretch:
    """Two stretches as one, which copies them."""
    if len(seen) == 1:
        return seen[0]
    keys, values = zip(*seen, strict=True)
    return torch.cat(keys), torch.cat(values)


def _taken(x: Tensor, *layers: nn.Module) -> torch.dtype:
    """The form in which linear layers want their rows: fp8 where each of them takes it."""
    asked: list[Any] = [getattr(layer, "takes_fp8_rows", None) for layer in layers]
    return torch.float8_e4m3fn if all(fp8 is not None and fp8(x.device) for fp8 in asked) else x.dtype


def _product(layer: nn.Module, y: Tensor | Fp8Rows, x: Tensor) -> Tensor:
    if isinstance(y, Fp8Rows):
        product: Any = layer.of_fp8_rows
        return product(y, x.dtype)
    return layer(y)


def _heads(
    model: H3, stream: Stream, table: Tensor, time_index: Tensor, sounds: int, all_: Pass
) -> tuple[Tensor, Tensor]:
    """The last residual add, norm and both float32 heads over the predicted rows, sounds first."""
    assert stream.branch is not None and stream.gate is not None
    final = model.final_layer
    x = torch.addcmul(stream.x, stream.gate[stream.row], stream.branch)
    shift, scale = table.unbind(1)
    y = all_.do.norm_modulate(x, final.norm.weight, all_.eps, shift, scale, time_index, torch.float32)
    return in_float32(final.video_out, y[sounds:]), in_float32(final.audio_out, y[:sounds])
