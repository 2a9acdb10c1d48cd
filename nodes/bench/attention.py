"""The part `attention`: every attention that runs here, at the shapes of the transformer, next to one large product."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...kernels.choice import AttentionError
from ...kernels.dense_attention import BACKENDS, choose_dense
from .limits import Shape, attention_flops, attention_ms, backends
from .measure import matmul_peak, peak_gib, start_peak
from .model import Subject, sizes, subject
from .rows import Options, Report, Row


def measure(options: Options) -> list[Report]:
    """One report per size."""
    return [report(subject(options, size), options) for size in sizes(options)]


@torch.inference_mode()
def report(made_of: Subject, options: Options) -> Report:
    device, dtype, config = made_of.device, made_of.model.dtype, made_of.config
    made = Report(made_of.title(f"H3 {options.preset}, attention of one block"))
    peak = matmul_peak(device, dtype)
    found = backends(device, dtype, config.head_dim)
    made.facts |= {
        "matmul TFLOP/s of one large product": peak,
        "chosen": str(choose_dense(device, dtype, config.head_dim)),
    }
    made.facts |= {f"not here: {name}": reason for name, reason in refused(device, dtype, config.head_dim)}
    counts = made_of.counts
    for name, shape in (
        ("chunk", Shape(counts.moving, made_of.keys)),
        ("bootstrap", Shape(counts.bootstrap, counts.bootstrap)),
        ("prefix", Shape(counts.prefix, counts.prefix)),
    ):
        flops = attention_flops(config, shape) // config.layers
        for backend in found:
            label = f"{name} {shape.rows} x {shape.keys}: {backend.name}"
            with made.surviving(label):
                start_peak(device)
                ms = attention_ms(made_of, shape, backend)
                made.rows.append(Row(label, ms, flops / ms / 1e9, flops / peak / 1e9, peak_gib(device)))
    flops = attention_flops(config, Shape(counts.moving, made_of.keys)) // config.layers
    for backend in found:
        if backend.run_lse is None:
            continue
        label = f"chunk {counts.moving} x ({counts.prefix} + {counts.moving}), two calls with LSE: {backend.name}"
        with made.surviving(label):  # what the split form of the bank runs, without the merge
            parts = (Shape(counts.moving, keys) for keys in (counts.prefix, counts.moving))
            ms = sum(attention_ms(made_of, shape, backend, lse=True) for shape in parts)
            made.rows.append(Row(label, ms, flops / ms / 1e9, flops / peak / 1e9))
    return made


def refused(device: torch.device, dtype: torch.dtype, head_dim: int) -> Iterator[tuple[str, str]]:
    """Attentions that cannot run here, and why."""
    for name in BACKENDS:
        try:
            choose_dense(device, dtype, head_dim, name)
        except AttentionError as error:
            yield name, str(error).partition("(")[2].partition(");")[0]
