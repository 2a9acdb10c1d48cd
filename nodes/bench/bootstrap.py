"""The part `bootstrap`: what comes before the steady stream, the first chunk and the prefill of the prefix banks.

Each is measured as a stream meets it: text refining, layouts and packing of the first window count as part of its chunk.
The prefill happens inside chunk 1; its time is that of chunk 1 less that of chunk 2, which has as many moving rows.
"""

from __future__ import annotations

import torch

from .limits import Limits, Shape, chunk_flops, measure_limits
from .measure import matmul_peak, peak_gib, start_peak
from .model import Subject, sizes, subject
from .rows import Options, Report, Row
from .variants import PLAIN, Variant, first_variants, release
from .watched import Watched

WINDOWS = 3  # bootstrap, chunk 1 with the prefill, chunk 2


def measure(options: Options) -> list[Report]:
    """One report per size."""
    return [report(subject(options, size), options) for size in sizes(options)]


def report(made_of: Subject, options: Options) -> Report:
    made = Report(made_of.title(f"H3 {options.preset}, start of a stream"))
    peak = matmul_peak(made_of.device, made_of.model.dtype)
    counts = made_of.counts
    parts = {"bootstrap": Shape(counts.bootstrap, counts.bootstrap), "prefill": Shape(counts.prefix, counts.prefix)}
    made.facts |= {f"rows of the {name}": shape.rows for name, shape in parts.items()}
    limits = {}
    for name, shape in parts.items():
        limits[name] = measure_limits(made_of, shape, peak)
        made.rows += [Row(f"{name}: {row.name}", row.ms, row.tflops, row.limit_ms) for row in limits[name].rows]
    for variant in first_variants(made_of):
        with made.surviving(variant.name):
            made.rows += start(variant, limits)
        release(made_of.device)
    return made


@torch.inference_mode()
def start(variant: Variant, limits: dict[str, Limits]) -> list[Row]:
    """The first windows of a stream. Fused forms run twice and the second time counts: kernels are compiled by then."""
    made_of, times = variant.subject, [0.0]
    cuda = made_of.device.type == "cuda"
    start_peak(made_of.device)
    for _ in range(2 if cuda and variant.name != PLAIN else 1):
        watched = Watched(variant.network(), made_of.device)
        rollout = made_of.rollout(watched)
        times = []
        for _ in range(WINDOWS):
            rollout.step(made_of.maps(rollout.next_window))
            times.append(watched.take_ms())
        del watched, rollout
        release(made_of.device)
    held = variant.own(peak_gib(made_of.device))
    rows = []
    for name, ms in (("bootstrap", times[0]), ("prefill", times[1] - times[2])):
        flops = chunk_flops(made_of.config, limits[name].shape)
        ms = max(ms, 1e-3)  # a difference; on a toy it can be lost in noise
        rows.append(Row(f"{name}: {variant.name}", ms, flops / ms / 1e9, variant.limit_ms(limits[name]), held))
    return rows
