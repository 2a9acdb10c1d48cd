"""The part `peer`: the same window through diffusers' H3 transformer, which recomputes every row of it in every step.

It has our weights, without copying most of them; its peak also holds our copy of the MLP's first layers. Its AdaLN
projections (13 billion parameters) are replaced from outside by lookups of our tables, which spares it about 6 ms of
reading per step on an H200 and changes nothing else.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..model import H3, MODALITIES, AdaLNTables, H3Config, audio_from_rows, unpatchify
from ..sampler import DENSE, Network, h3_time
from ..sampler.pack import Layout, RowTimes, WindowLatents, make_layout, pack_whole
from ..sampler.rollout import Predictor
from ..schedule import RELEASE as SCHEDULE
from ..schedule import Window, layout_key, positions
from .limits import Shape, chunk_flops, weight_of
from .measure import matmul_peak, peak_gib, relative_error, start_peak, synchronise
from .model import GRID, STEPS, Subject, sizes, subject
from .rows import BenchError, Options, Report, Row

log = logging.getLogger(__name__)

REPEATS = 3
TIMES = 3  # noise levels of a forward at most; fewer are filled up, so that compiled blocks see one shape
WINDOW = 2  # a chunk of the steady stream
EAGER, COMPILED = "diffusers, eager", "diffusers, compiled blocks"
OUTER = {
    "video_patch_proj": "proj_in",
    "audio_patch_proj": "audio_proj_in",
    "condition_proj": "context_embedder",
    "final_layer.norm": "norm_out.norm",
    "final_layer.video_out": "proj_out",
    "final_layer.audio_out": "audio_proj_out",
    "token_refiner.final_norm": "token_refiner.final_norm",
}
INNER = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attn.q_norm": "attn.norm_q",
    "attn.k_norm": "attn.norm_k",
    "attn.out_proj": "attn.to_out.0",
    "mlp.fc2": "ff.net.2",
}


class Lookup(nn.Module):
    """In place of a projection of the time vector: rows of a table that `load` fills. Split in `slots` for a block."""

    def __init__(self, rows: int, slots: int, split: bool, like: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(like.new_zeros(rows, slots, like.shape[-1]), requires_grad=False)
        self.split = split

    def load(self, table: Tensor) -> None:
        """table [M, slots, hidden]; further rows are not looked up."""
        self.table[: len(table)].copy_(table)

    def forward(self, vector: Tensor) -> Any:
        return self.table.unbind(1) if self.split else self.table.flatten(1)


def transformer_class() -> Any:
    """diffusers' class, or a `BenchError` that says how to get it."""
    try:
        from diffusers import MiniMaxH3Transformer3DModel
    except Exception as error:  # a broken installation raises more than ImportError
        raise BenchError(
            f"diffusers' H3 transformer cannot be imported ({type(error).__name__}: {' '.join(str(error).split())[:160]}); "
            "install diffusers 0.42.1 or newer to compare with it"
        ) from error
    return MiniMaxH3Transformer3DModel


def twin_of(model: H3, tables: AdaLNTables) -> Any:
    """diffusers' transformer with the weights of `model`, on its device; only the MLP's first layers are copied."""
    config, device = model.config, model.rope.inv_freq.device
    with torch.device("meta"):
        twin = transformer_class()(**sizes_of(config))
    for block, slots in zip(twin.transformer_blocks, tables.blocks, strict=True):
        block.adaln_proj = Lookup(MODALITIES * TIMES, slots.shape[-2], True, slots)
    twin.norm_out.linear = Lookup(TIMES, tables.final.shape[-2], False, tables.final)
    # The time MLP stays, though its result is looked up now; float32 numbers made here.
    twin.time_embedder.to_empty(device=device)
    for tensor in twin.time_embedder.parameters():
        nn.init.normal_(tensor, std=0.02)
    twin.rope = type(twin.rope)(config.rope_freqs, config.rope_theta).to(device)
    missing, unexpected = twin.load_state_dict(dict(named(model)), strict=False, assign=True)
    left = [name for name in missing if not name.startswith(("time_embedder.",)) and ".table" not in name]
    if left or unexpected:
        raise BenchError(
            f"diffusers' transformer has other tensors than 0.42.1 ({', '.join([*left, *unexpected][:4])}); "
            "install diffusers 0.42.1 to compare with it"
        )
    return twin.requires_grad_(False).eval()


def sizes_of(config: H3Config) -> dict[str, Any]:
    """Arguments of diffusers' class."""
    return {
        "num_attention_heads": config.heads,
        "attention_head_dim": config.head_dim,
        "hidden_size": config.hidden,
        "num_layers": config.layers,
        "num_refiner_layers": config.refiner_layers,
        "ffn_dim": config.ffn,
        "in_channels": config.latent_channels,
        "audio_in_channels": config.audio_channels,
        "text_dim": config.text_dim,
        "freq_dim": config.freq_dim,
        "time_embed_hidden_dim": config.time_hidden,
        "time_embed_dim": config.time_dim,
        "rope_freq_dim": config.rope_freqs,
        "rope_theta": config.rope_theta,
    }


def named(model: H3) -> Iterator[tuple[str, Tensor]]:
    """Our tensors under diffusers' names: q, k and v apart, and the MLP's value half first."""
    for ours, theirs in OUTER.items():
        for kind, tensor in model.get_submodule(ours).named_parameters():
            yield f"{theirs}.{kind}", tensor
    stacks = (("blocks", "transformer_blocks"), ("token_refiner.blocks", "token_refiner.refiner_blocks"))
    for stack, name in stacks:
        for number, block in enumerate(model.get_submodule(stack).children()):
            place = f"{name}.{number}."
            for ours, theirs in INNER.items():
                yield f"{place}{theirs}.weight", weight_of(block.get_submodule(ours))
            qkv = weight_of(block.get_submodule("attn.qkv_proj")).chunk(3)
            yield from ((f"{place}attn.to_{part}.weight", tensor) for part, tensor in zip("qkv", qkv, strict=True))
            gate, up = weight_of(block.get_submodule("mlp.fc1")).chunk(2)
            yield f"{place}ff.net.0.proj.weight", torch.cat([up, gate])


class Peer:
    """diffusers' transformer as a predictor of clean latents, by dense windows."""

    def __init__(self, made_of: Subject) -> None:
        self._of = made_of
        self.twin = twin_of(made_of.model, made_of.tables)
        self._layouts: dict[Hashable, tuple[Layout, Tensor]] = {}

    @torch.inference_mode()
    def __call__(self, window: Window, latents: WindowLatents, step: int) -> tuple[Tensor, Tensor]:
        made_of, device = self._of, self._of.device
        conditions, sigmas = made_of.conditions, (GRID.video[step], GRID.audio[step])
        times = RowTimes.at(*sigmas, device=device)
        layout, place = self._layout(window)
        rows = pack_whole(layout, conditions.text, latents, times)
        self._look_up(times)
        text, before, audio, video = torch.arange(layout.plan.total, device=device).split(rows.segments)
        found = self.twin(
            torch.cat([rows.before, rows.video])[None],
            rows.audio[None],
            conditions.text[None],
            torch.tensor([*times.times, *[times.times[-1]] * (TIMES - len(times.times))], device=device),
            rows.time_index.long(),
            layout.whole.tags,
            place,
            torch.cat([before, video]),
            audio,
            text,
            return_dict=False,
        )
        sight, sound = found[0][0, len(before) :][rows.predict_video], found[1][0][rows.predict_audio]
        height, width = latents.video.shape[-2:]
        new = len(window.latents)
        return (
            latents.video[:, -new:] + (1.0 - h3_time(sigmas[0])) * unpatchify(sight, new, height, width),
            latents.audio[:, :, -len(window.audio_new) :] + (1.0 - h3_time(sigmas[1])) * audio_from_rows(sound),
        )

    def _layout(self, window: Window) -> tuple[Layout, Tensor]:
        """Layout and positions [rows, 3], made once per layout, as a careful user of diffusers would."""
        conditions, key = self._of.conditions, layout_key(window)
        if key not in self._layouts:
            layout = make_layout(self._of.model, window, conditions.geometry, conditions.tags, reference=True)
            place = positions(window, conditions.geometry, len(conditions.text))
            self._layouts[key] = layout, torch.tensor(place, dtype=torch.float64, device=self._of.device)
        return self._layouts[key]

    def _look_up(self, times: RowTimes) -> None:
        modulation = self._of.tables.at(times.times)
        for number, block in enumerate(self.twin.transformer_blocks):
            block.adaln_proj.load(modulation.block(number))
        self.twin.norm_out.linear.load(modulation.final())

    def compile_blocks(self) -> None:
        """torch.compile for every block; they share one compiled function."""
        for block in self.twin.transformer_blocks:
            block.compile()


def measure(options: Options) -> list[Report]:
    """One report per size."""
    transformer_class()
    return [report(subject(options, size), options) for size in sizes(options)]


@torch.inference_mode()
def report(made_of: Subject, options: Options) -> Report:
    device, window = made_of.device, SCHEDULE.window_at(WINDOW)
    latents, shape = random_window(made_of, window), Shape(made_of.keys, made_of.keys)
    made = Report(made_of.title(f"H3 {options.preset}, one chunk of {STEPS} steps through diffusers"))
    peak, flops = matmul_peak(device, made_of.model.dtype), chunk_flops(made_of.config, shape)
    ours = Network(made_of.model, made_of.tables, made_of.conditions, GRID, attention=DENSE)
    expected = ours(window, latents, 0)[0]
    peer = Peer(made_of)
    made.facts |= {"rows of a forward": shape.rows, "matmul TFLOP/s of one large product": peak}
    for name in (EAGER, COMPILED)[: 2 if device.type == "cuda" else 1]:
        with made.surviving(name):
            start_peak(device)
            begin = time.perf_counter()
            if name == COMPILED:
                peer.compile_blocks()
            found = peer(window, latents, 0)[0]
            made.facts[f"{name}: error of the first step against our dense window"] = relative_error(found, expected)
            made.facts[f"{name}: seconds of the first forward"] = time.perf_counter() - begin
            ms = chunk_ms(peer, window, latents, device)
            made.rows.append(Row(name, ms, flops / ms / 1e9, flops / peak / 1e9, peak_gib(device)))
            log.info("%s: %.1f ms", name, ms)
    return made


def random_window(made_of: Subject, window: Window) -> WindowLatents:
    """Latents of the right shapes: what they are takes no time."""
    random = torch.Generator().manual_seed(5)
    channels, geometry = made_of.config.latent_channels, made_of.conditions.geometry

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(made_of.device)

    return WindowLatents(
        picture=made_of.conditions.picture,
        reference=noise(channels, len(window.reference_latents), *geometry.reference),
        video=noise(channels, len(window.window_latents), *geometry.target),
        audio=noise(2, made_of.config.audio_channels, len(window.audio_window)),
    )


def chunk_ms(predict: Predictor, window: Window, latents: WindowLatents, device: torch.device) -> float:
    """Median milliseconds of both steps by the clock."""
    times = []
    for _ in range(REPEATS if device.type == "cuda" else 1):
        synchronise(device)
        begin = time.perf_counter()
        for step in range(STEPS):
            predict(window, latents, step)
        synchronise(device)
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times)
