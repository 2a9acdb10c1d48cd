"""Which operations are fused: the names that `SRH3_FUSIONS` takes, for decoder and transformer alike."""

from __future__ import annotations

import os

import torch

ENVIRONMENT = "SRH3_FUSIONS"
REFERENCE_ENVIRONMENT = "SRH3_FORCE_REFERENCE"  # 1: plain PyTorch everywhere, for parity runs
FUSIONS = ("modulate", "qknorm_rope", "kvwrite", "swiglu", "lse_merge")


class FusionError(ValueError):
    """`SRH3_FUSIONS` names what is unknown or cannot run here."""


def wanted_fusions() -> frozenset[str]:
    """What `SRH3_FUSIONS` names, all by default. Raises `FusionError` for an unknown name."""
    text = os.environ.get(ENVIRONMENT, "all").strip()
    if text in ("all", ""):
        return frozenset(FUSIONS)
    names = [] if text == "none" else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in FUSIONS]
    if unknown:
        raise FusionError(f"{ENVIRONMENT} names {', '.join(unknown)}; write all, none or some of {', '.join(FUSIONS)}.")
    return frozenset(names)


def asked_for() -> bool:
    """Whether a person named fusions, so that it is an error when none can run."""
    return ENVIRONMENT in os.environ and bool(wanted_fusions())


def reference_only() -> bool:
    """Whether the plain modules were asked for."""
    return os.environ.get(REFERENCE_ENVIRONMENT) == "1"


def why_unfused(device: torch.device) -> str:
    """Why no kernel can run on `device`; empty when they can."""
    if device.type != "cuda":
        return f"kernels are for CUDA, and this is {device.type}"
    if torch.version.hip is not None:
        return "kernels are for CUDA, and this is ROCm"
    from .launch import refusal

    return refusal(torch.empty(0, device=device))
