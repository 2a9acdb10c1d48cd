"""The memory side of the command `render`: its options, the plan before anything is loaded, and the placed model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace

import torch

from ..loader import H3Model
from ..loader.command_options import load_chosen
from ..loader.placement import file_sources, host_memory_for, place
from ..loader.quant_linear import STORED, WEIGHTS
from ..loader.weight_sizes import transformer_sizes
from ..look.encoder_size import encoder_size, text_rows
from .memory import Need
from .memory_budget import ENVIRONMENT, asked_bank, asked_form, asked_gigabytes, device_budget
from .memory_job import Size, decoder_file_need, encoder_file_need, job_of
from .memory_plan import MemoryPlan, plan_memory
from .render import Settings


def memory_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--memory",
        type=float,
        metavar="GB",
        help=f"device memory to stay within, in decimal gigabytes (default: what is free, or {ENVIRONMENT})",
    )
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        default=STORED,
        help="of the transformer: as stored in the file, or fp8 with one scale per row (default: %(default)s)",
    )


def planned(
    args: Namespace,
    settings: Settings,
    sizes: tuple[Size, Size],
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    prompt: str,
    device: torch.device,
) -> tuple[MemoryPlan, Settings]:
    """The plan, from headers and the prompt's tokens, and the settings that go with it.

    `sizes` are (video, map), `dtypes` of network, encoder and decoder. Raises MemoryRefusal when the render does not fit.
    """
    network, encoder, decoder = dtypes
    video, reference = sizes
    rows = text_rows(args.text_encoder, prompt, video)
    text = encoder_size(args.text_encoder, network)
    job = job_of(
        transformer_sizes(args.model, network, args.weights),
        dtype=network,
        schedule=settings.schedule,
        size=video,
        reference_size=reference,
        text_rows=rows,
        steps=settings.grid.steps,
        branches=len(settings.branches),
        attention=settings.attention,
        encoder=encoder_file_need(args.encoder, encoder, sizes),
        decoder=decoder_file_need(args.decoder, decoder, video),
        text_encoder=Need(text.layers, text.streamed + text.activations(rows)),
        bank=asked_bank(),
        form=asked_form(device),
        sparse_window=settings.window_keep is not None,
    )
    plan = plan_memory(job, device_budget(device, asked_gigabytes(args.memory)))
    return plan, replace(settings, bank=plan.bank)


def load_placed(args: Namespace, dtype: torch.dtype, device: torch.device, plan: MemoryPlan) -> H3Model:
    """Load the transformer and put its parts where the plan says."""
    model = load_chosen(args, dtype=dtype, device="cpu", weights=args.weights, quantise_on=device)
    waiting = sum(term.nbytes for term in plan.terms if term.place == "host")
    place(
        model.model,
        device,
        plan.resident if plan.streamed else None,
        sources=file_sources(model),
        lock=host_memory_for(waiting),
    )
    return model
