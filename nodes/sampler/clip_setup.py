"""What H3 Clip Sampler decides before it renders, and tells: the attention, what is unusual, and progress."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...kernels.sparse_dispatch import choose_sparse
from .. import host
from ..look import Look, TextLook
from ..model import H3
from .clip_attention import Sparsity, decide
from .clip_choice import Choice
from .clip_plan import SEGMENT_FRAMES, ClipPlan
from .clip_probe import AutoDense
from .clip_render import NODE, ClipInputs, ClipSettings
from .clip_sparse import SparseClip
from .guidance import SINGLE, Branch, chain
from .node import unhurt

log = logging.getLogger(host.PACK)

SINGLE_CALL, GUIDED = "single (one call)", "chain (three calls)"


def clip_branches(
    guidance: str, text_scale: float, structure_scale: float, look: Look | TextLook
) -> tuple[Branch, ...]:
    """The calls of a step under the guidance of that name."""
    if guidance == SINGLE_CALL:
        return SINGLE
    if guidance == GUIDED:
        return chain(text_scale, structure_scale, caption=len(look.text) > look.media_rows)
    raise ValueError(f"{NODE}: guidance {guidance!r} is unknown; choose one of {[SINGLE_CALL, GUIDED]}")


def with_attention(
    inputs: ClipInputs, settings: ClipSettings, choice: Choice, mode: str, auto_dense: bool, **asked: Any
) -> ClipSettings:
    """The settings with the attention that the widgets and the checkpoint ask for; warnings go to the log."""
    frames = settings.plan.segments[0].frames
    rows = inputs.shape(frames).rows(len(inputs.look.text))
    decision = decide(
        mode,
        choice.recipe,
        gated=inputs.model.config.gate_compress,
        rows=rows,
        trained=choice.keep,
        reference=inputs.clip is not None,
        **asked,
    )
    log.info("%s: %s (%s), %d rows", NODE, choice.recipe.name, choice.reason, rows)
    for warning in decision.warnings:
        log.warning("%s: %s", NODE, warning)
    if frames < SEGMENT_FRAMES:
        log.warning("%s: %d frames are fewer than the %d the model was made for", NODE, frames, SEGMENT_FRAMES)
    if decision.sparsity is None:
        if auto_dense:
            log.warning("%s: attention is dense, so vsa_auto_dense has nothing to probe", NODE)
        return settings
    model = inputs.model.model
    probe = probe_of(model, decision.sparsity) if auto_dense else None
    attention = SparseClip(decision.sparsity, model.dtype, model.config.head_dim, probe)
    choose_sparse(host.device(), model.dtype, model.config.head_dim).need_rows(rows)  # refuses what would take hours
    return replace(settings, attention=attention)


def probe_of(model: H3, sparsity: Sparsity) -> AutoDense:
    """The probe of a model's sparse layers."""
    return AutoDense(model.config.heads, model.config.layers - len(sparsity.dense_layers))


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
