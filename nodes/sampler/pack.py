"""Packing: from the latents of one window to the rows the transformer reads, for the whole window, its prefix or its moving part.

Native row order is text, picture, reference, audio (left then right), video; prefix and moving rows each keep that order.
Everything that depends only on the shape of the window (positions, tags, which rows move) is a `Layout`; the stationary
template makes them repeat, so a render caches a handful.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..model import H3, MODALITIES, LayerAttention, PackedRows, Rope, RowOrder, audio_rows, patchify
from ..schedule import Geometry, RowPlan, Window, positions, row_plan, tags
from .bank import StepBank
from .grids import CLEAN_TIME, h3_time

NOISY_VIDEO, NOISY_AUDIO, CLEAN = 0, 1, 2


@dataclass(frozen=True)
class WindowLatents:
    """What a window holds, already conditioned with noise; float32 on the render's device."""

    picture: Tensor  # [24, 1, h, w]
    reference: Tensor  # [24, references, h', w']
    video: Tensor  # [24, window, h, w]: sink, recent, current
    audio: Tensor  # [2, 32, window audio]


@dataclass(frozen=True)
class Part:
    """Rows of a window that one forward runs: their coordinates, modality tags and kind of time.

    With `order` the blocks work in that order and `rope` is in it; everything else is packed.
    """

    rope: Rope
    tags: Tensor  # [rows] long
    clock: Tensor  # [rows] long: NOISY_VIDEO, NOISY_AUDIO or CLEAN
    new_sound: Tensor  # long, which of the sound rows are new
    order: RowOrder | None = None
    _indices: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def indices(self, times: RowTimes) -> tuple[Tensor, Tensor]:
        """(modulation_row, time_index) int32 [rows] at the times of a step; made once for every order of times."""
        if times.places not in self._indices:
            time_index = times.index[self.clock]
            rows = (time_index * MODALITIES + self.tags).int()
            self._indices[times.places] = rows if self.order is None else rows[self.order.rows], time_index.int()
        return self._indices[times.places]

    def in_order(self, rows: Tensor) -> Part:
        """The same part for blocks that work on its rows in another order: `rows` [rows] long, the row at every place."""
        return replace(self, rope=self.rope[rows], order=RowOrder.of(rows), _indices={})


@dataclass(frozen=True)
class Layout:
    """One window's shape for one guidance branch."""

    plan: RowPlan
    whole: Part
    prefix: Part
    moving: Part
    sink_latents: int
    sink_references: int
    sink_audio: int
    new_latents: int
    new_audio: int
    sparse: Callable[[StepBank], LayerAttention] | None = None  # of the moving rows in place of dense attention


def row_index(ranges: Iterable[range], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(r.start, r.stop, device=device) for r in ranges] or [torch.arange(0, device=device)])


def make_layout(model: H3, window: Window, geometry: Geometry, text_tags: Tensor, *, reference: bool) -> Layout:
    """Coordinates and row kinds of `window`; `text_tags` [text rows] are the branch's own."""
    device = text_tags.device
    plan = row_plan(window, geometry, len(text_tags), reference=reference)
    place = torch.tensor(
        positions(window, geometry, len(text_tags), reference=reference), dtype=torch.float64, device=device
    )

    modality = torch.tensor(tags(plan, text_tags.tolist()), device=device)
    clock = torch.full((plan.total,), CLEAN, dtype=torch.long, device=device)
    clock[: len(text_tags)] = NOISY_VIDEO
    clock[row_index(plan.noisy_video, device)] = NOISY_VIDEO
    clock[row_index(plan.noisy_audio, device)] = NOISY_AUDIO

    def part(rows: Tensor, sounds: int) -> Part:
        """`sounds` are the sound latents of the part that end with the new ones, 0 where none is new."""
        new = torch.arange(sounds - len(window.audio_new), sounds, device=device) if sounds else rows[:0]
        return Part(model.rope(place[rows]), modality[rows], clock[rows], torch.cat([new, new + sounds]))

    sounds = len(window.audio_window)

    return Layout(
        plan=plan,
        whole=part(torch.arange(plan.total, device=device), sounds),
        prefix=part(row_index(plan.prefix, device), 0),
        moving=part(row_index(plan.moving, device), sounds - window.audio_sink),
        sink_latents=len(window.sink_latents),
        sink_references=len(window.sink_latents) if reference else 0,
        sink_audio=window.audio_sink,
        new_latents=len(window.latents),
        new_audio=len(window.audio_new),
    )


@dataclass(frozen=True)
class RowTimes:
    """The network times of one step, ascending and distinct, and the index of each kind of row among them."""

    times: tuple[float, ...]
    places: tuple[int, ...]  # three, by NOISY_VIDEO, NOISY_AUDIO, CLEAN
    index: Tensor  # [3] long, the places on the device

    @classmethod
    def at(cls, video_sigma: float, audio_sigma: float, device: torch.device) -> RowTimes:
        by_kind = (h3_time(video_sigma), h3_time(audio_sigma), CLEAN_TIME)
        times = tuple(sorted(set(by_kind)))
        places = tuple(times.index(t) for t in by_kind)
        return cls(times, places, torch.tensor(places, device=device))


def pack_whole(layout: Layout, text: Tensor, latents: WindowLatents, times: RowTimes) -> PackedRows:
    """Every row of the window; `text` [text rows, hidden] is already refined. Predicts the new video and audio latents."""
    before = torch.cat(
        [patchify(latents.picture), patchify(latents.reference)[: len(layout.plan.segments["reference"])]]
    )
    return _pack(layout, layout.whole, text, before, latents.audio, latents.video, times, predict=True)


def pack_prefix(layout: Layout, text: Tensor, latents: WindowLatents, times: RowTimes) -> PackedRows:
    """The rows that never change; nothing is predicted from them."""
    before = torch.cat([patchify(latents.picture), patchify(latents.reference[:, : layout.sink_references])])
    audio = latents.audio[:, :, : layout.sink_audio]
    video = latents.video[:, : layout.sink_latents]
    return _pack(layout, layout.prefix, text, before, audio, video, times, predict=False)


def pack_moving(layout: Layout, text: Tensor, latents: WindowLatents, times: RowTimes) -> PackedRows:
    """Recent and current rows, to be run against the prefix bank; `text` only lends its width."""
    before = patchify(latents.reference[:, layout.sink_references :])
    if not layout.plan.segments["reference"]:
        before = before[:0]
    audio = latents.audio[:, :, layout.sink_audio :]
    video = latents.video[:, layout.sink_latents :]
    return _pack(layout, layout.moving, text[:0], before, audio, video, times, predict=True)


def _pack(
    layout: Layout,
    part: Part,
    text: Tensor,
    before: Tensor,
    audio: Tensor,
    video: Tensor,
    times: RowTimes,
    *,
    predict: bool,
) -> PackedRows:
    video_rows = patchify(video)
    modulation_row, time_index = part.indices(times)
    old = len(video_rows) // max(1, video.shape[1]) * (video.shape[1] - layout.new_latents)
    return PackedRows(
        text=text,
        before=before,
        audio=audio_rows(audio),
        video=video_rows,
        rope=part.rope,
        modulation_row=modulation_row,
        time_index=time_index,
        order=part.order,
        predict_video=slice(old, None) if predict else None,
        predict_audio=part.new_sound if predict else None,
    )
