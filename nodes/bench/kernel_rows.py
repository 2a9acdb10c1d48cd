"""The part `kernels`: the work between the matrix products, kernel by kernel, next to the time its bytes take to copy.

Every kernel reads its inputs once and writes its outputs once; the limit is those bytes at the speed of a large copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels import fp8_rows, head_norm_rope, lse_merge, norm_modulate, swiglu
from ...kernels.launch import refusal
from ..model import BLOCK_SLOTS, MODALITIES
from .limits import repeats
from .measure import copy_gb_per_s, median_ms, peak_gib, start_peak
from .model import STEPS, Subject, sizes, subject
from .rows import Options, Report, Row

REPEATS = 20
FP8 = torch.float8_e4m3fn
TIMES = 3  # noise levels of a forward


class Work(NamedTuple):
    """One call of a kernel, the bytes that it must move, and how often a forward calls it per block."""

    name: str
    run: Callable[[], Any]
    nbytes: int
    calls: float


def measure(options: Options) -> list[Report]:
    """One report per size."""
    return [report(subject(options, size), options) for size in sizes(options)]


@torch.inference_mode()
def report(made_of: Subject, options: Options) -> Report:
    device, layers = made_of.device, made_of.config.layers
    made = Report(made_of.title(f"H3 {options.preset}, kernels of one block, {made_of.counts.moving} rows"))
    bandwidth = copy_gb_per_s(device)
    fused = not refusal(torch.empty(0, device=device))
    made.facts |= {"GB/s of a large copy": bandwidth, "form": "kernels" if fused else "torch references"}
    total = least = 0.0
    for work in works(made_of, fused):
        with made.surviving(work.name):
            start_peak(device)
            ms = median_ms(device, work.run, repeats=repeats(device, REPEATS))
            limit = work.nbytes / bandwidth / 1e6
            made.rows.append(Row(work.name, ms, None, limit, peak_gib(device)))
            made.facts[f"{work.name}: GB/s"] = work.nbytes / ms / 1e6
            total, least = total + work.calls * ms, least + work.calls * limit
    chunk = STEPS * layers
    made.rows.append(Row("all of an exact chunk, sandwich", chunk * total, None, chunk * least))
    return made


def works(made_of: Subject, fused: bool) -> Iterator[Work]:
    """Every kernel with random inputs at the shapes of a continuation chunk. Those with calls > 0 make an exact forward."""
    config, device, dtype = made_of.config, made_of.device, made_of.model.dtype
    rows, size = made_of.counts.moving, dtype.itemsize
    hidden, inner, ffn, heads, wide = config.hidden, config.inner, config.ffn, config.heads, config.head_dim

    def random(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    def of(module: ModuleType) -> Callable[..., Any]:
        return module.launch if fused else module.reference

    x, branch, weight = random(rows, hidden), random(rows, hidden), random(hidden)
    table = 0.1 * random(MODALITIES * TIMES, BLOCK_SLOTS, hidden)
    shift, scale, gate = table[:, 0], table[:, 1], table[:, 2]
    row = torch.randint(len(table), (rows,), device=device, dtype=torch.int32)
    modulate = partial(of(norm_modulate), x, weight, config.eps, shift, scale, row)
    cells = rows * hidden
    added = {"branch": branch, "gate": gate}
    yield Work("norm_modulate", partial(modulate, dtype), 2 * cells * size, 0)
    yield Work("norm_modulate, residual", partial(modulate, dtype, **added), 4 * cells * size, 2)
    to_fp8 = (3 * size + 1) * cells + 4 * rows
    yield Work("norm_modulate, residual, to fp8", partial(modulate, FP8, **added), to_fp8, 0)
    yield Work("norm_modulate, to float32", partial(modulate, torch.float32), (size + 4) * cells, 0)

    qkv, half = random(rows, 3 * inner), 3 * config.rope_freqs
    cos, sin, head_weight = random(rows, half), random(rows, half), random(wide)
    room = random(2, rows, heads, wide)
    turn = partial(of(head_norm_rope), qkv, head_weight, head_weight, cos, sin, config.eps, room[0], room[1])
    yield Work("head_norm_rope, into the bank", turn, rows * (6 * inner + 2 * half) * size, 1)

    pair = random(rows, 2 * ffn)
    yield Work("swiglu", partial(of(swiglu), pair), 3 * rows * ffn * size, 1)
    yield Work("swiglu, to fp8", partial(of(swiglu), pair, out=FP8), rows * (ffn * (2 * size + 1) + 4), 0)
    mixed = random(rows, inner)
    yield Work("fp8_rows of the attention", partial(of(fp8_rows), mixed), rows * (inner * (size + 1) + 4), 0)
    a, b = random(rows, heads, wide), random(rows, heads, wide)
    lse_a, lse_b = (random(heads, rows, dtype=torch.float32) for _ in range(2))
    merge = partial(of(lse_merge), a, lse_a, b, lse_b)
    yield Work("lse_merge", merge, 3 * rows * inner * size + 8 * rows * heads, 0)
