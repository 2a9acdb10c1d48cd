"""A second implementation of the chunked stream, for tests: from a saved render and a checkpoint to all its chunks.

Nothing here comes from the engine. The network is diffusers' MiniMaxH3Transformer3DModel, the prefix bank is an
attention mask over the whole window, and the whole past is kept instead of the part a schedule needs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from recompute_network import Network, Rows
from safetensors import safe_open
from torch import Tensor

VIDEO_SHIFT, AUDIO_SHIFT = 6.0, 1.5
VIDEO, TEXT, AUDIO = 0, 1, 2


@dataclass(frozen=True)
class Rules:
    """Choices whose mistakes are easy to make and hard to see; the defaults are right, a test turns one of them."""

    draws: tuple[str, ...] = ("video", "audio", "history", "reference")
    history_noise_covers_new: bool = True
    freeze_sink_at: int | None = 1
    integer_grid: bool = False
    picture_noise_of: str = "picture"
    reference_axes_of: str = "reference"
    audio_axis_of: str = "video"
    clean_time: float = 0.999
    text_time_follows: str = "video"
    text_tags_as_saved: bool = True
    stationary_positions: bool = True
    mask_prefix: bool = True
    renoise_audio_history: bool = False


RULES = Rules()


# --- the saved render ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """One --save-latents file: what the network was given, what came out, and the settings."""

    video: Tensor
    audio: Tensor
    text: Tensor
    tags: Tensor
    picture: Tensor
    reference: Tensor
    facts: dict[str, Any] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Saved:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return cls(**tensors, facts={name: json.loads(text) for name, text in file.metadata().items()})

    @property
    def steps(self) -> int:
        return len(self.facts["grids"]["video"])


def time_grid(steps: int, shift: float, rules: Rules = RULES) -> Tensor:
    """Noise levels of all steps and the final 0, float32: trailing base grid, shifted, computed in double precision."""
    base = [1 - i / steps for i in range(steps)] + [0.0]
    levels = torch.tensor([shift * u / (1 + (shift - 1) * u) for u in base], dtype=torch.float64)
    return (levels.round() if rules.integer_grid else levels).float()


# --- time ------------------------------------------------------------------------------------------------------------


def first_frame(latent: int) -> int:
    return 17 * (latent // 5) + (0, 1, 5, 9, 13)[latent % 5]


def first_audio(latent: int) -> int:
    return -(-5 * first_frame(latent) // 3)


def clock(latent: int) -> float:
    return 5 * first_frame(latent) / 3


def first_latent(unit: int) -> int:
    """Units hold 2, 1, 1, 1 latents: the one-frame latent of every cycle is scheduled with its successor."""
    return 5 * (unit // 4) + (0, 2, 3, 4)[unit % 4]


@dataclass(frozen=True)
class Plan:
    """Which latents one chunk works on, and where they stand in time."""

    start: int
    stop: int
    sink: int
    latents: list[int]
    audio: list[int]
    template: float
    shift: float

    @property
    def new(self) -> int:
        return self.stop - self.start

    @property
    def new_audio(self) -> int:
        return first_audio(self.stop) - first_audio(self.start)

    def time_of_latent(self, latent: int) -> float:
        return clock(latent) + (0 if latent < self.sink else self.shift)

    def time_of_audio(self, index: int) -> float:
        return index + (0 if index < first_audio(self.sink) else self.shift)


def plan_chunk(index: int, facts: dict[str, int], rules: Rules = RULES) -> Plan:
    sink, window, chunk, bootstrap = (facts[name] for name in ("sink", "window", "chunk", "bootstrap"))
    first, last = (0, bootstrap) if index == 0 else (bootstrap + (index - 1) * chunk, bootstrap + index * chunk)
    start, stop = first_latent(first), first_latent(last)
    if index == 0:
        latents, held, template, shift = list(range(stop)), 0, clock(stop), 0.0
    else:
        sink_stop, recent = first_latent(sink), first_latent(max(0, first - window))
        held = min(sink_stop, start)
        latents = sorted({*range(held), *range(recent, stop)})
        template, shift = clock(first_latent(sink + window + chunk)), clock(sink_stop) - clock(max(sink_stop, recent))
        if not rules.stationary_positions:
            template, shift = clock(stop), 0.0
    audio = [j for i in latents for j in range(first_audio(i), first_audio(i + 1))]
    return Plan(start, stop, held, latents, audio, template, shift)


def plans(facts: dict[str, Any], rules: Rules = RULES) -> Iterator[Plan]:
    """Full chunks until the clip is covered."""
    index, covered = 0, 0
    while covered < facts["frames"]:
        plan = plan_chunk(index, facts["schedule"], rules)
        yield plan
        index, covered = index + 1, first_frame(plan.stop)


# --- rows ------------------------------------------------------------------------------------------------------------


def axes(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Coordinates of the 2x2 patches of a latent grid: centred on 16, every grid covers the same area."""
    area = math.sqrt(height * width)

    def axis(size: int) -> Tensor:
        k = torch.arange(size // 2, dtype=torch.float64)
        return 32 * ((1 - size / area) / 2 + size / area * k / (size / 2))

    return axis(height), axis(width)


def placed(times: list[float], grid: tuple[Tensor, ...]) -> Tensor:
    """(t, h, w) of every row, time outermost."""
    return torch.cartesian_prod(torch.tensor(times, dtype=torch.float64), *grid)


def patches(latents: Tensor) -> Tensor:
    """[24, n, h, w] -> [n * h/2 * w/2, 96]; features channel-major."""
    c, n, h, w = latents.shape
    return latents.reshape(c, n, h // 2, 2, w // 2, 2).permute(1, 2, 4, 0, 3, 5).reshape(-1, 4 * c)


def unpatched(rows: Tensor, n: int, h: int, w: int) -> Tensor:
    return rows.reshape(n, h // 2, w // 2, -1, 2, 2).permute(3, 0, 1, 4, 2, 5).reshape(-1, n, h, w)


@dataclass(frozen=True)
class Packing:
    """The rows of a window, without their values: text, picture, reference, audio (left, right), video.

    `time_of` says whose time a row has (0 current video, 1 current audio, 2 clean); `places` are the indices of the
    (visual, audio, text) rows.
    """

    positions: Tensor
    tags: Tensor
    time_of: Tensor
    prefix: Tensor
    places: Rows


def pack(plan: Plan, saved: Saved, rules: Rules) -> Packing:
    grids = {name: axes(*getattr(saved, name).shape[2:]) for name in ("picture", "reference", "video")}
    reference_grid = tuple(
        axis[: len(own)] for axis, own in zip(grids[rules.reference_axes_of], grids["reference"], strict=True)
    )
    text = len(saved.text)
    reference_origin = text + 1
    target_origin = reference_origin + plan.template
    place = {
        "text": torch.tensor([(n, 0, 0) for n in range(text)], dtype=torch.float64),
        "picture": placed([text], grids["picture"]),
        "reference": placed([reference_origin + plan.time_of_latent(i) for i in plan.latents], reference_grid),
        "audio": torch.cat(
            [
                placed([target_origin + plan.time_of_audio(j) for j in plan.audio], (torch.zeros(1).double(), edge[None]))
                for edge in (grids[rules.audio_axis_of][1].min(), grids[rules.audio_axis_of][1].max())
            ]
        ),
        "video": placed([target_origin + plan.time_of_latent(i) for i in plan.latents], grids["video"]),
    }
    counts = {name: len(rows) for name, rows in place.items()}
    in_sink = torch.tensor([i < plan.sink for i in plan.latents])
    current = torch.tensor([i >= plan.start for i in plan.latents])
    audio_in_sink = torch.tensor([j < first_audio(plan.sink) for j in plan.audio]).repeat(2)
    audio_current = torch.tensor([j >= first_audio(plan.start) for j in plan.audio]).repeat(2)

    def per_row(flags: Tensor, name: str) -> Tensor:
        return flags.repeat_interleave(counts[name] // len(flags))

    prefix = [
        torch.ones(text + counts["picture"], dtype=torch.bool),
        per_row(in_sink, "reference"),
        audio_in_sink,
        per_row(in_sink, "video"),
    ]
    time_of = [
        torch.full((text,), 0 if rules.text_time_follows == "video" else 2),
        torch.full((counts["picture"] + counts["reference"],), 2),
        torch.where(audio_current, 1, 2),
        torch.where(per_row(current, "video"), 0, 2),
    ]
    modality = {"picture": VIDEO, "reference": VIDEO, "audio": AUDIO, "video": VIDEO}
    tags = [saved.tags if rules.text_tags_as_saved else torch.full((text,), TEXT)]
    tags += [torch.full((counts[name],), tag) for name, tag in modality.items()]
    rows = torch.arange(sum(counts.values())).split(list(counts.values()))
    return Packing(
        positions=torch.cat(list(place.values())),
        tags=torch.cat(tags),
        time_of=torch.cat(time_of),
        prefix=torch.cat(prefix),
        places=(torch.cat([rows[1], rows[2], rows[4]]), rows[3], rows[0]),
    )


# --- the stream ------------------------------------------------------------------------------------------------------


def picture_seed(seed: int, rules: Rules) -> int:
    name = f"{seed}_streaming_picture_noise_{rules.picture_noise_of}"
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2**63


def conditioned(clean: Tensor, noise: Tensor) -> Tensor:
    return 0.999 * clean + 0.001 * noise


@torch.inference_mode()
def recompute(saved: Saved, network: Network, rules: Rules = RULES) -> Iterator[tuple[Tensor, Tensor]]:
    """(video [24, n, h, w], audio [2, 32, a]) of every chunk, from the saved inputs alone."""
    seed, (height, width) = saved.facts["seed"], saved.video.shape[2:]
    stream = torch.Generator().manual_seed(seed)
    still = torch.Generator().manual_seed(picture_seed(seed, rules))
    elsewhere = torch.Generator().manual_seed(seed + 1)
    picture = patches(conditioned(saved.picture, torch.randn(saved.picture.shape, generator=still)))
    video_levels, audio_levels = (time_grid(saved.steps, shift, rules) for shift in (VIDEO_SHIFT, AUDIO_SHIFT))
    past_video, past_audio = saved.video[:, :0], saved.audio[:, :, :0]
    with_prefix = saved.facts["attention"] == "prefix"
    frozen: tuple[Tensor, Tensor] | None = None

    for index, plan in enumerate(plans(saved.facts, rules)):
        packing = pack(plan, saved, rules)
        covered = len(plan.latents) - (0 if rules.history_noise_covers_new else plan.new)
        shapes = {
            "video": (24, plan.new, height, width),
            "audio": (2, 32, plan.new_audio),
            "history": (24, covered, height, width),
            "reference": (24, len(plan.latents), *saved.reference.shape[2:]),
        }
        noise = {name: torch.randn(shapes[name], generator=stream) for name in rules.draws}
        x_video, x_audio = noise["video"], noise["audio"]

        held = len(plan.latents) - plan.new
        history = conditioned(past_video[:, plan.latents[:held]], noise["history"][:, :held])
        reference = conditioned(saved.reference[:, plan.latents], noise["reference"])
        sounds = past_audio[:, :, plan.audio[: len(plan.audio) - plan.new_audio]]
        if rules.renoise_audio_history:
            sounds = conditioned(sounds, torch.randn(sounds.shape, generator=elsewhere))
        if with_prefix and index and rules.freeze_sink_at is not None:
            if frozen is None:
                frozen = history[:, : plan.sink], reference[:, : plan.sink]
            history = torch.cat([frozen[0], history[:, plan.sink :]], dim=1)
            reference = torch.cat([frozen[1], reference[:, plan.sink :]], dim=1)

        mask = None
        if with_prefix and index and rules.mask_prefix:
            mask = ~packing.prefix[:, None] | packing.prefix[None, :]
        before = torch.cat([picture, patches(reference)])
        for step in range(saved.steps):
            now_video, now_audio = video_levels[step], audio_levels[step]
            times = torch.stack([1 - now_video, 1 - now_audio, torch.tensor(rules.clean_time)])
            visual = torch.cat([before, patches(torch.cat([history, x_video], dim=1))])
            heard = torch.cat([sounds, x_audio], dim=2).transpose(1, 2).reshape(-1, 32)
            rows = visual, heard, saved.text
            v_video, v_audio = network(
                rows, packing.places, times[packing.time_of], packing.tags, packing.positions, mask
            )
            v_video = unpatched(v_video[len(before) :], len(plan.latents), height, width)[:, held:]
            v_audio = v_audio.reshape(2, -1, 32).transpose(1, 2)[:, :, -plan.new_audio :]
            x_video = ddim(x_video, x_video + (1 - times[0]) * v_video, now_video, video_levels[step + 1])
            x_audio = ddim(x_audio, x_audio + (1 - times[1]) * v_audio, now_audio, audio_levels[step + 1])

        if index == 0 == rules.freeze_sink_at:
            sink = first_latent(saved.facts["schedule"]["sink"])
            frozen = conditioned(x_video, noise["history"])[:, :sink], reference[:, :sink]
        past_video = torch.cat([past_video, x_video], dim=1)
        past_audio = torch.cat([past_audio, x_audio], dim=2)
        yield x_video, x_audio


def ddim(x: Tensor, x0: Tensor, now: Tensor, then: Tensor) -> Tensor:
    """One deterministic step along x = (1 - s) x0 + s eps, with the eps that x and x0 imply."""
    eps = (x - (1 - now) * x0) / now
    return (1 - then) * x0 + then * eps
