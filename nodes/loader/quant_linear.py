"""A linear layer that keeps its weight in codes, and how a model gets such layers.

Where the device has a matrix product for the codes it is used, after it was tried; otherwise the weight is dequantised for
the moment of the product, one layer at a time, and the log says so once.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...kernels import quant_matmul
from ...kernels.fp8_format import Fp8Rows
from ..model import H3
from .quant import FP8, INT8, NVFP4, QuantWeight, dequantise, quantise_fp8, swap_nibbles, tile_scales

STORED, AS_FP8 = "stored", "fp8"
WEIGHTS = (STORED, AS_FP8)
QUANTISED_LAYERS = (
    "attn.qkv_proj",
    "attn.out_proj",
    "mlp.fc1",
    "mlp.fc2",
)  # of main blocks; the rest is small or delicate
GATE_LAYER = "attn.to_gate_compress"  # quantised with them where a block has one

log = logging.getLogger(__name__)


class QuantLinear(nn.Module):
    """y = x Wᵀ without bias, W [out, in] in codes. Codes and scales are parameters, so that hosts can count and move them."""

    bias: None = None

    def __init__(self, packed: QuantWeight) -> None:
        super().__init__()
        self.kind, self.rotation, self.exact_matmul = packed.kind, packed.rotation, packed.exact_matmul
        self.out_features, self.in_features = packed.shape
        self.weight = _fixed(packed.codes)
        self.scale = _fixed(packed.scale)
        self.blocks = None if packed.blocks is None else _fixed(packed.blocks)
        self.columns = None if packed.columns is None else _fixed(packed.columns)
        self.one_scale = packed.kind == NVFP4 and bool((packed.scale == packed.scale[0]).all())

    @property
    def packed(self) -> QuantWeight:
        """The weight as it is now, on whatever device."""
        return QuantWeight(
            self.kind, self.weight, self.scale, self.blocks, self.columns, self.rotation, self.exact_matmul
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out] in x's dtype."""
        if not self._product(x.device):
            return F.linear(x, dequantise(self.packed, x.dtype))
        rows = x.reshape(-1, self.in_features)
        if self.columns is not None:
            rows = rows * self.columns.to(x.dtype)
        if self.kind == FP8:
            out = quant_matmul.fp8_linear(rows, self.weight, self.scale)
        elif self.kind == INT8:
            out = quant_matmul.int8_linear(rows, self.weight, self.scale, self.rotation)
        else:
            assert self.blocks is not None
            out = quant_matmul.nvfp4_linear(rows, swap_nibbles(self.weight), _tiles(self.blocks), self.scale[0])
        return out.view(*x.shape[:-1], self.out_features)

    def takes_fp8_rows(self, device: torch.device) -> bool:
        """Whether `of_fp8_rows` works on `device`, for whoever can hand over rows that are quantised already."""
        return self.kind == FP8 and self.columns is None and self._product(device)

    def of_fp8_rows(self, rows: Fp8Rows, dtype: torch.dtype) -> Tensor:
        """The layer on rows in fp8: [M, out] in `dtype`."""
        return quant_matmul.fp8_product(rows, self.weight, self.scale, dtype)

    def _product(self, device: torch.device) -> bool:
        """Whether the product on codes is used on `device`; what is decided goes to the log once."""
        if self.kind == FP8 and self.weight.dtype != torch.float8_e4m3fn:
            return _decide(f"fp8 ({self.weight.dtype})", device, False, "only e4m3 codes have a product")
        if self.exact_matmul:
            return _decide(self.kind, device, False, "the file asks for products in full precision")
        if self.kind == NVFP4 and not self.one_scale:
            return _decide(self.kind, device, False, "its rows have more than one scale")
        found = quant_matmul.chosen(self.kind, device)
        return _decide(self.kind, device, found.works, found.reason)


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _tiles(blocks: Tensor) -> Tensor:
    """Block scales in tiles and in the two dimensions comfy-kitchen expects."""
    rows, columns = blocks.shape
    return tile_scales(blocks).view(torch.float8_e4m3fn).view(-(-rows // 128) * 128, -(-columns // 4) * 4)


@cache
def _decide(kind: str, device: torch.device, use: bool, reason: str) -> bool:
    if use:
        log.info("%s weights on %s: %s", kind, device, reason)
    else:
        log.warning("%s weights on %s are dequantised for every product: %s", kind, device, reason)
    return use


def install(model: nn.Module, module: str, packed: QuantWeight) -> dict[str, Tensor]:
    """Put a quantised layer in the place of the linear layer `module` ("blocks.0.mlp.fc1"); returns its tensors by name."""
    return replace_layer(model, module, QuantLinear(packed))


def replace_layer(model: nn.Module, module: str, layer: nn.Module) -> dict[str, Tensor]:
    """Put `layer` in the place of `module`; returns its tensors by their names in the model."""
    parent, _, name = module.rpartition(".")
    setattr(model.get_submodule(parent), name, layer)
    return {f"{module}.{part}": tensor for part, tensor in layer.state_dict().items()}


def large_layers(block: nn.Module) -> dict[str, nn.Module]:
    """The layers of a main block that are quantised, streamed and left in host memory, by name."""
    named = dict(block.named_modules())
    return {name: named[name] for name in (*QUANTISED_LAYERS, GATE_LAYER) if name in named}


def quantise_model(model: H3, device: torch.device | str = "cpu") -> int:
    """Turn the large layers of the main blocks into fp8 with one scale per row; returns how many.

    One layer at a time is widened on `device` and comes back to where it was. Layers that are in codes already stay.
    """
    count = 0
    for index, block in enumerate(model.blocks):
        for layer, found in large_layers(block).items():
            if isinstance(found, QuantLinear) or not isinstance(weight := found.weight, Tensor):
                continue
            name = f"blocks.{index}.{layer}"
            packed = quantise_fp8(weight.detach().to(device))
            install(model, name, moved(packed, weight.device))
            count += 1
    if count:
        log.info("%d layers quantised on load to fp8 with one scale per row", count)
    return count


def moved(packed: QuantWeight, device: torch.device) -> QuantWeight:
    """The weight on another device."""
    parts = (packed.codes, packed.scale, packed.blocks, packed.columns)
    codes, scale, blocks, columns = (None if part is None else part.to(device) for part in parts)
    assert codes is not None and scale is not None
    return QuantWeight(packed.kind, codes, scale, blocks, columns, packed.rotation, packed.exact_matmul)
