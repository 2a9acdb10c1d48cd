"""What the checks of the kernels share: where they run, limits, random tensors and the error measure."""

from __future__ import annotations

import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
# bf16 only on a GPU: the interpreter's bf16 dot is wrong and its bf16 store truncates
DTYPES = (torch.float32, torch.float16) if INTERPRETED else (torch.float32, torch.float16, torch.bfloat16)
# relative Frobenius error: a fused elementwise kernel rounds once, attention also rounds its weights
ELEMENTWISE = {torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: 2.5e-3}
ATTENTION = {torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}
SOURCE = torch.Generator().manual_seed(0)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=SOURCE).to(DEVICE, dtype)


def off(made: torch.Tensor, expected: torch.Tensor) -> float:
    assert made.isfinite().all()
    return float((made.double() - expected.double()).norm() / expected.double().norm())
