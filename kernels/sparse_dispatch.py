"""Which form computes Video Sparse Attention: a table by card, tried in its order, see `choice`.

`SRH3_SPARSE` names one instead: `triton`, `eager` (the definition in torch, for tests), or `off`, which computes the same
model with every tile seen.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from .choice import AUTO, AttentionError, Order, compare, described
from .dense_attention import DenseChoice, choose_dense
from .launch import refusal
from .sparse_attention import KERNELS, REFERENCE, Forced, Mode, Steps, vsa
from .tiles import Tiles

log = logging.getLogger("streamrender_h3")

ENVIRONMENT = "SRH3_SPARSE"
FORMS = ("triton", "eager")
NAMES = (*FORMS, "off")
EAGER_ROWS = 32768  # the definition goes tile by tile and head by head; a clip beyond this would take hours
# Order of trial by compute capability; the first row whose capability is reached counts.
ORDER: Order = (((8, 0), FORMS),)
ELSEWHERE = ("eager",)


@dataclass(frozen=True)
class SparseChoice:
    """The form chosen, the dense attention it leans on, and what was passed over for which reason."""

    name: str
    steps: Steps
    dense: DenseChoice
    passed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return described(f"{self.name} with {self.dense.name}", self.passed)

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        tiles: Tiles,
        sparsity: float,
        *,
        gate: Tensor | None = None,
        mode: Mode = "exempt",
        forced: Forced | None = None,
    ) -> Tensor:
        """`sparse_attention.vsa` by this form. Raises `AttentionError` where it would take hours; `need_rows` says so early."""
        self.need_rows(tiles.rows)
        sparsity = 0.0 if self.name == "off" else sparsity
        return vsa(q, k, v, tiles, sparsity, steps=self.steps, dense=self.dense, gate=gate, mode=mode, forced=forced)

    def need_rows(self, rows: int) -> None:
        """Raises `AttentionError` for a clip that this form cannot take."""
        if self.name == "eager" and rows > EAGER_ROWS:
            reasons = f" ({'; '.join(self.passed)})" if self.passed else ""
            raise AttentionError(
                f"this clip has {rows} rows, and sparse attention runs here in plain torch{reasons}, which takes "
                f"{EAGER_ROWS} at most; set the attention mode to dense, or install Triton for a CUDA card"
            )


def order(device: torch.device) -> tuple[str, ...]:
    """Names in the order in which `auto` tries them on this device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return ELSEWHERE
    capability = torch.cuda.get_device_capability(device)
    return next((names for least, names in ORDER if capability >= least), ELSEWHERE)


def choose_sparse(device: torch.device, dtype: torch.dtype, head_dim: int, wanted: str | None = None) -> SparseChoice:
    """The form for rows of `head_dim` channels a head; `wanted` overrides the environment.

    Raises `AttentionError` when a named one is unknown or cannot run here.
    """
    return _choose(str(device), dtype, head_dim, wanted or os.environ.get(ENVIRONMENT, AUTO) or AUTO)


@cache
def _choose(device: str, dtype: torch.dtype, head_dim: int, wanted: str) -> SparseChoice:
    if wanted not in (AUTO, *NAMES):
        raise AttentionError(
            f"{ENVIRONMENT} is {wanted!r}, which no sparse attention is called; choose one of {AUTO}, {', '.join(NAMES)}"
        )
    where = torch.device(device)
    dense = choose_dense(where, dtype, head_dim)
    passed: list[str] = []
    for name in order(where) if wanted in (AUTO, "off") else (wanted,):
        try:
            steps = _tested(name, where, dtype, head_dim, dense)
        except Exception as error:  # a broken package must cost speed, not the render
            passed.append(f"{name}: {' '.join(str(error).split())[:120] or type(error).__name__}")
            continue
        found = SparseChoice("off" if wanted == "off" else name, steps, dense, tuple(passed))
        log.info("sparse attention on %s in %s: %s", where, str(dtype).removeprefix("torch."), found)
        return found
    raise AttentionError(
        f"sparse attention {wanted!r} cannot run on {where} ({'; '.join(passed)}); set {ENVIRONMENT}={AUTO}"
    )


def _tested(name: str, device: torch.device, dtype: torch.dtype, head_dim: int, dense: DenseChoice) -> Steps:
    """The steps of a form, after a small trial against the definition."""
    if name == "eager":
        return REFERENCE
    random = torch.Generator().manual_seed(0)
    tiles = Tiles.of([70, 5, (5, 5, 9)], (4, 4, 4))
    q, k, v, gate = (torch.randn(tiles.rows, 2, head_dim, generator=random).to(dtype) for _ in range(4))
    if reason := refusal(q.to(device)):
        raise RuntimeError(reason)
    exact = choose_dense(torch.device("cpu"), torch.float32, head_dim, "sdpa")
    with torch.inference_mode():
        expected = vsa(q.float(), k.float(), v.float(), tiles, 0.7, steps=REFERENCE, dense=exact, gate=gate.float())
        here = tiles.to(device)
        made = vsa(
            q.to(device), k.to(device), v.to(device), here, 0.7, steps=KERNELS, dense=dense, gate=gate.to(device)
        )
    compare(made.cpu(), expected)
    return KERNELS
