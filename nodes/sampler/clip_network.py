"""The transformer over all rows of a clip at once: packs them, adds up guidance branches, hands attention its order."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..model import (
    H3,
    MODALITIES,
    AdaLNTables,
    Form,
    LayerAttention,
    Modulation,
    PackedRows,
    Rope,
    RowOrder,
    audio_from_rows,
    audio_rows,
    patchify,
    run_fast,
    unpatchify,
)
from .clip_attention import ClipAttention, PreparedAttention, RowSegments
from .clip_plan import ClipShape
from .grids import CLEAN_TIME, TimeGrid, h3_time
from .guidance import SINGLE, Branch
from .pack import CLEAN, NOISY_AUDIO, NOISY_VIDEO, RowTimes


@dataclass(frozen=True)
class ClipText:
    """The words of a clip, on the model's device. `media_rows` lead and show the picture, all that a branch without caption
    keeps."""

    text: Tensor  # [text rows, text_dim] encoder states
    tags: Tensor  # [text rows] long, 1 text and 0 picture rows
    media_rows: int = 0


@dataclass(frozen=True)
class ClipLatents:
    """What one call sees, float32; picture and reference already carry their 0.001 of noise."""

    video: Tensor  # [24, T, h, w], noisy
    audio: Tensor  # [2, 32, A], noisy
    picture: Tensor | None = None  # [24, 1, h, w]
    reference: Tensor | None = None  # [24, T, h', w']


@dataclass(frozen=True)
class ClipLayout:
    """One branch's rows: coordinates and modality in the order of the blocks, the kind of time in packed order."""

    rope: Rope
    tags: Tensor  # [S] long, packed order
    clock: Tensor  # [S] long, packed order: NOISY_VIDEO, NOISY_AUDIO or CLEAN
    order: RowOrder | None
    attention: PreparedAttention | None


@dataclass
class ClipNetwork:
    """Predicts the clean latents of a whole clip. `attention` None is the dense one of the device."""

    model: H3
    tables: AdaLNTables
    text: ClipText
    shape: ClipShape
    grid: TimeGrid
    branches: tuple[Branch, ...] = SINGLE
    form: Form | None = None
    attention: ClipAttention | None = None
    _layouts: dict[str, ClipLayout] = field(default_factory=dict)
    _refined: dict[bool, Tensor] = field(default_factory=dict)
    _now: tuple[int, RowTimes, Modulation] | None = None

    @torch.no_grad()
    def __call__(self, latents: ClipLatents, step: int) -> tuple[Tensor, Tensor]:
        """(x0 video [24, T, h, w], x0 audio [2, 32, A]) in step `step` of the grid."""
        sums: tuple[Tensor, Tensor] | None = None
        for branch in self.branches:
            video, audio = self._velocity(branch, latents, step)
            if sums is None:
                sums = branch.weight * video, branch.weight * audio
            else:
                sums = sums[0].add_(video, alpha=branch.weight), sums[1].add_(audio, alpha=branch.weight)
        assert sums is not None  # there is always a branch, and weights sum to 1
        return (
            latents.video + (1.0 - h3_time(self.grid.video[step])) * sums[0],
            latents.audio + (1.0 - h3_time(self.grid.audio[step])) * sums[1],
        )

    def _velocity(self, branch: Branch, latents: ClipLatents, step: int) -> tuple[Tensor, Tensor]:
        layout, text = self._layout(branch), self._text(branch.caption)
        times, modulation = self._step(step, text.device)
        time_index = times.index[layout.clock]
        modulation_row = time_index * MODALITIES + layout.tags
        before = [latents.picture] if latents.picture is not None else []
        if branch.reference and latents.reference is not None:
            before.append(latents.reference)
        rows = PackedRows(
            text=text,
            before=torch.cat([patchify(one) for one in before]) if before else patchify(latents.video[:, :0]),
            audio=audio_rows(latents.audio),
            video=patchify(latents.video),
            rope=layout.rope,
            modulation_row=(modulation_row if layout.order is None else modulation_row[layout.order.rows]).int(),
            time_index=time_index.int(),
            predict_video=slice(None),
            predict_audio=slice(None),
            order=layout.order,
        )
        video, audio = self._forward(rows, modulation, layout.attention.at(step) if layout.attention else None)
        return unpatchify(video, *latents.video.shape[1:]), audio_from_rows(audio)

    def _forward(
        self, rows: PackedRows, modulation: Modulation, sparse: LayerAttention | None
    ) -> tuple[Tensor, Tensor]:
        if self.form is not None and self.form.fast:
            return run_fast(self.model, rows, modulation, self.form, sparse=sparse)
        if sparse is not None:
            return self.model(rows, modulation, sparse=sparse)
        return self.model(rows, modulation, attend=self.form.attention.run if self.form else None)

    def _step(self, step: int, device: torch.device) -> tuple[RowTimes, Modulation]:
        """The times of a denoising step and their modulation; only those of the present step are kept."""
        if self._now is None or self._now[0] != step:
            times = clip_times(self.grid, step, device, clean=self.shape.picture is not None)
            self._now = step, times, self.tables.at(times.times)
        return self._now[1:]

    def _text(self, caption: bool) -> Tensor:
        if caption not in self._refined:
            rows = len(self.text.text) if caption else self.text.media_rows
            self._refined[caption] = self.model.refine_text(self.text.text[:rows])
        return self._refined[caption]

    def _layout(self, branch: Branch) -> ClipLayout:
        if branch.name not in self._layouts:
            tags = self.text.tags if branch.caption else self.text.tags[: self.text.media_rows]
            shape = self.shape if branch.reference else self.shape.without_reference()
            prepared = None
            if self.attention is not None:
                prepared = self.attention.prepare(RowSegments.of(shape, len(tags)), tags.device)
            self._layouts[branch.name] = make_clip_layout(self.model, shape, tags, prepared)
        return self._layouts[branch.name]


def clip_times(grid: TimeGrid, step: int, device: torch.device, *, clean: bool) -> RowTimes:
    """The network times of a step. Without clean rows theirs is not among them: finished tables of text to video lack it."""
    by_kind = h3_time(grid.video[step]), h3_time(grid.audio[step]), CLEAN_TIME
    times = tuple(sorted(set(by_kind if clean else by_kind[:2])))
    places = tuple(times.index(time) if time in times else 0 for time in by_kind)
    return RowTimes(times, places, torch.tensor(places, device=device))


def ladder(grid: TimeGrid, *, clean: bool) -> tuple[float, ...]:
    """Every network time that a clip on this grid can ask for, ascending."""
    return tuple(time for time in grid.h3_times() if clean or time != CLEAN_TIME)


def make_clip_layout(
    model: H3, shape: ClipShape, text_tags: Tensor, attention: PreparedAttention | None = None
) -> ClipLayout:
    """Coordinates and kinds of all rows of a call; `text_tags` [text rows] are the branch's own."""
    device, parts = text_tags.device, shape.segments(len(text_tags))
    order = None if attention is None else RowOrder.of(attention.order.to(device))
    place = torch.tensor(shape.positions(len(text_tags)), dtype=torch.float64, device=device)
    clock = torch.full((len(place),), CLEAN, dtype=torch.long, device=device)
    for name, kind in (("text", NOISY_VIDEO), ("audio", NOISY_AUDIO), ("video", NOISY_VIDEO)):
        clock[parts[name].start : parts[name].stop] = kind
    return ClipLayout(
        rope=model.rope(place if order is None else place[order.rows]),
        tags=torch.tensor(shape.tags(text_tags.tolist()), device=device),
        clock=clock,
        order=order,
        attention=attention,
    )
