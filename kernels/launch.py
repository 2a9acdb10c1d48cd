"""What every Triton kernel of the pack shares: a guarded import, and when a launch is possible.

Triton is optional. Without it the module of a kernel still imports, and its torch reference does the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import Tensor


def _import() -> tuple[Any, Any, str]:
    """Triton, its language, and why they are missing."""
    try:
        import triton
        import triton.language
    except Exception as error:  # a broken installation raises more than ImportError, and must not stop the pack
        return None, None, f"Triton cannot be imported ({type(error).__name__}: {error})"
    return triton, triton.language, ""


triton, tl, MISSING = _import()


def jit(kernel: Callable[..., None]) -> Any:
    """`triton.jit` where there is Triton."""
    return kernel if triton is None else triton.jit(kernel)


def refusal(tensor: Tensor, least: tuple[int, int] = (8, 0)) -> str:
    """Why no kernel can take this tensor; empty when one can. CPU tensors only go through Triton's interpreter.

    `least` is the compute capability that the kernel needs.
    """
    if MISSING:
        return MISSING
    if os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    if not tensor.is_cuda:
        return f"the device is {tensor.device.type}, and Triton kernels need CUDA"
    import torch

    capability = torch.cuda.get_device_capability(tensor.device)
    have, need = (".".join(map(str, version)) for version in (capability, least))
    return "" if capability >= least else f"compute capability {have} is below {need}"


def need_rows(**tensors: Tensor) -> None:
    """Raises `ValueError` for a tensor whose rows do not follow one another without gaps: a kernel would read garbage."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"{name} {tuple(tensor.shape)} has strides {tensor.stride()}, and a kernel needs it contiguous; "
                "call .contiguous() on it first"
            )


def need_columns(**tensors: Tensor | None) -> None:
    """Raises `ValueError` for a tensor whose columns do not follow one another; its rows may lie anywhere."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(
                f"{name} {tuple(tensor.shape)} has strides {tensor.stride()}, and a kernel needs 1 for the last; "
                "call .contiguous() on it first"
            )


def power_of_two(number: int) -> int:
    """The next power of two, which a block of Triton must be."""
    return 1 << max(0, number - 1).bit_length()
