"""An H3 transformer with random weights made on the device, and everything that a rollout of it needs.

The network is in table form: the AdaLN projections (13 billion parameters in the released model) are never made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..loader.quant_linear import quantise_model
from ..model import BLOCK_SLOTS, FINAL_SLOTS, MODALITIES, RELEASE, AdaLNTables, H3Config, inverse_frequencies
from ..model import H3 as Transformer
from ..sampler import Conditions, Rollout, TimeGrid
from ..sampler.memory import Rows
from ..sampler.rollout import Predictor
from ..schedule import RELEASE as SCHEDULE
from ..schedule import Geometry, ScheduleError, Window, rows_per_frame
from .rows import BenchError, Options, Size

STEPS = 2
SEED = 3
REFERENCE_SCALE = 832 / 1344  # width of the map over width of the video, in the released sizes
STEP = 32  # pixels that both sides of a size must be multiples of
LEAST = 64
GATE_STD = 0.3  # with 50 layers, branches then outweigh the embedded rows about as in a trained network
HEAD_NORM = 1.5  # of q and k: attention then looks at some hundred keys, not at all or at one


@dataclass(frozen=True)
class Preset:
    """Sizes of the network and of what it renders. Text rows include those of the picture, one per 2x2 latents and 8."""

    config: H3Config
    size: Size
    text_rows: int


PRESETS = {
    "full": Preset(RELEASE, (768, 1344), 1883),
    "example": Preset(
        H3Config(hidden=384, layers=12, refiner_layers=1, heads=6, head_dim=64, ffn=768, text_dim=96, freq_dim=256,
                 time_hidden=128, time_dim=16, rope_freqs=8),
        (256, 448),
        400,
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Subject:
    """What is measured. `counts` are the rows of the bootstrap, the prefix and the moving part."""

    model: Transformer
    tables: AdaLNTables
    conditions: Conditions
    size: Size
    reference: Size
    counts: Rows

    @property
    def device(self) -> torch.device:
        return self.conditions.text.device

    @property
    def config(self) -> H3Config:
        return self.model.config

    @property
    def keys(self) -> int:
        """Rows that the moving rows attend to."""
        return self.counts.prefix + self.counts.moving

    def rollout(self, predict: Predictor) -> Rollout:
        """A stream from its first chunk on."""
        conditions, channels = self.conditions, self.config.audio_channels
        return Rollout(
            SCHEDULE, GRID, predict, conditions.picture, audio_channels=channels, seed=SEED, freeze_sink=True
        )

    def maps(self, window: Window) -> Tensor:
        """Map latents of the new latents of a window, always the same ones: [24, new, h', w'] on the device."""
        height, width = self.conditions.geometry.reference
        random = torch.Generator().manual_seed(window.latents.start)
        shape = (self.config.latent_channels, len(window.latents), height, width)
        return torch.randn(shape, generator=random).to(self.device)

    def title(self, what: str) -> str:
        height, width = self.size
        return f"{what}, {width}x{height}, {len(self.conditions.text)} text rows"


GRID = TimeGrid.trailing(STEPS)


def sizes(options: Options) -> tuple[Size, ...]:
    return options.sizes or (PRESETS[options.preset].size,)


def reference_size(size: Size) -> Size:
    """The map's size that goes with a video size: 832x480 for 1344x768."""
    height, width = (max(LEAST, STEP * round(side * REFERENCE_SCALE / STEP)) for side in size)
    return height, width


def subject(options: Options, size: Size) -> Subject:
    """The subject for these options; the weights are made once and shared between calls."""
    preset, device = PRESETS[options.preset], torch.device(options.device)
    reference = reference_size(size)
    try:
        geometry = Geometry.from_sizes(target=size, reference=reference, picture=size)
    except ScheduleError as error:
        raise BenchError(str(error)) from None
    text_rows = preset.text_rows if options.text_rows is None else options.text_rows
    picture_rows = rows_per_frame(geometry.target) + 8
    if text_rows <= picture_rows and options.text_rows is not None:
        raise BenchError(
            f"text rows are {text_rows}; at {size[1]}x{size[0]} the picture alone takes {picture_rows} of them. "
            "Give a larger --text-rows"
        )
    text_rows = max(text_rows, picture_rows + 1)
    model, tables = weights(options.preset, options.device)
    random = torch.Generator().manual_seed(1)
    tags = torch.ones(text_rows, dtype=torch.long)
    tags[6:picture_rows] = 0
    picture = torch.randn(preset.config.latent_channels, 1, *geometry.target, generator=random)
    text = torch.randn(text_rows, preset.config.text_dim, generator=random)
    conditions = Conditions(text.to(device), tags.to(device), picture_rows, picture.to(device), geometry)
    return Subject(model, tables, conditions, size, reference, Rows.of(SCHEDULE, geometry, text_rows))


@lru_cache(maxsize=1)
def weights(preset: str, device: str) -> tuple[Transformer, AdaLNTables]:
    """Random weights and tables on the device, bf16 there and float32 on a CPU."""
    where, config = torch.device(device), PRESETS[preset].config
    dtype = torch.float32 if where.type == "cpu" else torch.bfloat16
    return random_model(config, where, dtype), random_tables(config, where, dtype)


def release_weights() -> None:
    """Give the memory back."""
    weights.cache_clear()
    fp8_weights.cache_clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@torch.no_grad()
def random_model(config: H3Config, device: torch.device, dtype: torch.dtype) -> Transformer:
    """Weights with which every layer gives values near 1 for values near 1."""
    model = Transformer(config, adaln=False, device="meta", dtype=dtype).requires_grad_(False).to_empty(device=device)
    random = torch.Generator(device).manual_seed(0)
    for name, tensor in model.named_parameters():
        if tensor.ndim > 1:
            tensor.normal_(std=tensor.shape[1] ** -0.5, generator=random)
        elif name.endswith("bias"):
            tensor.normal_(std=0.02, generator=random)
        else:
            head = name.endswith(("q_norm.weight", "k_norm.weight"))
            tensor.normal_(mean=HEAD_NORM if head else 1.0, std=0.05, generator=random)
    model.rope.inv_freq.copy_(inverse_frequencies(config.rope_freqs, config.rope_theta))
    return model.eval()


@torch.no_grad()
def random_tables(
    config: H3Config, device: torch.device, dtype: torch.dtype, grid: TimeGrid | None = None
) -> AdaLNTables:
    """Modulation near none, with gates of either sign, for the times of a grid (the stream's)."""
    times = torch.tensor((grid or GRID).h3_times(), dtype=torch.float32)
    random = torch.Generator(device).manual_seed(2)

    def table(*shape: int) -> Tensor:
        return torch.empty(*shape, config.hidden, device=device, dtype=dtype).normal_(std=0.1, generator=random)

    blocks = table(config.layers, len(times), MODALITIES, BLOCK_SLOTS)
    blocks[..., (2, 5), :] *= GATE_STD / 0.1
    return AdaLNTables(times, blocks, table(len(times), FINAL_SLOTS))


@lru_cache(maxsize=1)
def fp8_weights(model: Transformer) -> Transformer:
    """A second model that shares all tensors of `model` but those of its large layers, which are fp8 with a scale per row."""
    twin = Transformer(model.config, adaln=False, device="meta", dtype=model.dtype)
    twin.load_state_dict(model.state_dict(), assign=True)
    quantise_model(twin, model.rope.inv_freq.device)
    return twin.requires_grad_(False).eval()
