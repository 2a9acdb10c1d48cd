"""One form of the transformer on the chunk that all forms run: timed, compared with the first form, looked into.

The chunk is the stream's third. Every form takes it from the same history with the same noise, so that latents can be
compared; prefix banks are filled by the form itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..sampler import Network, RolloutState
from .measure import GIB, peak_gib, relative_error, start_peak, synchronise
from .variants import PLAIN, Variant
from .watched import ELEMENTWISE, Trace, Watched, host_waits

REPEATS = 3  # timed runs of the chunk
LONGEST = 8  # kernels named in the report


class Base(NamedTuple):
    """The stream of the first form: where chunk 1 and chunk 2 start, and the pictures of chunk 2 after every step."""

    first: RolloutState
    second: RolloutState
    pictures: list[Tensor]


class Run(NamedTuple):
    """A form after its chunk: milliseconds by the clock and of its forwards alone, and what is needed to run them again."""

    variant: Variant
    network: Network
    base: Base
    clock_ms: float
    forwards_ms: float
    peak_gib: float | None
    arguments: list[Any]  # of the two forwards
    errors: list[float]  # of the pictures after each step, against the base's


@torch.inference_mode()
def run_chunk(variant: Variant, base: Base | None) -> Run:
    """Run a form; without a base it makes the stream and becomes the base itself."""
    made_of, device = variant.subject, variant.subject.device
    start_peak(device)
    watched = Watched(network := variant.network(), device)
    rollout = made_of.rollout(watched)
    if base is None:
        rollout.step(made_of.maps(rollout.next_window))
        first = rollout.state()
    else:
        rollout.restore(first := base.first)
    rollout.step(made_of.maps(rollout.next_window))  # fills the bank
    second = rollout.state() if base is None else base.second
    rollout.restore(second)
    maps = made_of.maps(rollout.next_window)
    watched.take_ms()
    rollout.step(maps)  # makes what this window keeps from then on
    arguments, pictures = watched.arguments, watched.pictures
    watched.take_ms()
    base = base or Base(first, second, pictures)
    clock, forwards = [], []
    for _ in range(REPEATS if device.type == "cuda" else 1):
        rollout.restore(second)
        synchronise(device)
        begin = time.perf_counter()
        rollout.step(maps)
        synchronise(device)
        clock.append(1000 * (time.perf_counter() - begin))
        forwards.append(watched.take_ms())
    errors = [relative_error(*pair) for pair in zip(pictures, base.pictures, strict=True)]
    times = statistics.median(clock), statistics.median(forwards)
    return Run(variant, network, base, *times, variant.own(peak_gib(device)), arguments, errors)


def facts(run: Run) -> Iterator[tuple[str, object]]:
    """What is known without running anything again."""
    name = run.variant.name
    if run.variant.form is not None:
        yield f"{name}: form", str(run.variant.form)
    yield f"{name}: prefix bank GiB", run.network.bank.nbytes / GIB
    yield f"{name}: ms outside the forwards", run.clock_ms - run.forwards_ms
    if run.variant.name != PLAIN:
        for number, error in enumerate(run.errors, 1):
            yield f"{name}: error against {PLAIN} after step {number}", error


@torch.inference_mode()
def looked_into(run: Run) -> Iterator[tuple[str, object]]:
    """Kernels by kind, and where the host waits for the device, in the two forwards and in the whole chunk."""
    name, device, made_of = run.variant.name, run.variant.subject.device, run.variant.subject

    def forwards() -> None:
        for window, latents, step in run.arguments:
            run.network(window, latents, step)

    rollout = made_of.rollout(run.network)
    rollout.restore(run.base.second)
    maps = made_of.maps(rollout.next_window)

    def chunk() -> None:
        rollout.restore(run.base.second)
        rollout.step(maps)

    yield f"{name}: host waits inside forwards", host_waits(device, forwards)
    yield f"{name}: host waits in the whole chunk", host_waits(device, chunk)
    trace = Trace(device, forwards)
    kinds = trace.by_kind
    total = sum(kinds.values())
    yield f"{name}: elementwise share of kernel time", trace.elementwise_share
    yield f"{name}: kernel ms by kind", ", ".join(f"{kind} {ms:.2f}" for kind, ms in kinds.items())
    yield (
        f"{name}: {ELEMENTWISE} kernels and copies, ms each",
        ", ".join(f"{kernel[:60]} {ms:.2f}" for kernel, ms in trace.longest(LONGEST).items()),
    )
    yield f"{name}: forwards less kernels, ms", run.forwards_ms - total
    yield f"{name}: blocking calls in the trace", trace.waits
