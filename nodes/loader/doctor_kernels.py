"""The doctor's look at attention and matrix products: every one that there is, and what a render here would use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...kernels import dense_attention, dispatch, quant_matmul, sparse_dispatch
from ...kernels.choice import AttentionError
from ...kernels.fusions import reference_only, wanted_fusions, why_unfused
from .findings import FACT, HEAD_DIM, NO, YES, Finding, tried

Choose = Callable[..., Any]
# Where attention runs: the names of that room's table and its choice.
USES: dict[str, tuple[tuple[str, ...], Choose]] = {
    "transformer": (tuple(dense_attention.BACKENDS), dense_attention.choose_dense),
    "decoder windows": (tuple(dispatch.BACKENDS), dispatch.choose),
    "sparse clips": (sparse_dispatch.FORMS, sparse_dispatch.choose_sparse),
}


def attentions(device: torch.device) -> list[Finding]:
    """Every attention of both tables, each with its own trial."""
    dtype = _dtype(device)

    def trial(choose: Choose, name: str) -> str:
        try:
            choose(device, dtype, HEAD_DIM, name)
        except AttentionError as error:
            reason = str(error).partition("(")[2].rpartition(");")[0]
            raise RuntimeError(reason.removeprefix(f"{name}: ") or error) from error
        return f"agrees with the plain computation in {str(dtype).removeprefix('torch.')}"

    return [
        tried("attention", f"{name}, {use}", "", partial(trial, choose, name))
        for use, (names, choose) in USES.items()
        for name in names
    ]


def products(device: torch.device) -> list[Finding]:
    """Every matrix product on quantised weights."""
    found = []
    for kind in ("fp8", "int8", "nvfp4", "mxfp8"):
        verdict = quant_matmul.chosen(kind, device)
        found.append(Finding("products on quantised weights", kind, YES if verdict.works else NO, verdict.reason))
    return found


def chosen(device: torch.device) -> list[Finding]:
    """What a render on `device` would use, part by part."""
    part, dtype = "chosen here", _dtype(device)
    found = []
    for use, (_, choose) in USES.items():
        try:
            words = str(choose(device, dtype, HEAD_DIM))
        except AttentionError as error:
            words = f"nothing: {error}"
        found.append(Finding(part, f"{use}, attention", FACT, words))
    found += [
        Finding(part, "transformer, kernels", FACT, _kernels(device)),
        Finding(part, "plain weights", FACT, f"torch linear in {str(dtype).removeprefix('torch.')}"),
    ]
    for kind in ("fp8", "int8", "nvfp4", "mxfp8"):
        verdict = quant_matmul.chosen(kind, device)
        words = verdict.reason if verdict.works else f"dequantised for every product ({verdict.reason})"
        found.append(Finding(part, f"{kind} weights", FACT, words))
    return found


def _kernels(device: torch.device) -> str:
    if reference_only():
        return "plain modules: SRH3_FORCE_REFERENCE is set"
    reason = why_unfused(device)
    return f"plain modules: {reason}" if reason else f"fused: {', '.join(sorted(wanted_fusions())) or 'none'}"


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32
