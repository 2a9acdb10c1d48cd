"""What can be seen of a predictor from outside: the time of its calls, its kernels by kind, and whether the host waits.

A trace of PyTorch's profiler gives the kernels; PyTorch's own detection of synchronising calls gives the waits.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..sampler.pack import WindowLatents
from ..sampler.rollout import Predictor
from ..schedule import Window

# Parts of kernel names (or of operators, on a CPU), the first kind that matches counts.
KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("flash", "fmha", "sdpa", "attention", "attn", "sage")),
    (
        "products",
        ("gemm", "nvjet", "cutlass", "xmma", "aten::mm", "addmm", "aten::bmm", "scaled_mm", "linear", "splitk"),
    ),
    ("copies", ("memcpy", "memset", "copy", "catarray", "aten::cat", "aten::stack")),
)
ELEMENTWISE = "elementwise"
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")  # exact names, of blocking calls of the runtime
WAITED = "synchronizing CUDA operation"
NOT_HERE = "not on a CPU"


class Watched:
    """A predictor that hands every call on to `predict` and keeps its time, its arguments and its picture."""

    def __init__(self, predict: Predictor, device: torch.device) -> None:
        self._predict, self._device = predict, device
        self._marks: list[tuple[Any, Any]] = []
        self.arguments: list[tuple[Window, WindowLatents, int]] = []
        self.pictures: list[Tensor] = []

    def __call__(self, window: Window, latents: WindowLatents, step: int) -> tuple[Tensor, Tensor]:
        begin = self._mark()
        made = self._predict(window, latents, step)
        self._marks.append((begin, self._mark()))
        self.arguments.append((window, latents, step))
        self.pictures.append(made[0])
        return made

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def take_ms(self) -> float:
        """Milliseconds of all calls since the last `take_ms`; forgets them and what they were given and gave."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            total = sum(begin.elapsed_time(end) for begin, end in self._marks)
        else:
            total = 1000 * sum(end - begin for begin, end in self._marks)
        self._marks, self.arguments, self.pictures = [], [], []
        return total


def kind_of(kernel: str) -> str:
    """The kind of work that a kernel of this name does."""
    name = kernel.lower()
    return next((kind for kind, parts in KINDS if any(part in name for part in parts)), ELEMENTWISE)


class Trace:
    """Kernels of some work: milliseconds by kind and by name, and the blocking calls of the host."""

    def __init__(self, device: torch.device, work: Callable[[], object]) -> None:
        from torch.profiler import ProfilerActivity, profile

        cuda = device.type == "cuda"
        with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
            work()
            if cuda:
                torch.cuda.synchronize(device)
        self.by_name: Counter[str] = Counter()
        self.waits = 0
        for event in found.key_averages():
            on_device = event.device_type == torch.autograd.DeviceType.CUDA
            if cuda and not on_device:
                self.waits += event.count if event.key in WAITS else 0
            else:
                micros = event.self_device_time_total if cuda else event.self_cpu_time_total
                self.by_name[event.key] += micros / 1000

    @property
    def by_kind(self) -> dict[str, float]:
        found = dict.fromkeys([ELEMENTWISE, *(kind for kind, _ in KINDS)], 0.0)
        for name, ms in self.by_name.items():
            found[kind_of(name)] += ms
        return found

    @property
    def elementwise_share(self) -> float:
        """Of the time of all kernels, what is neither matrix product nor attention; copies count."""
        total = sum(self.by_name.values())
        exact = self.by_kind["products"] + self.by_kind["attention"]
        return 1 - exact / total if total else 0.0

    def longest(self, count: int) -> dict[str, float]:
        """The kernels that take most of what is neither product nor attention."""
        rest = {name: ms for name, ms in self.by_name.items() if kind_of(name) in (ELEMENTWISE, "copies")}
        return {name: rest[name] for name in sorted(rest, key=lambda name: -rest[name])[:count]}


def host_waits(device: torch.device, work: Callable[[], object]) -> str:
    """Where the host waits for the device during `work`: "none", or every place with its count."""
    if device.type != "cuda":
        return NOT_HERE
    torch.cuda.synchronize(device)
    try:
        torch.cuda.set_sync_debug_mode("error")
        work()
        return "none"
    except RuntimeError as error:
        if WAITED not in str(error):
            raise
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with warnings.catch_warnings(record=True) as caught:  # the strict mode stops at the first; this one sees them all
        warnings.simplefilter("always")
        try:
            torch.cuda.set_sync_debug_mode("warn")
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = Counter(f"{Path(one.filename).name}:{one.lineno}" for one in caught if WAITED in str(one.message))
    return ", ".join(f"{place} ({count}x)" for place, count in places.items())
