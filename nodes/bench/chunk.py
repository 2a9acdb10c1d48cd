"""The part `chunk`: one continuation chunk of the stream in every form, next to its matrix products and attention alone.

A chunk is timed by the clock from its map latents to its own latents, and its two forwards by device events.
"""

from __future__ import annotations

import logging

from .chunk_run import Base, Run, facts, looked_into, run_chunk
from .limits import (
    Limits,
    Shape,
    attention_flops,
    backends,
    chunk_flops,
    in_turn_ms,
    linear_flops,
    measure_limits,
)
from .measure import matmul_peak
from .model import STEPS, Subject, sizes, subject
from .rows import Options, Report, Row
from .variants import FUSED, PLAIN, Variant, release, variants

log = logging.getLogger(__name__)

FORWARDS = ", forwards alone"
# Facts that the part `roofline` reads.
PRODUCTS_WORK, ATTENTION_WORK = "TFLOP of a chunk, products", "TFLOP of a chunk, attention"
PRODUCTS_RATE, ATTENTION_RATE = "TFLOP/s of the products, ", "TFLOP/s of the attention, best exact"


def measure(options: Options) -> list[Report]:
    """One report per size."""
    return [report(subject(options, size), options) for size in sizes(options)]


def report(made_of: Subject, options: Options) -> Report:
    device, shape = made_of.device, Shape(made_of.counts.moving, made_of.keys)
    made = Report(made_of.title(f"H3 {options.preset}, one chunk of {STEPS} steps"))
    peak = matmul_peak(device, made_of.model.dtype)
    limits = measure_limits(made_of, shape, peak)
    made.rows += limits.rows
    made.facts |= {**counts(made_of, shape, peak), **rates(limits)}
    base: Base | None = None
    for variant in variants(made_of, options.forms):
        if variant.name == PLAIN:
            base = one(made, variant, limits, None)
        else:
            with made.surviving(variant.name):
                one(made, variant, limits, base)
        release(device)
    compare(made)
    with made.surviving("products and attention in turn"):
        in_turn(made, made_of, shape, limits)
    return made


def one(made: Report, variant: Variant, limits: Limits, base: Base | None) -> Base:
    """Rows and facts of one form; what it started from."""
    run = run_chunk(variant, base)
    add_rows(made, run, limits)
    made.facts |= dict(facts(run))
    if variant.looked_into:
        with made.surviving(f"{variant.name}, looked into"):
            for name, fact in looked_into(run):
                made.facts[name] = fact
    return run.base


def add_rows(made: Report, run: Run, limits: Limits) -> None:
    """The chunk, and its forwards alone."""
    variant, flops = run.variant, chunk_flops(limits.config, limits.shape)
    for name, ms in ((variant.name, run.clock_ms), (variant.name + FORWARDS, run.forwards_ms)):
        made.rows.append(Row(name, ms, flops / ms / 1e9, variant.limit_ms(limits), run.peak_gib))
    log.info("%s: %.1f ms, forwards alone %.1f ms", variant.name, run.clock_ms, run.forwards_ms)


def counts(made_of: Subject, shape: Shape, peak: float) -> dict[str, object]:
    return {
        "rows of a forward": shape.rows,
        "rows of the prefix": made_of.counts.prefix,
        "rows attended to": shape.keys,
        "matmul TFLOP/s of one large product": peak,
        PRODUCTS_WORK: STEPS * linear_flops(made_of.config, shape.rows) / 1e12,
        ATTENTION_WORK: STEPS * attention_flops(made_of.config, shape) / 1e12,
    }


def rates(limits: Limits) -> dict[str, object]:
    """TFLOP/s of the parts alone."""
    config, shape = limits.config, limits.shape
    linears = linear_flops(config, shape.rows) / config.layers / 1e9
    found: dict[str, object] = {PRODUCTS_RATE + kind: linears / ms for kind, ms in limits.linears.items()}
    found[ATTENTION_RATE] = attention_flops(config, shape) / config.layers / 1e9 / limits.best()
    return found


def compare(made: Report) -> None:
    """Ratios to the plain form and to the limit."""
    plain = made.row(PLAIN).ms
    for row in [row for row in made.rows if row.name.startswith(FUSED) and not row.name.endswith(FORWARDS)]:
        made.facts[f"{row.name}: chunk / limit"] = row.ms / (row.limit_ms or row.ms)
        made.facts[f"{row.name}: {PLAIN} / chunk"] = plain / row.ms


def in_turn(made: Report, made_of: Subject, shape: Shape, limits: Limits) -> None:
    """Products and attention of a chunk as they follow each other: what heat and a full card leave of the limit."""
    found = backends(made_of.device, made_of.model.dtype, made_of.config.head_dim)
    best = min((one for one in found if one.exact), key=lambda one: limits.attention[one.name])
    flops = chunk_flops(made_of.config, shape)
    for kind in limits.linears:
        ms = STEPS * in_turn_ms(made_of, shape, best, kind)
        name = f"{kind} products and attention in turn"
        made.rows.append(Row(name, ms, flops / ms / 1e9, limits.chunk_ms(kind)))
