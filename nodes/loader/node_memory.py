"""The memory side of Load H3 Model: the plan that is shown before anything is loaded, and the layers a host may leave behind."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import nn

from .. import host
from ..model import H3
from ..schedule import RELEASE
from .checkpoint import open_checkpoint
from .quant_linear import large_layers as layers_of
from .weight_sizes import transformer_sizes

log = logging.getLogger(host.PACK)


def planned_text(path: Path, dtype: torch.dtype, weights: str) -> str:
    """The memory plan of a render with the model at `path`, in words, from its header and the host's memory.

    Size and schedule are those of the release, or what the checkpoint states; the sampler plans again with the real ones.
    A render that does not fit says so here, but only the sampler refuses it: another size may be chosen there.
    """
    from ..sampler.command import sizes_for
    from ..sampler.memory_budget import asked_bank, asked_form
    from ..sampler.memory_job import job_of
    from ..sampler.memory_plan import MemoryRefusal, plan_memory

    size, reference = sizes_for(open_checkpoint(path).metadata, None, None)
    sizes = transformer_sizes(path, dtype, weights)
    job = job_of(
        sizes,
        dtype=dtype,
        schedule=RELEASE,
        size=size,
        reference_size=reference,
        bank=asked_bank(),
        form=asked_form(host.device()),
    )
    try:
        text = plan_memory(job, host.memory_budget()).as_text()
    except MemoryRefusal as refusal:
        text = f"memory plan: {refusal}"
    text = f"{text}\n  at {size[1]}x{size[0]} in 2 steps, without encoder and decoder"
    log.info("%s", text)
    return text


def large_layers(model: H3) -> list[nn.Module]:
    """The layers of the main blocks that may wait in host memory and come to the device when their block runs."""
    return [layer for block in model.blocks for layer in layers_of(block).values()]
