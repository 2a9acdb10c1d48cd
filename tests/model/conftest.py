"""A tiny H3 with random weights and a full Ref2VA packing for it, made without the schedule room."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from streamrender_h3.nodes.model import H3, H3Config, PackedRows, modulation_rows

TINY = H3Config(
    hidden=96,
    layers=3,
    refiner_layers=2,
    heads=4,
    head_dim=32,
    ffn=160,
    text_dim=80,
    freq_dim=256,
    time_hidden=96,
    time_dim=48,
    rope_freqs=4,
)
TIMES = (0.0, 1 / 7, 0.4, 0.999)
NOISE, CURRENT, SOUND, CLEAN = range(4)  # places in TIMES


@dataclass
class Packing:
    """One window with every kind of row: text with vision tokens, picture, reference, audio history and new, video."""

    text: torch.Tensor  # encoder states
    picture: torch.Tensor
    reference: torch.Tensor
    audio: torch.Tensor
    video: torch.Tensor
    tags: torch.Tensor
    time_index: torch.Tensor
    positions: torch.Tensor
    prefix: torch.Tensor  # [S] bool: text, picture, first reference latent, first audio latent, first video latent

    def rows(self, model: H3, **changes) -> PackedRows:
        fields = {
            "text": model.refine_text(self.text),
            "before": torch.cat([self.picture, self.reference]),
            "audio": self.audio,
            "video": self.video,
            "rope": model.rope(self.positions),
            "modulation_row": modulation_rows(self.time_index, self.tags),
            "time_index": self.time_index,
            "predict_video": slice(None),
            "predict_audio": slice(None),
        }
        return PackedRows(**{**fields, **changes})


def axes(rows: tuple[int, int]) -> tuple[list[float], list[float]]:
    area = math.sqrt(4 * rows[0] * rows[1])
    return tuple([32 * ((1 - 2 * n / area) / 2 + 2 / area * k) for k in range(n)] for n in rows)


def make_packing(config: H3Config, grid=(3, 5), reference=(2, 3), latents=3, sounds=5, words=7, seed=0) -> Packing:
    g = torch.Generator().manual_seed(seed)

    def noise(count: int, width: int) -> torch.Tensor:
        return torch.randn(count, width, generator=g)

    def frames(rows: tuple[int, int], origin: float, count: int) -> list[tuple[float, float, float]]:
        heights, widths = axes(rows)
        return [(origin + 5 / 3 * 4 * i, y, x) for i in range(count) for y in heights for x in widths]

    per, per_reference, width = grid[0] * grid[1], reference[0] * reference[1], config.video_features
    stereo = (min(axes(grid)[1]), max(axes(grid)[1]))
    positions = [(float(n), 0.0, 0.0) for n in range(words)]
    positions += frames(grid, words, 1) + frames(reference, words + 1, latents)
    positions += [(words + 20.0 + j, 0.0, x) for x in stereo for j in range(sounds)]
    positions += frames(grid, words + 20, latents)

    visual, vision_tokens = per + latents * per_reference, words // 2
    tags = (
        [0] * vision_tokens + [1] * (words - vision_tokens) + [0] * visual + [2] * (2 * sounds) + [0] * (latents * per)
    )
    sound_times = [CLEAN] + [SOUND] * (sounds - 1)
    video_times = [CLEAN] * per + [CURRENT] * ((latents - 2) * per) + [NOISE] * per
    time_index = [CURRENT] * words + [CLEAN] * visual + sound_times * 2 + video_times
    first_sound = [True] + [False] * (sounds - 1)
    prefix = [True] * (words + per + per_reference) + [False] * ((latents - 1) * per_reference)
    prefix += first_sound * 2 + [True] * per + [False] * ((latents - 1) * per)
    return Packing(
        text=noise(words, config.text_dim),
        picture=noise(per, width),
        reference=noise(latents * per_reference, width),
        audio=noise(2 * sounds, config.audio_channels),
        video=noise(latents * per, width),
        tags=torch.tensor(tags),
        time_index=torch.tensor(time_index),
        positions=torch.tensor(positions, dtype=torch.float64),
        prefix=torch.tensor(prefix),
    )


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int = 1) -> None:
    """Weights large enough for layout errors to show: default initialisation hides them."""
    g = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        norm = weight.ndim == 1 and not name.endswith("bias")
        weight.copy_(torch.randn(weight.shape, generator=g) * (0.1 if norm else 0.08) + float(norm))


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert found.shape == wanted.shape
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


@pytest.fixture
def tiny() -> H3:
    model = H3(TINY)
    randomise(model)
    return model


@pytest.fixture
def packing() -> Packing:
    return make_packing(TINY)


@pytest.fixture
def tools() -> SimpleNamespace:
    """The helpers above, for test files that need other sizes."""

    return SimpleNamespace(
        config=TINY,
        times=TIMES,
        make_packing=make_packing,
        randomise=randomise,
        relative_error=relative_error,
        replace=replace,
    )
