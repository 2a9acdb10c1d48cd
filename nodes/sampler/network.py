"""The transformer as the rollout's predictor: packs rows, fills the prefix bank, adds up guidance branches."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..model import H3, AdaLNTables, audio_from_rows, unpatchify
from ..schedule import Geometry, Window, layout_key
from .bank import PrefixBank, StepBank
from .bank_fp8 import Fp8StepBank
from .grids import TimeGrid, h3_time
from .guidance import SINGLE, Branch
from .pack import Layout, RowTimes, WindowLatents, make_layout, pack_moving, pack_prefix, pack_whole

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
    _layouts: dict[tuple[str, object], Layout] = field(default_factory=dict)
    _text: dict[bool, tuple[Tensor, Tensor]] = field(default_factory=dict)

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
        times = RowTimes.at(*sigmas, device=text.device)
        modulation = self.tables.at(times.times)
        if window.is_bootstrap or self.attention == DENSE:
            rows = pack_whole(layout, text, latents, times)
            velocity = self.model(rows, modulation)
        else:
            bank = self.bank.get(branch.name, step) or self._prefill(branch, layout, text, latents, times, step)
            rows = pack_moving(layout, text, latents, times)
            velocity = self.model(rows, modulation, bank=bank)
        height, width = latents.video.shape[-2:]
        new = len(window.latents)
        video = unpatchify(velocity[0], new, height, width)
        audio = audio_from_rows(velocity[1])
        return (
            latents.video[:, -new:] + (1.0 - h3_time(sigmas[0])) * video,
            latents.audio[:, :, -len(window.audio_new) :] + (1.0 - h3_time(sigmas[1])) * audio,
        )

    def _prefill(
        self, branch: Branch, layout: Layout, text: Tensor, latents: WindowLatents, times: RowTimes, step: int
    ) -> StepBank | Fp8StepBank:
        recorder = self.bank.recorder()
        self.model(pack_prefix(layout, text, latents, times), self.tables.at(times.times), bank=recorder)
        return self.bank.store(branch.name, step, recorder)

    def _text_rows(self, caption: bool) -> tuple[Tensor, Tensor]:
        if caption not in self._text:
            rows = len(self.conditions.text) if caption else self.conditions.media_rows
            self._text[caption] = self.model.refine_text(self.conditions.text[:rows]), self.conditions.tags[:rows]
        return self._text[caption]

    def _layout(self, branch: Branch, window: Window, tags: Tensor) -> Layout:
        key = branch.name, layout_key(window)
        if key not in self._layouts:
            self._layouts[key] = make_layout(
                self.model, window, self.conditions.geometry, tags, reference=branch.reference
            )
        return self._layouts[key]
