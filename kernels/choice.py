"""How an attention is chosen, for whoever has a table of them: the first entry that imports, suits the card and passes a
small trial.

`SRH3_ATTENTION` names one instead of `auto`; a named one that cannot run is an error, never a silent replacement. Tables
differ: a name that only another table knows leaves this one at `auto`, and the log says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

from .segments import DenseAttention

log = logging.getLogger("streamrender_h3")

ENVIRONMENT, AUTO = "SRH3_ATTENTION", "auto"
# Every name there is: `varlen` and `triton` are for the windows of the decoder alone, `int8` for the transformer alone.
NAMES = ("fa4", "fa3", "fa2", "varlen", "triton", "cudnn", "sdpa", "comfy", "int8")
TOLERANCE = 2e-2  # relative, of a trial; a right kernel in bf16 stays below 4e-3

Order = tuple[tuple[tuple[int, int], tuple[str, ...]], ...]
Found = TypeVar("Found")


class AttentionError(RuntimeError):
    """The attention asked for cannot run here; the message says why and what can."""


_host: list[DenseAttention] = []


def offer_host_attention(dense: DenseAttention) -> None:
    """The host hands in the attention that its user chose; it is the entry `comfy`."""
    _host[:] = [dense]


def host_attention() -> DenseAttention:
    if not _host:
        raise ImportError("no host has handed in its attention")
    return _host[0]


def wanted_name(wanted: str | None) -> str:
    """What is asked for: by the caller, else by the environment, else nothing in particular."""
    return wanted or os.environ.get(ENVIRONMENT, AUTO) or AUTO


def by_card(device: torch.device, rows: Order, elsewhere: tuple[str, ...]) -> tuple[str, ...]:
    """The row of a table whose compute capability the device reaches; `elsewhere` on old and foreign cards."""
    if device.type != "cuda" or torch.version.hip is not None:
        return elsewhere if device.type != "cpu" else ("sdpa",)
    capability = torch.cuda.get_device_capability(device)
    return next((names for least, names in rows if capability >= least), elsewhere)


def first_that_works(
    use: str,
    where: torch.device,
    dtype: torch.dtype,
    wanted: str,
    known: Iterable[str],
    order: tuple[str, ...],
    trial: Callable[[str], Found],
) -> tuple[str, Found, tuple[str, ...]]:
    """Name, result of its trial, and what was passed over for which reason; one line in the log.

    `known` are the names of this table, `order` those that `auto` tries. Raises `AttentionError` when a name is unknown to
    every table, or the named one cannot run here.
    """
    known = tuple(known)
    if wanted not in (AUTO, *NAMES):
        raise AttentionError(
            f"{ENVIRONMENT} is {wanted!r}, which no attention is called; choose one of {AUTO}, {', '.join(NAMES)}"
        )
    passed: list[str] = []
    if wanted != AUTO and wanted not in known:
        passed.append(f"{wanted}: not for this use")
        wanted = AUTO
    for name in order if wanted == AUTO else (wanted,):
        try:
            found = trial(name)
        except Exception as error:  # a broken package must cost speed, not the render
            passed.append(f"{name}: {' '.join(str(error).split())[:120] or type(error).__name__}")
            continue
        log.info("%s on %s in %s: %s", use, where, str(dtype).removeprefix("torch."), described(name, passed))
        return name, found, tuple(passed)
    raise AttentionError(
        f"attention {wanted!r} cannot run on {where} ({'; '.join(passed)}); "
        f"set {ENVIRONMENT}={AUTO} or one of {', '.join(order)}"
    )


def described(name: str, passed: Iterable[str]) -> str:
    """A name with the reasons against what stood before it."""
    reasons = "; ".join(passed)
    return name + (f" ({reasons})" if reasons else "")


def need_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise RuntimeError(f"it needs a CUDA device, and this is {device.type}")


def compare(made: Tensor, expected: Tensor, tolerance: float = TOLERANCE, what: str = "self-test") -> None:
    """Raises when `made` is further from `expected` than a right computation can be."""
    error = float((made.float() - expected).norm() / expected.norm())
    if not error < tolerance:
        raise RuntimeError(f"its {what} is off by {error:.1e}")
