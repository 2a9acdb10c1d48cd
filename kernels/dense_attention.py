"""Attention of one packed sequence: every query sees every key, with or without the log-sum-exp that a merge needs.

q [Sq, heads, d] over k, v [Sk, heads, d], Sq != Sk, never causal. The libraries read these rows through strided views and
write rows like q's, so nothing is copied. Which of them runs is a table by card, see `choice`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .choice import (
    TOLERANCE,
    Order,
    by_card,
    compare,
    described,
    first_that_works,
    host_attention,
    need_cuda,
    wanted_name,
)

Run = Callable[[Tensor, Tensor, Tensor], Tensor]
RunLse = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
INT8_TOLERANCE = 6e-2  # relative, of int8 scores and weights


@dataclass(frozen=True)
class DenseChoice:
    """The attention chosen, and what was passed over for which reason.

    run(q, k, v) -> [Sq, heads, d]; run_lse(q, k, v) -> (out, lse [heads, Sq] float32, natural logarithm), None where the
    library has none.
    """

    name: str
    run: Run
    run_lse: RunLse | None
    passed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return described(self.name, self.passed)


def reference(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, in float32, one head at a time: out like q, lse [heads, Sq]. Without keys 0 and -inf."""
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
    for head, total in enumerate(lse):
        queries, keys, values = (x[:, head].float() for x in (q, k, v))
        scores = queries @ keys.t() * q.shape[-1] ** -0.5
        total.copy_(scores.logsumexp(-1))
        out[:, head] = (scores - total[:, None]).exp() @ values
    return out, lse


# --- what there is ---------------------------------------------------------------------------------------------------
# Each entry imports what it needs and returns its two functions; a failure of any kind says that it is not there.


def _heads_first(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, heads, d] as [1, heads, rows, d], views with the stride of a batch that cuDNN knows as this layout."""
    return q[None].transpose(1, 2), k[None].transpose(1, 2), v[None].transpose(1, 2)


def _rows_first(out: Tensor) -> Tensor:
    """[1, heads, rows, d] as [rows, heads, d], a view."""
    return out.squeeze(0).transpose(0, 1)


def _with_lse(made: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """What a torch operator returns; its log-sum-exp is [1, heads, rows] or [1, heads, rows, 1]."""
    out, lse = made[:2]
    return _rows_first(out), lse.reshape(out.shape[1], out.shape[2])


def _flash(function: Callable[..., Any], **lse_too: bool) -> tuple[Run, RunLse]:
    """A flash attention over [1, rows, heads, d], which may return a tuple in either case."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = function(q[None], k[None], v[None])
        return (made[0] if isinstance(made, tuple) else made)[0]

    def run_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = function(q[None], k[None], v[None], **lse_too)[:2]
        return out[0], lse[0]

    return run, run_lse


def _fa4() -> tuple[Run, RunLse]:
    from flash_attn.cute import flash_attn_func

    return _flash(flash_attn_func, return_lse=True)


def _fa3() -> tuple[Run, RunLse]:
    from flash_attn_interface import flash_attn_func

    # releases that do not know the argument return the log-sum-exp always
    asked = "return_attn_probs" in inspect.signature(flash_attn_func).parameters
    return _flash(flash_attn_func, **({"return_attn_probs": True} if asked else {}))


def _fa2() -> tuple[Run, RunLse]:
    from flash_attn import flash_attn_func

    return _flash(flash_attn_func, return_attn_probs=True)


def _cudnn() -> tuple[Run, RunLse]:
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if len(k) < 2:  # none leaves the output unwritten, and one is not supported
            return reference(q, k, v)[0]
        return _rows_first(attend(*_heads_first(q, k, v), None, False)[0])

    def run_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if len(k) < 2:
            return reference(q, k, v)
        return _with_lse(attend(*_heads_first(q, k, v), None, True))

    return run, run_lse


def _sdpa() -> tuple[Run, RunLse]:
    flash = torch.ops.aten._scaled_dot_product_flash_attention

    def run_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16):
            return _with_lse(flash(*_heads_first(q, k, v)))
        return reference(q, k, v)

    return lambda q, k, v: _rows_first(F.scaled_dot_product_attention(*_heads_first(q, k, v))), run_lse


def _comfy() -> tuple[Run, None]:
    dense = host_attention()
    return lambda q, k, v: _rows_first(dense(*_heads_first(q, k, v))), None


def _int8() -> tuple[Run, None]:
    from comfy_kitchen import int8_attention, int8_attention_is_available

    if not int8_attention_is_available():
        raise RuntimeError("comfy-kitchen has no int8 attention for this card")
    return lambda q, k, v: _rows_first(int8_attention(*_heads_first(q, k, v))), None


BACKENDS: dict[str, Callable[[], tuple[Run, RunLse | None]]] = {
    "fa4": _fa4,
    "fa3": _fa3,
    "fa2": _fa2,
    "cudnn": _cudnn,
    "sdpa": _sdpa,
    "comfy": _comfy,
    "int8": _int8,  # on request only: it stands in no row of ORDER
}
ON_CUDA_ONLY = ("fa4", "fa3", "fa2", "cudnn", "int8")
# Order of trial by compute capability; the first row whose capability is reached counts.
ORDER: Order = (
    ((12, 0), ("fa2", "cudnn", "sdpa", "fa4")),
    ((10, 0), ("fa4", "cudnn", "fa2", "sdpa")),
    ((9, 0), ("fa3", "fa4", "cudnn", "fa2", "sdpa")),
    ((8, 0), ("fa2", "sdpa", "fa4")),
)
ELSEWHERE = ("comfy", "sdpa")  # old and foreign cards


def order(device: torch.device) -> tuple[str, ...]:
    """Names in the order in which `auto` tries them on this device."""
    return by_card(device, ORDER, ELSEWHERE)


# --- the choice ------------------------------------------------------------------------------------------------------


def choose_dense(device: torch.device, dtype: torch.dtype, head_dim: int, wanted: str | None = None) -> DenseChoice:
    """The attention for rows of `head_dim` channels a head; `wanted` overrides the environment.

    Raises `AttentionError` when a named one is unknown or cannot run here.
    """
    return _choose(str(device), dtype, head_dim, wanted_name(wanted))


@cache
def _choose(device: str, dtype: torch.dtype, head_dim: int, wanted: str) -> DenseChoice:
    where = torch.device(device)
    _, found, passed = first_that_works(
        "transformer attention", where, dtype, wanted, BACKENDS, order(where),
        lambda name: _tested(name, where, dtype, head_dim),
    )  # fmt: skip
    return replace(found, passed=passed + found.passed)


def _tested(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> DenseChoice:
    """The functions, after a small trial against the definition; one whose log-sum-exp is wrong goes without it."""
    if name in ON_CUDA_ONLY:
        need_cuda(device)
    run, run_lse = BACKENDS[name]()
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, 2, head_dim, generator=random).to(device, dtype) for rows in (37, 150, 150))
    with torch.inference_mode():
        expected, expected_lse = reference(q.float(), k.float(), v.float())
        compare(run(q, k, v), expected, INT8_TOLERANCE if name == "int8" else TOLERANCE)
        if run_lse is None:
            return DenseChoice(name, run, None)
        try:
            out, lse = run_lse(q, k, v)
            compare(out, expected)
            compare(lse, expected_lse, what="log-sum-exp")
        except Exception as error:
            return DenseChoice(name, run, None, (f"{name} without log-sum-exp: {' '.join(str(error).split())[:120]}",))
    return DenseChoice(name, run, run_lse)
