"""Windows of the stream in batches: the sampler's layouts and the model's own forward, with one more dimension.

Continuation windows of one clip share its prefix rows (text, picture, sink), as they do at inference: the prefix runs once
per clip and every window runs its moving rows against the keys and values of it, gradients included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from ...nodes.model import H3, PackedRows, Rope, audio_rows, patchify
from ...nodes.model.blocks import Block
from ...nodes.sampler.grids import h3_time
from ...nodes.sampler.pack import Layout, Part, RowTimes, make_layout
from ...nodes.sampler.rollout import with_noise
from ...nodes.schedule import RELEASE, Geometry

SINK = 3  # latents of the sink
MOVING = 5  # recent and new latents of every continuation
# Continuations whose rows are of the same kinds; only their rotations differ. The audio counts decide.
CLASSES = ((1, 5), (2,), (3,), (4, 6))
PERIOD = 6


class _Turn:
    """A rotation as the blocks read it."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = cos, sin


class _Tap:
    """Hands past keys and values to one block and keeps the block's own."""

    def __init__(self, keys: Tensor | None, values: Tensor | None) -> None:
        self.past_keys, self.past_values = keys, values
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.keys, self.values = k, v
        if self.past_keys is None or self.past_values is None:
            return k, v
        many = k.shape[0] // self.past_keys.shape[0]
        past = (x.unsqueeze(1).expand(-1, many, -1, -1, -1).flatten(0, 1) for x in (self.past_keys, self.past_values))
        return tuple(torch.cat((old, new.to(old.dtype)), 1) for old, new in zip(past, (k, v), strict=True))  # type: ignore[return-value]


def _run_block(block: nn.Module, x: Tensor, table: Tensor, row: Tensor, cos: Tensor, sin: Tensor,
               keys: Tensor | None, values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    tap = _Tap(keys, values)
    x = Block.forward(block, x, table, row, _Turn(cos, sin), None, tap, 0)  # type: ignore[arg-type]
    assert tap.keys is not None and tap.values is not None
    return x, tap.keys, tap.values


@dataclass
class Prefix:
    """Keys and values of the prefix rows of a batch of clips, layer by layer; empty ones are filled by a prefix pass."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    full: bool = False

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        raise RuntimeError("a prefix of a batch is read by prepared models; call prepare_blocks first")


def prepare_blocks(models: Sequence[H3], compile: bool) -> None:
    """Let the blocks of the models work on batches with a shared prefix, compiled once for all layers if wanted."""
    run = torch.compile(_run_block) if compile else _run_block

    def forward(block: nn.Module, x: Tensor, table: Tensor, row: Tensor, rope: Rope, visible: Tensor | None = None,
                bank: Prefix | None = None, layer: int = 0, attend: None = None) -> Tensor:  # fmt: skip
        keys = values = None
        if bank is not None and bank.full:
            keys, values = bank.keys[layer], bank.values[layer]
        if compile:
            _loosen(x, row, rope, keys, values)
        x, k, v = run(block, x, table, row, rope.cos, rope.sin, keys, values)
        if bank is not None and not bank.full:
            bank.keys.append(k)
            bank.values.append(v)
        return x

    for model in models:
        for block in model.blocks:
            block.forward = partial(forward, block)


def _loosen(x: Tensor, row: Tensor, rope: Rope, keys: Tensor | None, values: Tensor | None) -> None:
    """The number of rows changes from batch to batch, and that of clips when nothing is learned."""
    mark = torch._dynamo.maybe_mark_dynamic
    mark(row, 0)
    for tensor in (x, keys, values):
        if tensor is not None:
            mark(tensor, [1] if torch.is_grad_enabled() else [0, 1])
    for tensor in (rope.cos, rope.sin):
        mark(tensor, tensor.ndim - 2)
        if tensor.ndim == 3 and not torch.is_grad_enabled():
            mark(tensor, 0)


@dataclass(frozen=True)
class KindModulation:
    """Modulation with one table row per kind of row (noisy video, noisy audio, clean), equal times included."""

    times: tuple[float, ...]
    blocks: Tensor  # [L, 3 kinds * 3 tags, 6, hidden]
    last: Tensor  # [3 kinds, 2, hidden]

    def block(self, index: int) -> Tensor:
        return self.blocks[index]

    def final(self) -> Tensor:
        return self.last


def modulation(model: H3, video_sigma: float, audio_sigma: float) -> KindModulation:
    """The model's modulation at the times of one step."""
    device = model.rope.inv_freq.device
    times = RowTimes.at(video_sigma, audio_sigma, device)
    with torch.autocast(device.type, enabled=False):
        made = model.modulation(times.times)
        blocks = torch.stack([made.block(i) for i in range(model.config.layers)])
        blocks = blocks.unflatten(1, (len(times.times), 3))[:, times.index].flatten(1, 2)
        return KindModulation(times.times, blocks, made.final()[times.index])


@dataclass
class Layouts:
    """Layouts of the sampler by text rows, chunk and branch, made once."""

    model: H3
    geometry: Geometry
    tags: Tensor  # [longest text] long
    media_rows: int
    made: dict[tuple[int, int, bool], Layout] = field(default_factory=dict)

    def get(self, text_rows: int, chunk: int, reference: bool = True) -> Layout:
        """Chunk 0 is the bootstrap; continuations repeat after six."""
        chunk = chunk if chunk == 0 else (chunk - 1) % PERIOD + 1
        key = (text_rows, chunk, reference)
        if key not in self.made:
            self.made[key] = make_layout(
                self.model, RELEASE.window_at(chunk), self.geometry, self.tags[:text_rows], reference=reference
            )
        return self.made[key]


@dataclass(frozen=True)
class Look:
    """What a batch of B clips shows the model besides the stream itself."""

    text: Tensor  # [B, T, hidden], refined
    picture: Tensor  # [B, 24, 1, h, w], with its noise


def noised(clean: Tensor) -> Tensor:
    return with_noise(clean, torch.randn_like(clean))


def _rows(
    part: Part, rope: Rope, text: Tensor, before: Tensor, audio: Tensor, video: Tensor, new: int, new_audio: int
) -> PackedRows:
    count = audio.shape[-1]
    rows = patchify(video)
    fresh = torch.arange(count - new_audio, count, device=video.device)
    return PackedRows(
        text=text, before=before, audio=audio_rows(audio), video=rows, rope=rope,
        modulation_row=part.clock * 3 + part.tags, time_index=part.clock,
        predict_video=slice(rows.shape[-2] - new * (rows.shape[-2] // video.shape[-3]), None) if new else None,
        predict_audio=torch.cat((fresh, fresh + count)) if new_audio else None,
    )  # fmt: skip


def _references(maps: Tensor, reference: bool) -> Tensor:
    rows = patchify(maps)
    return rows if reference else rows[:, :0]


def run_bootstrap(model: H3, layout: Layout, look: Look, maps: Tensor, video: Tensor, audio: Tensor, at: KindModulation,
                  reference: bool = True) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Velocity rows of all latents of chunk 0: maps [B, 24, 9, h', w'], noisy video [B, 24, 9, h, w], audio [B, 2, 32, A]."""
    before = torch.cat((patchify(look.picture), _references(maps, reference)), 1)
    part = layout.whole
    return model(_rows(part, part.rope, look.text, before, audio, video, layout.new_latents, layout.new_audio), at)


def run_prefix(
    model: H3, layout: Layout, look: Look, maps: Tensor, video: Tensor, at: KindModulation, reference: bool = True
) -> Prefix:
    """Keys and values of text, picture and sink: maps [B, 24, 3, h', w'] and video [B, 24, 3, h, w] with their noise."""
    before = torch.cat((patchify(look.picture), _references(maps, reference)), 1)
    silence = video.new_zeros(len(video), 2, model.config.audio_channels, layout.sink_audio)
    bank, part = Prefix(), layout.prefix
    model(_rows(part, part.rope, look.text, before, silence, video, 0, 0), at, bank=bank)
    bank.full = True
    return bank


def run_moving(model: H3, layouts: Sequence[Layout], bank: Prefix, maps: Tensor, video: Tensor, audio: Tensor,
               at: KindModulation, reference: bool = True) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Velocity rows of the new latents of B * M windows, M for every clip of the bank, one layout each (or one for all).

    maps [BM, 24, 5, h', w'] and video [BM, 24, 5, h, w]: recent, then new; audio [BM, 2, 32, A] likewise.
    """
    first = layouts[0]
    part = first.moving
    rope = part.rope
    if len(layouts) > 1:
        rope = Rope(
            torch.stack([one.moving.rope.cos for one in layouts]), torch.stack([one.moving.rope.sin for one in layouts])
        )
    text = video.new_zeros(len(video), 0, model.config.hidden)
    rows = _rows(part, rope, text, _references(maps, reference), audio, video, first.new_latents, first.new_audio)
    return model(rows, at, bank=bank)


def clean(noisy_rows: Tensor, velocity: Tensor, sigma: float) -> Tensor:
    """The predicted x0 from rows at noise level sigma."""
    return noisy_rows + (1.0 - h3_time(sigma)) * velocity
