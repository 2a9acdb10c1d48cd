"""Which attention computes the segments of the decoder: a table by card, see `choice`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .choice import (
    ENVIRONMENT,
    AttentionError,
    Order,
    by_card,
    compare,
    described,
    first_that_works,
    host_attention,
    need_cuda,
    offer_host_attention,
    wanted_name,
)
from .segments import Group, Segments, by_groups

__all__ = [
    "BACKENDS",
    "ENVIRONMENT",
    "AttentionError",
    "Choice",
    "SegmentAttention",
    "choose",
    "offer_host_attention",
    "order",
]

# q [queries, heads, d], k, v [key rows, heads, d], the segments, out like q and filled
SegmentAttention = Callable[[Tensor, Tensor, Tensor, Segments, Tensor], None]


@dataclass(frozen=True)
class Choice:
    """The attention chosen, and what was passed over for which reason."""

    name: str
    run: SegmentAttention
    passed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return described(self.name, self.passed)


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


def _comfy() -> SegmentAttention:
    dense = host_attention()
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
ORDER: Order = (
    ((12, 0), ("fa2", "triton", "varlen", "cudnn", "sdpa")),
    ((10, 0), ("fa4", "fa2", "triton", "cudnn", "varlen", "sdpa")),
    ((9, 0), ("fa3", "fa4", "fa2", "triton", "cudnn", "varlen", "sdpa")),
    ((8, 0), ("fa2", "triton", "varlen", "sdpa")),
)
ELSEWHERE = ("comfy", "sdpa")  # old and foreign cards, CPU


def order(device: torch.device) -> tuple[str, ...]:
    """Names in the order in which `auto` tries them on this device."""
    return by_card(device, ORDER, ELSEWHERE)


# --- the choice ------------------------------------------------------------------------------------------------------


def choose(device: torch.device, dtype: torch.dtype, head_dim: int, wanted: str | None = None) -> Choice:
    """The attention for segments of `head_dim` channels; `wanted` overrides the environment.

    Raises `AttentionError` when a named one is unknown or cannot run here.
    """
    return _choose(str(device), dtype, head_dim, wanted_name(wanted))


@cache
def _choose(device: str, dtype: torch.dtype, head_dim: int, wanted: str) -> Choice:
    where = torch.device(device)
    return Choice(
        *first_that_works(
            "decoder attention", where, dtype, wanted, BACKENDS, order(where),
            lambda name: _tested(name, where, dtype, head_dim),
        )
    )  # fmt: skip


def _tested(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> SegmentAttention:
    """The function, after a small trial against the plain computation."""
    if name in ON_CUDA_ONLY:
        need_cuda(device)
    run = BACKENDS[name]()
    random = torch.Generator().manual_seed(0)
    segments = Segments.of((Group(2, 3, 7, 7), Group(1, 5, 9, 9)), device)
    q, k, v = (torch.randn(rows, 2, head_dim, generator=random).to(device, dtype) for rows in (11, 23, 23))
    made, expected = torch.zeros_like(q), torch.zeros_like(q, dtype=torch.float32)
    with torch.inference_mode():
        run(q, k, v, segments, made)
        by_groups(q.float(), k.float(), v.float(), segments, expected)
    compare(made, expected)
    return run
