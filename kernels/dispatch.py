"""Which attention computes the segments: a table by card, the first that passes import, capability and a self-test.

`SRH3_ATTENTION` names one instead of `auto`; a named one that cannot run is an error, never a silent replacement. One
line in the log says what was chosen and why what stands before it in the table was not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .segments import DenseAttention, Group, Segments, by_groups

log = logging.getLogger("streamrender_h3")

# q [queries, heads, d], k, v [key rows, heads, d], the segments, out like q and filled
SegmentAttention = Callable[[Tensor, Tensor, Tensor, Segments, Tensor], None]
ENVIRONMENT, AUTO = "SRH3_ATTENTION", "auto"
TOLERANCE = 2e-2  # relative, of the self-test; a right kernel in bf16 stays below 4e-3


class AttentionError(RuntimeError):
    """The attention asked for cannot run here; the message says why and what can."""


@dataclass(frozen=True)
class Choice:
    """The attention chosen, and what was passed over for which reason."""

    name: str
    run: SegmentAttention
    passed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name + (f" ({'; '.join(self.passed)})" if self.passed else "")


# --- what there is ---------------------------------------------------------------------------------------------------
# Each entry imports what it needs and returns the function; a failure of any kind says that it is not there.


def _varlen(function: Callable[..., Any]) -> SegmentAttention:
    """A flash attention for sequences of several lengths; it takes whole segments, so a ring that fills goes by groups."""

    def run(q: Tensor, k: Tensor, v: Tensor, segments: Segments, out: Tensor) -> None:
        if not segments.whole:
            by_groups(q, k, v, segments, out)
            return
        sizes = (segments.queries_before, segments.rows_before, segments.max_queries, segments.max_keys)
        made = function(q, k, v, *sizes)
        out.copy_(made[0] if isinstance(made, tuple) else made)

    return run


def _fa4() -> SegmentAttention:
    from flash_attn.cute import flash_attn_varlen_func

    def run(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int) -> Any:
        return flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=max_q, max_seqlen_k=max_k, num_splits=1
        )

    return _varlen(run)


def _fa3() -> SegmentAttention:
    from flash_attn_interface import flash_attn_varlen_func

    return _varlen(flash_attn_varlen_func)


def _fa2() -> SegmentAttention:
    from flash_attn import flash_attn_varlen_func

    return _varlen(flash_attn_varlen_func)


def _torch_varlen() -> SegmentAttention:
    from torch.nn.attention.varlen import varlen_attn

    return _varlen(varlen_attn)


def _triton() -> SegmentAttention:
    from . import segment_attention
    from .launch import refusal

    def run(q: Tensor, k: Tensor, v: Tensor, segments: Segments, out: Tensor) -> None:
        if reason := refusal(q):
            raise RuntimeError(reason)
        segment_attention.launch(q, k, v, segments.tiles, out)

    return run


def _cudnn() -> SegmentAttention:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v)

    return lambda q, k, v, segments, out: by_groups(q, k, v, segments, out, dense)


def _sdpa() -> SegmentAttention:
    return by_groups


_host: list[DenseAttention] = []


def offer_host_attention(dense: DenseAttention) -> None:
    """The host hands in the attention that its user chose; it is the entry `comfy`."""
    _host[:] = [dense]


def _comfy() -> SegmentAttention:
    if not _host:
        raise ImportError("no host has handed in its attention")
    dense = _host[0]
    return lambda q, k, v, segments, out: by_groups(q, k, v, segments, out, dense)


BACKENDS: dict[str, Callable[[], SegmentAttention]] = {
    "fa4": _fa4,
    "fa3": _fa3,
    "fa2": _fa2,
    "varlen": _torch_varlen,
    "triton": _triton,
    "cudnn": _cudnn,
    "sdpa": _sdpa,
    "comfy": _comfy,
}
ON_CUDA_ONLY = ("fa4", "fa3", "fa2", "varlen", "cudnn")  # triton says so itself: it has an interpreter
# Order of trial by compute capability; the first row whose capability is reached counts.
ORDER: tuple[tuple[tuple[int, int], tuple[str, ...]], ...] = (
    ((12, 0), ("fa2", "triton", "varlen", "cudnn", "sdpa")),
    ((10, 0), ("fa4", "fa2", "triton", "cudnn", "varlen", "sdpa")),
    ((9, 0), ("fa3", "fa4", "fa2", "triton", "cudnn", "varlen", "sdpa")),
    ((8, 0), ("fa2", "triton", "varlen", "sdpa")),
)
ELSEWHERE = ("comfy", "sdpa")  # old and foreign cards, CPU


def order(device: torch.device) -> tuple[str, ...]:
    """Names in the order in which `auto` tries them on this device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return ELSEWHERE if device.type != "cpu" else ("sdpa",)
    capability = torch.cuda.get_device_capability(device)
    return next((names for least, names in ORDER if capability >= least), ELSEWHERE)


# --- the choice ------------------------------------------------------------------------------------------------------


def choose(device: torch.device, dtype: torch.dtype, head_dim: int, wanted: str | None = None) -> Choice:
    """The attention for segments of `head_dim` channels; `wanted` overrides the environment.

    Raises `AttentionError` when a named one is unknown or cannot run here.
    """
    return _choose(str(device), dtype, head_dim, wanted or os.environ.get(ENVIRONMENT, AUTO) or AUTO)


@cache
def _choose(device: str, dtype: torch.dtype, head_dim: int, wanted: str) -> Choice:
    where = torch.device(device)
    if wanted != AUTO and wanted not in BACKENDS:
        raise AttentionError(
            f"{ENVIRONMENT} is {wanted!r}, which windows of the decoder cannot use; choose one of {AUTO}, "
            f"{', '.join(BACKENDS)}"
        )
    passed: list[str] = []
    for name in order(where) if wanted == AUTO else (wanted,):
        try:
            run = _tested(name, where, dtype, head_dim)
        except Exception as error:
            passed.append(f"{name}: {' '.join(str(error).split())[:120] or type(error).__name__}")
            continue
        choice = Choice(name, run, tuple(passed))
        log.info("decoder attention on %s in %s: %s", where, str(dtype).removeprefix("torch."), choice)
        return choice
    raise AttentionError(
        f"attention {wanted!r} cannot run on {where} ({'; '.join(passed)}); "
        f"set {ENVIRONMENT}={AUTO} or one of {', '.join(order(where))}"
    )


def _tested(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> SegmentAttention:
    """The function, after a small trial against the plain computation."""
    if name in ON_CUDA_ONLY and device.type != "cuda":
        raise RuntimeError(f"it needs a CUDA device, and this is {device.type}")
    run = BACKENDS[name]()
    random = torch.Generator().manual_seed(0)
    segments = Segments.of((Group(2, 3, 7, 7), Group(1, 5, 9, 9)), device)
    q, k, v = (torch.randn(rows, 2, head_dim, generator=random).to(device, dtype) for rows in (11, 23, 23))
    made, expected = torch.zeros_like(q), torch.zeros_like(q, dtype=torch.float32)
    with torch.inference_mode():
        run(q, k, v, segments, made)
        by_groups(q.float(), k.float(), v.float(), segments, expected)
    made = made.float()
    error = float((made - expected).norm() / expected.norm())
    if not error < TOLERANCE:
        raise RuntimeError(f"its self-test is off by {error:.1e}")
    return run
