"""Time and memory of a piece of work on a device."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from datetime import date

import torch
from torch import Tensor

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


def median_ms(device: torch.device, work: Callable[[], object], *, repeats: int, rounds: int = 5) -> float:
    """Milliseconds of one `work()`: the median of the means of `rounds` rounds. A CPU gets one round."""
    first = time_ms(device, work, repeats=repeats)
    if device.type != "cuda":
        return first
    return statistics.median([first, *(time_ms(device, work, repeats=repeats, warm=0) for _ in range(rounds - 1))])


def synchronise(device: torch.device) -> None:
    """Wait for the device's work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def relative_error(made: Tensor, expected: Tensor) -> float:
    """Relative Frobenius error, in float64."""
    return float((made.double() - expected.double()).norm() / expected.double().norm())


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


def copy_gb_per_s(device: torch.device) -> float:
    """GB/s of a large copy, bytes read and bytes written both counted."""
    source = torch.ones(2**30 if device.type == "cuda" else 2**25, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_ms(device, lambda: target.copy_(source), repeats=5) / 1e6


def machine(device: torch.device) -> dict[str, str]:
    """Device, software and date of a run."""
    try:
        import triton

        language = triton.__version__
    except Exception:  # a broken installation raises more than ImportError
        language = "none"
    return {
        "device": device_name(device),
        "torch": torch.__version__,
        "triton": language,
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
