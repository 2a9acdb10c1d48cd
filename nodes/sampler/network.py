"""The transformer as the rollout's predictor: packs rows, fills the prefix bank, adds up guidance branches."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..model import (
    H3,
    AdaLNTables,
    Form,
    LayerAttention,
    Modulation,
    PackedRows,
    audio_from_rows,
    run_fast,
    unpatchify,
)
from ..schedule import Geometry, Window, layout_key
from .bank import Place, PrefixBank, StepBank
from .grids import TimeGrid, h3_time
from .guidance import SINGLE, Branch
from .pack import Layout, RowTimes, WindowLatents, make_layout, pack_moving, pack_prefix, pack_whole
from .window_sparse import SparseWindow

PREFIX = "prefix"
DENSE = "dense"


@dataclass(frozen=True)
class Conditions:
    """What stays the same for a whole render."""

    text: Tensor  # [text rows, text_dim] encoder states
    tags: Tensor  # [text rows] long, 1 text and 0 picture rows
    media_rows: int  # leading rows that show the picture; all that a caption-free branch keeps
    picture: Tensor  # [24, 1, h, w] clean latent at target size
    geometry: Geometry


@dataclass
class Network:
    """Predicts clean latents with the H3 transformer.

    `attention` is "prefix" (from chunk 1 on only the moving rows run, against the bank; exact for checkpoints trained that
    way) or "dense" (the whole window every time, as other checkpoints need). Predictions of several branches are summed
    with their weights as x0.
    """

    model: H3
    tables: AdaLNTables
    conditions: Conditions
    grid: TimeGrid
    attention: str = PREFIX
    branches: tuple[Branch, ...] = SINGLE
    bank: PrefixBank = field(default_factory=PrefixBank)
    form: Form | None = None  # fused kernels and a chosen attention; None for the plain modules as they are
    sparse: SparseWindow | None = None  # an experiment, with the prefix bank alone
    _layouts: dict[tuple[str, object], Layout] = field(default_factory=dict)
    _text: dict[bool, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _steps: dict[int, tuple[RowTimes, Modulation]] = field(default_factory=dict)

    def __call__(self, window: Window, latents: WindowLatents, step: int) -> tuple[Tensor, Tensor]:
        predictions = [(branch.weight, self._predict(branch, window, latents, step)) for branch in self.branches]
        if len(predictions) == 1 and predictions[0][0] == 1.0:
            return predictions[0][1]
        video = torch.stack([weight * x0[0] for weight, x0 in predictions]).sum(0)
        audio = torch.stack([weight * x0[1] for weight, x0 in predictions]).sum(0)
        return video, audio

    def _predict(self, branch: Branch, window: Window, latents: WindowLatents, step: int) -> tuple[Tensor, Tensor]:
        text, tags = self._text_rows(branch.caption)
        layout = self._layout(branch, window, tags)
        sigmas = self.grid.video[step], self.grid.audio[step]
        times, modulation = self._step(step, text.device)
        if window.is_bootstrap or self.attention == DENSE:
            rows = pack_whole(layout, text, latents, times)
            velocity = self._forward(rows, modulation)
        else:
            bank = self.bank.get(branch.name, step) or self._prefill(branch, layout, text, latents, step)
            rows = pack_moving(layout, text, latents, times)
            velocity = self._forward(rows, modulation, bank, layout.sparse and layout.sparse(bank))
        height, width = latents.video.shape[-2:]
        new = len(window.latents)
        video = unpatchify(velocity[0], new, height, width)
        audio = audio_from_rows(velocity[1])
        return (
            latents.video[:, -new:] + (1.0 - h3_time(sigmas[0])) * video,
            latents.audio[:, :, -len(window.audio_new) :] + (1.0 - h3_time(sigmas[1])) * audio,
        )

    def _forward(
        self,
        rows: PackedRows,
        modulation: Modulation,
        bank: Place | None = None,
        sparse: LayerAttention | None = None,
    ) -> tuple[Tensor, Tensor]:
        if self.form is None:
            return self.model(rows, modulation, bank=bank, sparse=sparse)
        if not self.form.fast:
            return self.model(rows, modulation, bank=bank, attend=self.form.attention.run, sparse=sparse)
        return run_fast(self.model, rows, modulation, self.form, bank=bank, sparse=sparse)

    def _prefill(self, branch: Branch, layout: Layout, text: Tensor, latents: WindowLatents, step: int) -> StepBank:
        times, modulation = self._step(step, text.device)
        recorder = self.bank.recorder(branch.name, step, layout.plan.moving_count)
        self._forward(pack_prefix(layout, text, latents, times), modulation, recorder)
        return self.bank.store(branch.name, step)

    def _step(self, step: int, device: torch.device) -> tuple[RowTimes, Modulation]:
        """The times of a denoising step and their modulation, looked up once per render."""
        if step not in self._steps:
            times = RowTimes.at(self.grid.video[step], self.grid.audio[step], device)
            self._steps[step] = times, self.tables.at(times.times)
        return self._steps[step]

    def _text_rows(self, caption: bool) -> tuple[Tensor, Tensor]:
        if caption not in self._text:
            rows = len(self.conditions.text) if caption else self.conditions.media_rows
            self._text[caption] = self.model.refine_text(self.conditions.text[:rows]), self.conditions.tags[:rows]
        return self._text[caption]

    def _layout(self, branch: Branch, window: Window, tags: Tensor) -> Layout:
        key = branch.name, layout_key(window)
        if key not in self._layouts:
            geometry, reference = self.conditions.geometry, branch.reference
            layout = make_layout(self.model, window, geometry, tags, reference=reference)
            if self.sparse is not None and not window.is_bootstrap:
                layout = self.sparse.arrange(layout, window, geometry, reference=reference)
            self._layouts[key] = layout
        return self._layouts[key]
