"""How the ViT decoder computes on this device: fused kernels, attention, graph and head, decided once per stream.

The plain modules of `vit` are the definition, and what runs on the CPU and on cards without CUDA. Switches for
measurements and parity runs: `SRH3_FUSIONS` (all, none or a list), `SRH3_ATTENTION`, `SRH3_GRAPH` (auto, off) and
`SRH3_FORCE_REFERENCE=1`, which leaves the plain modules everywhere.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels.dispatch import Choice, choose
from ...kernels.fusions import FusionError, asked_for, reference_only, wanted_fusions, why_unfused
from .vit import CausalViT

log = logging.getLogger("streamrender_h3")

# The pack's names of fusions and what they are in this decoder.
FUSIONS = {
    "modulate": "residual_norm",
    "qknorm_rope": "qk_rope_write",
    "kvwrite": "qk_rope_write",
    "swiglu": "swiglu",
    "lse_merge": "few_queries",
}
ALL_KERNELS = frozenset(FUSIONS.values())


@dataclass(frozen=True)
class Form:
    """What a stream runs. `kernels` are the fused ones, the others are their torch references."""

    attention: Choice
    fast: bool = False  # the pass of `vit_fast` instead of the plain modules
    kernels: frozenset[str] = frozenset()
    split_head: bool = False  # the float32 output layer as bf16 halves on tensor cores
    graph: bool = False


class Kernels(NamedTuple):
    """The four operations between the matrix products, see the files of these names in `kernels`."""

    residual_norm: Callable[..., Tensor]
    swiglu: Callable[[Tensor], Tensor]
    qk_rope_write: Callable[..., Tensor]
    few_queries: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]


def kernels_of(form: Form) -> Kernels:
    from ...kernels import few_queries, qk_rope_write, residual_norm, swiglu

    modules = {
        "residual_norm": residual_norm,
        "swiglu": swiglu,
        "qk_rope_write": qk_rope_write,
        "few_queries": few_queries,
    }
    picked: dict[str, Any] = {
        name: module.launch if name in form.kernels else module.reference for name, module in modules.items()
    }
    return Kernels(**picked)


def choose_form(network: CausalViT) -> Form:
    """The fastest form that is known to be right on the device of the weights.

    Raises `AttentionError` or `FusionError` when the environment asks for what cannot run.
    """
    device, dtype = network.register_tokens.device, network.compute_dtype
    attention = choose(device, dtype, network.config.head_dim)
    wanted = wanted_kernels()
    if device.type != "cuda" or torch.version.hip is not None or reference_only():
        return Form(attention)
    if reason := why_unfused(device):
        if asked_for():
            raise FusionError(f"SRH3_FUSIONS asks for kernels, but {reason}; set it to none, or install Triton.")
        log.info("the ViT decoder runs without fused kernels: %s", reason)
        return Form(attention)  # references in the order of the fast pass take longer than the plain modules
    return Form(
        attention,
        fast=True,
        kernels=wanted,
        split_head=dtype == torch.bfloat16 and can_split(device),
        graph=wanted == ALL_KERNELS and os.environ.get("SRH3_GRAPH", "auto") != "off",
    )


def wanted_kernels() -> frozenset[str]:
    """What `SRH3_FUSIONS` names, all by default, as files of `kernels`."""
    return frozenset(FUSIONS[name] for name in wanted_fusions())


def can_split(device: torch.device) -> bool:
    """Whether torch multiplies bf16 matrices into float32 here."""
    try:
        one = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
        return bool((torch.mm(one, one, out_dtype=torch.float32) == 16).all())
    except (TypeError, RuntimeError):
        return False
