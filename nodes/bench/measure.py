"""Time and memory of a piece of work on a device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

GIB = 1024**3


def time_ms(device: torch.device, work: Callable[[], object], *, repeats: int, warm: int = 3) -> float:
    """Milliseconds of one `work()`: the mean over `repeats` after `warm` untimed ones, by CUDA events or the clock.

    A CPU has nothing to compile or record and is warm after one.
    """
    for _ in range(warm if device.type == "cuda" else 1):
        work()
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        return 1000 * (time.perf_counter() - start) / repeats
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / repeats


def start_peak(device: torch.device) -> None:
    """Begin to watch the memory of the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    """Most memory held since `start_peak`; None where it cannot be told."""
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else None


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """TFLOP/s of one large square matrix product of random numbers: what this device reaches at best."""
    side = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    ms = time_ms(device, lambda: a @ b, repeats=10 if device.type == "cuda" else 3)
    return 2 * side**3 / ms / 1e9


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
