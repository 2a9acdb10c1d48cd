"""Matrix products on quantised weights, and whether they work here: each is really tried once per device and compared.

Rows x [M, in] times a weight [out, in] in codes, without widening it first. Where a method is missing or wrong the caller
dequantises; the reason is kept to be shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .fp8_format import FP8_MAX, Fp8Rows, quantised


def fp8_rows(x: Tensor) -> Fp8Rows:
    """x [M, in] as float8_e4m3fn codes and one float32 scale per row [M, 1], the row's largest value at 448.

    By the kernel where Triton runs on CUDA.
    """
    if x.is_cuda and x.stride(-1) == 1:
        from . import fp8_rows as kernel

        if not kernel.refusal(x, x.shape[-1]):
            return kernel.launch(x)
    return quantised(x)


def fp8_linear(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """w8a8: x [M, in] quantised per row, codes float8_e4m3fn [out, in], scale float32 [out, 1]. Result [M, out] in x's dtype."""
    return fp8_product(fp8_rows(x), codes, scale, x.dtype)


def fp8_product(rows: Fp8Rows, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """`fp8_linear` of rows [M, in] that are quantised already. Result [M, out] in `dtype`."""
    out = torch._scaled_mm(
        rows.codes,
        codes.t(),
        scale_a=rows.scale,
        scale_b=scale.t().contiguous(),
        out_dtype=torch.bfloat16,
        use_fast_accum=_sums_fast(codes.device),
    )
    return out.to(dtype)


@lru_cache(maxsize=32)
def _sums_fast(device: torch.device) -> bool:
    """Whether sums are kept in the tensor core's own precision. On Hopper that is faster, and the error of a product stays
    that of its fp8 operands (README.md)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def int8_linear(x: Tensor, codes: Tensor, scale: Tensor, rotation: int = 0) -> Tensor:
    """comfy-kitchen's int8 product: rows quantised on the way, columns rotated in groups where the weight is."""
    import comfy_kitchen as kitchen

    rotated = {"convrot": True, "convrot_groupsize": rotation} if rotation else {}
    return kitchen.int8_linear(x, codes, scale, out_dtype=x.dtype, **rotated)


def nvfp4_linear(x: Tensor, codes: Tensor, tiled_blocks: Tensor, scale: Tensor) -> Tensor:
    """comfy-kitchen's w4a4 product. codes uint8 [out, in / 2], even column in the high nibble; block scales in tiles."""
    import comfy_kitchen as kitchen

    per_tensor = x.abs().amax().float().clamp(min=1e-12) / (6.0 * FP8_MAX)
    rows, row_blocks = kitchen.quantize_nvfp4(x, per_tensor, pad_16x=True)
    out = kitchen.scaled_mm_nvfp4(
        rows, codes, tensor_scale_a=per_tensor, tensor_scale_b=scale, block_scale_a=row_blocks,
        block_scale_b=tiled_blocks, out_dtype=x.dtype,
    )  # fmt: skip
    return out[: x.shape[0]]


class Verdict(NamedTuple):
    """Whether a method is used on a device, and why not."""

    works: bool
    reason: str


class Method(NamedTuple):
    """A product that may be used: the capability it needs, the error it may have, and a trial."""

    name: str
    capability: tuple[int, int]
    tolerance: float  # relative Frobenius error against the plain product (specification: attention 6)
    trial: Callable[[Tensor, Tensor], Tensor]


def _try_fp8(x: Tensor, weight: Tensor) -> Tensor:
    codes, scale = fp8_rows(weight)
    return fp8_linear(x, codes, scale)


def _try_int8(x: Tensor, weight: Tensor) -> Tensor:
    scale = weight.float().abs().amax(dim=1, keepdim=True) / 127
    codes = (weight.float() / scale).round().clamp(-127, 127).to(torch.int8)
    return int8_linear(x, codes, scale)


def _try_nvfp4(x: Tensor, weight: Tensor) -> Tensor:
    import comfy_kitchen as kitchen

    scale = weight.abs().amax().float() / (6.0 * FP8_MAX)
    codes, blocks = kitchen.quantize_nvfp4(weight, scale)
    return nvfp4_linear(x, codes, blocks, scale)


METHODS = {
    "fp8": Method("torch._scaled_mm, rows and weights in fp8", (8, 9), 0.045, _try_fp8),
    "int8": Method("comfy-kitchen int8_linear", (7, 5), 0.016, _try_int8),
    "nvfp4": Method("comfy-kitchen scaled_mm_nvfp4", (10, 0), 0.16, _try_nvfp4),
}


@lru_cache(maxsize=32)
def verdict(kind: str, device: str) -> Verdict:
    """Try the method for `kind` ("fp8", "int8", "nvfp4") on `device` ("cuda:0") against the plain product. Never raises."""
    method = METHODS.get(kind)
    if method is None:
        return Verdict(False, f"no product is known for {kind}")
    if torch.device(device).type != "cuda":
        return Verdict(False, f"{device} has no unit for it")
    capability = torch.cuda.get_device_capability(device)
    if capability < method.capability:
        need, have = (".".join(map(str, version)) for version in (method.capability, capability))
        return Verdict(False, f"{method.name} needs compute capability {need}, this device has {have}")
    try:
        with torch.no_grad(), torch.inference_mode(False):
            error = trial_error(method, device)
    except Exception as problem:  # a broken package must cost speed, not the render
        return Verdict(False, f"{method.name} failed: {type(problem).__name__}: {str(problem).splitlines()[0][:160]}")
    if not error <= method.tolerance:
        return Verdict(False, f"{method.name} is off by {error:.3f}, more than {method.tolerance}")
    return Verdict(True, f"{method.name}, error {error:.4f} against the plain product")


def trial_error(method: Method, device: str) -> float:
    """Relative Frobenius error of a method on Gaussian rows and weights, against the product of the unquantised ones."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(shape, generator=generator).to(device, torch.bfloat16) for shape in ((256, 512), (384, 512))
    )
    expected = F.linear(x.double(), weight.double())
    return ((method.trial(x, weight).double() - expected).norm() / expected.norm()).item()


def chosen(kind: str, device: torch.device) -> Verdict:
    """`verdict` of a torch device."""
    index = device.index if device.index is not None or device.type != "cuda" else torch.cuda.current_device()
    where: Any = device.type if index is None else f"{device.type}:{index}"
    return verdict(kind, where)
