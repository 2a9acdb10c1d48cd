"""How the transformer computes on a device: which kernels are fused and which attention runs, decided once per render.

The plain modules of `blocks` are the definition, and what runs on the CPU and on cards without CUDA. Switches for
measurements and parity runs: `SRH3_FUSIONS`, `SRH3_ATTENTION` and `SRH3_FORCE_REFERENCE`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels.dense_attention import DenseChoice, choose_dense
from ...kernels.fusions import FusionError, asked_for, reference_only, wanted_fusions, why_unfused
from .transformer import H3

log = logging.getLogger("streamrender_h3")

KERNELS = {
    "modulate": "norm_modulate",
    "qknorm_rope": "head_norm_rope",
    "kvwrite": "head_norm_rope",
    "swiglu": "swiglu",
    "lse_merge": "lse_merge",
}
ALL_KERNELS = frozenset(KERNELS.values())


@dataclass(frozen=True)
class Form:
    """What a forward runs: the one of `fast` with these kernels fused and the references of the others, or the plain modules
    with this attention, which are faster than references."""

    attention: DenseChoice
    kernels: frozenset[str] = frozenset()
    fast: bool = True

    def __str__(self) -> str:
        if not self.fast:
            return f"plain modules, attention {self.attention.name}"
        fused = (
            "all kernels fused"
            if self.kernels == ALL_KERNELS
            else f"fused: {', '.join(sorted(self.kernels)) or 'none'}"
        )
        return f"{fused}, attention {self.attention.name}"


class Kernels(NamedTuple):
    """The operations between the matrix products, see the files of these names in `kernels`."""

    norm_modulate: Callable[..., Any]
    head_norm_rope: Callable[..., Tensor]
    swiglu: Callable[..., Any]
    lse_merge: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def kernels_of(form: Form) -> Kernels:
    from ...kernels import head_norm_rope, lse_merge, norm_modulate, swiglu

    modules = {
        "norm_modulate": norm_modulate,
        "head_norm_rope": head_norm_rope,
        "swiglu": swiglu,
        "lse_merge": lse_merge,
    }
    picked: dict[str, Any] = {
        name: module.launch if name in form.kernels else module.reference for name, module in modules.items()
    }
    return Kernels(**picked)


def choose_form(model: H3, device: torch.device) -> Form | None:
    """The fastest form that is known to be right on `device`; None on the CPU, for the plain modules as they are.

    Raises `AttentionError` or `FusionError` when the environment asks for what cannot run.
    """
    wanted = wanted_fusions()
    if device.type == "cpu" or reference_only():
        return None
    reason = why_unfused(device)
    if reason and asked_for():
        raise FusionError(f"SRH3_FUSIONS asks for kernels, but {reason}; set it to none, or install Triton.")
    attention = choose_dense(device, model.dtype, model.config.head_dim)
    kernels = frozenset() if reason else frozenset(KERNELS[name] for name in wanted)
    form = Form(attention, kernels, fast=bool(kernels))
    dtype = str(model.dtype).removeprefix("torch.")
    log.info("H3 transformer on %s in %s: %s%s", device, dtype, form, f" ({reason})" if reason else "")
    return form
