"""What H3 Clip Sampler decides before it renders, and tells: the attention, what is unusual, and progress."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...kernels.sparse_dispatch import choose_sparse
from .. import host
from .clip_attention import decide
from .clip_choice import Choice
from .clip_plan import SEGMENT_FRAMES, ClipPlan
from .clip_render import NODE, ClipInputs, ClipSettings
from .clip_sparse import SparseClip
from .node import unhurt

log = logging.getLogger(host.PACK)


def with_attention(inputs: ClipInputs, settings: ClipSettings, choice: Choice, mode: str, **asked: Any) -> ClipSettings:
    """The settings with the attention that the widgets and the checkpoint ask for; warnings go to the log."""
    frames = settings.plan.segments[0].frames
    rows = inputs.shape(frames).rows(len(inputs.look.text))
    decision = decide(
        mode, choice.recipe, gated=inputs.model.config.gate_compress, rows=rows, trained=choice.keep, **asked
    )
    log.info("%s: %s (%s), %d rows", NODE, choice.recipe.name, choice.reason, rows)
    for warning in decision.warnings:
        log.warning("%s: %s", NODE, warning)
    if frames < SEGMENT_FRAMES:
        log.warning("%s: %d frames are fewer than the %d the model was made for", NODE, frames, SEGMENT_FRAMES)
    if decision.sparsity is None:
        return settings
    model = inputs.model.model
    attention = SparseClip(decision.sparsity, model.dtype, model.config.head_dim)
    choose_sparse(host.device(), model.dtype, model.config.head_dim).need_rows(rows)  # refuses what would take hours
    return replace(settings, attention=attention)


class Progress:
    """The bar of the node: steps of all segments, then chunks."""

    def __init__(self, node_id: str | None, plan: ClipPlan, steps: int) -> None:
        self._done = 0
        self._show = unhurt(host.progress(len(plan.segments) * steps + len(plan.chunks), node_id))

    def step(self) -> None:
        """One more denoising step is done."""
        self._done += 1
        self._show(self._done, None)

    def chunk(self, frames: Tensor) -> None:
        """One more chunk is decoded; its last frame is shown."""
        self._done += 1
        self._show(self._done, frames[-1] if len(frames) else None)
