"""The part `clip`: one denoising step of a whole clip from text, dense and with sparse attention, next to its arithmetic.

The network has gates, as FastH3 has; dense attention leaves them out. Its times are those of FastH3 V1.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from ...kernels import quant_matmul
from ...kernels.dense_attention import choose_dense
from ...kernels.tiles import kept_tiles
from ..model import H3, AdaLNTables, Form, choose_form
from ..sampler.clip_attention import RowSegments, Sparsity
from ..sampler.clip_network import ClipLatents, ClipNetwork, ClipText
from ..sampler.clip_plan import ClipShape, fitting_frames, latents_of, sound_of
from ..sampler.clip_recipes import FAST_V1
from ..sampler.clip_sparse import SparseClip
from ..schedule import ScheduleError
from .limits import FP8, Shape, attention_flops, linear_flops, plain_kind
from .measure import matmul_peak, median_ms, peak_gib, start_peak, synchronise, time_ms
from .model import PRESETS, fp8_weights, random_model, random_tables, release_weights, sizes
from .rows import BenchError, Options, Report, Row, Size, asked_for
from .variants import FUSED, PLAIN

log = logging.getLogger(__name__)

FRAMES = {"full": (124, 243, 345), "example": (39,)}
TEXT_ROWS = {"full": 1000, "example": 40}  # a prompt without a picture
KEEPS = (20.0, 10.0)  # of FastH3 V2 and V1
STEP = 1
CHOICE_REPEATS = 4
WARM_BLOCKS = 2  # one like all others and the last, which gives fewer rows


@dataclass(frozen=True, eq=False)
class Clip:
    """What is measured: the network and one clip's rows."""

    model: H3
    tables: AdaLNTables
    text: ClipText
    shape: ClipShape

    @property
    def segments(self) -> RowSegments:
        return RowSegments.of(self.shape, len(self.text.text))

    def latents(self) -> ClipLatents:
        """Noise on the device, always the same."""
        random, device = torch.Generator().manual_seed(5), self.text.text.device
        config, frames = self.model.config, self.shape.frames
        video = torch.randn(config.latent_channels, latents_of(frames), *self.shape.target, generator=random)
        audio = torch.randn(2, config.audio_channels, sound_of(frames), generator=random)
        return ClipLatents(video.to(device), audio.to(device))


@dataclass(frozen=True)
class ClipForm:
    """One way to compute the step. `keep` None is dense attention."""

    name: str
    form: Form | None
    linears: str
    keep: float | None

    def network(self, clip: Clip) -> ClipNetwork:
        model = fp8_weights(clip.model) if self.linears == FP8 else clip.model
        return ClipNetwork(
            model, clip.tables, clip.text, clip.shape, FAST_V1.grid, form=self.form, attention=self.attention(clip)
        )

    def attention(self, clip: Clip) -> SparseClip | None:
        if self.keep is None:
            return None
        return SparseClip(Sparsity(self.keep), clip.model.dtype, clip.model.config.head_dim)


def measure(options: Options) -> list[Report]:
    """One report per size and length."""
    release_weights()
    device, config = torch.device(options.device), replace(PRESETS[options.preset].config, gate_compress=True)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model, tables = random_model(config, device, dtype), random_tables(config, device, dtype, FAST_V1.grid)
    random, rows = torch.Generator().manual_seed(1), options.text_rows or TEXT_ROWS[options.preset]
    words = torch.randn(rows, config.text_dim, generator=random).to(device)
    text = ClipText(words, torch.ones(rows, dtype=torch.long, device=device))
    peak = matmul_peak(device, dtype)
    made = []
    for size in sizes(options):
        for frames in options.frames or FRAMES[options.preset]:
            made.append(report(Clip(model, tables, text, shape_of(size, frames)), options, peak))
    fp8_weights.cache_clear()
    return made


def shape_of(size: Size, frames: int) -> ClipShape:
    try:
        return ClipShape.of(fitting_frames(frames), size)
    except ScheduleError as error:
        raise BenchError(str(error)) from None


def report(clip: Clip, options: Options, peak: float) -> Report:
    height, width = (16 * side for side in clip.shape.target)
    rows = clip.segments.rows
    made = Report(
        f"H3 {options.preset}, one step of {clip.shape.frames} frames from text, {width}x{height}, {rows} rows"
    )
    made.facts |= {"rows of a forward": rows, "matmul TFLOP/s of one large product": peak}
    for form in forms(clip.model, clip.text.text.device, options.forms):
        with made.surviving(form.name):
            one(made, clip, form, peak)
        if clip.text.text.device.type == "cuda":
            torch.cuda.empty_cache()
    dense = {row.name: row.ms for row in made.rows}
    for row in made.rows:
        whole = dense.get(row.name.rpartition(", ")[0] + ", dense")
        if whole and not row.name.endswith(", dense"):
            made.facts[f"{row.name}: dense / this"] = whole / row.ms
    return made


@torch.inference_mode()
def one(made: Report, clip: Clip, form: ClipForm, peak: float) -> None:
    """A row for the step, and facts about the choice of tiles."""
    device, network, given = clip.text.text.device, form.network(clip), clip.latents()
    start_peak(device)
    with few_blocks(network.model, WARM_BLOCKS):  # kernels are compiled then, and plans made
        network(given, STEP)
    ms = time_ms(device, lambda: network(given, STEP), repeats=1, warm=0)  # up to half a minute: once is enough
    held = peak_gib(device)
    flops = step_flops(clip, form.keep)
    made.rows.append(Row(form.name, ms, flops / ms / 1e9, flops / peak / 1e9, held))
    log.info("%s, %d frames: %.1f ms a step", form.name, clip.shape.frames, ms)
    if form.form is not None:
        made.facts[f"{form.name}: form"] = str(form.form)
    attention = form.attention(clip)
    if attention is None or form.linears == FP8:
        return
    prepared = attention.prepare(clip.segments, device)
    config = clip.model.config
    q, k, v, gate = (
        torch.randn(clip.segments.rows, config.heads, config.head_dim, device=device, dtype=clip.model.dtype)
        for _ in range(4)
    )
    repeats = CHOICE_REPEATS if device.type == "cuda" else 1
    choice = median_ms(device, lambda: prepared.choose(q, k, v, gate), repeats=repeats, rounds=3)
    whole = median_ms(device, lambda: prepared.run(STEP, 0, q, k, v, gate), repeats=repeats, rounds=3)
    synchronise(device)
    made.facts |= {
        f"{form.name}: sparse attention": str(prepared.choice),
        f"{form.name}: video tiles kept": f"{prepared.tiles.budget(prepared.share_left_out(STEP, 0))} of {prepared.tiles.n_video}",
        f"{form.name}: attention ms per layer": whole,
        f"{form.name}: choice of tiles ms per layer": choice,
        f"{form.name}: choice of tiles, share of the attention": choice / whole,
        f"{form.name}: choice of tiles, share of the step": config.layers * choice / ms,
    }


@contextmanager
def few_blocks(model: H3, count: int) -> Iterator[None]:
    """The model with its first blocks only."""
    every = model.blocks
    model.blocks = every[:count]
    try:
        yield
    finally:
        model.blocks = every


def forms(model: H3, device: torch.device, part_of_name: str = "") -> Iterator[ClipForm]:
    """The fused form with both kinds of weights, each dense and sparse, and plain modules; those that are `asked_for`."""
    kind, fused = plain_kind(model), choose_form(model, device)
    fused = fused or Form(choose_dense(device, model.dtype, model.config.head_dim))
    found: list[ClipForm] = []
    linears = [kind, *([FP8] if quant_matmul.chosen(FP8, device).works or device.type == "cpu" else [])]
    for one_kind in linears:
        name = FUSED if one_kind == kind else f"{FUSED}, fp8 linears"
        found.append(ClipForm(f"{name}, dense", fused, one_kind, None))
        found += [ClipForm(f"{name}, keep {keep:g} %", fused, one_kind, keep) for keep in KEEPS]
    found.append(ClipForm(f"{PLAIN}, dense", None, kind, None))
    return (one for one in found if asked_for(part_of_name, one.name))


def step_flops(clip: Clip, keep: float | None) -> int:
    """Of one step: the block products, the gates where they act, and the attention over the rows that are seen."""
    config, segments = clip.model.config, clip.segments
    rows, prefix = segments.rows, sum(segments.runs)
    products = linear_flops(config, rows)
    if keep is None:
        return products + attention_flops(config, Shape(rows, rows))
    video = rows - prefix
    tiles = -(-segments.grid[0] // 4) * -(-segments.grid[1] // 4) * -(-segments.grid[2] // 4)
    seen = prefix + round(video * kept_tiles(1.0 - keep / 100.0, tiles) / tiles)
    gates = 2 * rows * config.layers * config.hidden * config.inner
    sparse = attention_flops(config, Shape(prefix, rows)) + attention_flops(config, Shape(video, seen))
    return products + gates + sparse
