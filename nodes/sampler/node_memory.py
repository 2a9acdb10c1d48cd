"""The memory side of the sampler nodes: the plan for what is connected, shown on the node."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from .. import host
from ..codec.node import HostDecoder, HostEncoder
from ..loader.node import HostModel
from ..loader.placement import fetched
from ..loader.weight_sizes import loaded_sizes
from ..palette import SemanticClip
from .clip_memory import ClipJob, plan_clip_memory
from .clip_render import ClipInputs, ClipSettings
from .memory import Need
from .memory_budget import asked_bank, asked_form
from .memory_job import decoder_need, encoder_need, job_of, shapes_of
from .memory_plan import MemoryPlan, WeightSizes, giga, plan_memory
from .render import Settings

log = logging.getLogger(host.PACK)


@contextmanager
def on_device(model: HostModel, patchers: list[Any], plan: MemoryPlan) -> Iterator[None]:
    """While this lasts the host holds the parts on its device; layers it leaves in host memory are fetched block by block."""
    with host.on_device(patchers, plan.working_bytes) as device, fetched(model.h3.model, device) as streamer:
        if streamer.streamed:
            log.info(
                "%d blocks are in host memory, wholly or in part; %s come to the device for every step",
                len(streamer.streamed),
                giga(streamer.nbytes),
            )
        yield


def planned_clip(
    model: HostModel,
    inputs: ClipInputs,
    settings: ClipSettings,
    encoder: HostEncoder | None,
    decoder: HostDecoder,
    node_id: str | None,
) -> MemoryPlan:
    """The plan of a whole clip within the host's memory; it is logged and shown on the node. Raises MemoryRefusal."""
    look, sizes = inputs.look, loaded_sizes(model.h3.model, model.h3.config)
    pictures = (look.size, inputs.clip.reference_size) if inputs.clip else (look.size,)
    need = Need()
    if encoder is not None:
        need = encoder_need(shapes_of(encoder.codec.layers), encoder.codec.dtype, pictures)
    job = ClipJob(
        config=model.h3.config,
        weights=WeightSizes(sizes.blocks, sizes.rest, sizes.form, sizes.scratch),
        shape=inputs.shape(settings.plan.segments[0].frames),
        text_rows=len(look.text),
        steps=settings.recipe.steps,
        itemsize=model.h3.model.dtype.itemsize,
        attention=settings.attention,
        encoder=need,
        decoder=decoder_need(shapes_of(decoder.codec.layers), decoder.codec.dtype, look.size),
    )
    plan = plan_clip_memory(job, host.memory_budget())
    log.info("%s", plan.as_text())
    host.show_text(plan.as_text(), node_id)
    return plan


def planned(
    model: HostModel,
    clip: SemanticClip,
    look: Any,
    settings: Settings,
    encoder: HostEncoder,
    decoder: HostDecoder,
    node_id: str | None,
) -> tuple[MemoryPlan, Settings]:
    """The plan within the host's memory, and the settings that go with it; it is logged and shown on the node.

    Raises MemoryRefusal, naming the largest size that fits, before anything is brought to the device.
    """
    sizes = (look.size, clip.reference_size)
    job = job_of(
        loaded_sizes(model.h3.model, model.h3.config),
        dtype=model.h3.model.dtype,
        schedule=settings.schedule,
        size=look.size,
        reference_size=clip.reference_size,
        text_rows=len(look.text),
        steps=settings.grid.steps,
        branches=len(settings.branches),
        attention=settings.attention,
        encoder=encoder_need(shapes_of(encoder.codec.layers), encoder.codec.dtype, sizes),
        decoder=decoder_need(shapes_of(decoder.codec.layers), decoder.codec.dtype, look.size),
        bank=asked_bank(),
        form=asked_form(host.device()),
        sparse_window=settings.window_keep is not None,
    )
    plan = plan_memory(job, host.memory_budget())
    log.info("%s", plan.as_text())
    host.show_text(plan.as_text(), node_id)
    return plan, replace(settings, bank=plan.bank)
