"""The rows of one window, for `recompute.py`: which latents a chunk works on, their coordinates, tags and times."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from recompute_network import Rows
from torch import Tensor

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


def pack(plan: Plan, sizes: dict[str, tuple[int, int]], text_tags: Tensor, rules: Rules) -> Packing:
    """The packed window; `sizes` are the latent (height, width) of the picture, the reference and the video."""
    grids = {name: axes(*size) for name, size in sizes.items()}
    reference_grid = tuple(
        axis[: len(own)] for axis, own in zip(grids[rules.reference_axes_of], grids["reference"], strict=True)
    )
    text = len(text_tags)
    reference_origin = text + 1
    target_origin = reference_origin + plan.template
    place = {
        "text": torch.tensor([(n, 0, 0) for n in range(text)], dtype=torch.float64),
        "picture": placed([text], grids["picture"]),
        "reference": placed([reference_origin + plan.time_of_latent(i) for i in plan.latents], reference_grid),
        "audio": torch.cat(
            [
                placed(
                    [target_origin + plan.time_of_audio(j) for j in plan.audio], (torch.zeros(1).double(), edge[None])
                )
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
    tags = [text_tags if rules.text_tags_as_saved else torch.full((text,), TEXT)]
    tags += [torch.full((counts[name],), tag) for name, tag in modality.items()]
    rows = torch.arange(sum(counts.values())).split(list(counts.values()))
    return Packing(
        positions=torch.cat(list(place.values())),
        tags=torch.cat(tags),
        time_of=torch.cat(time_of),
        prefix=torch.cat(prefix),
        places=(torch.cat([rows[1], rows[2], rows[4]]), rows[3], rows[0]),
    )
