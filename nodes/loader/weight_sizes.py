"""How many bytes a checkpoint's transformer takes on a device, part by part, from its headers."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from ..model import H3, H3Config
from .audit import audit
from .checkpoint import open_checkpoint
from .detect import recognise
from .quant_checkpoint import QuantisedCheckpoint, without_codes
from .quant_linear import AS_FP8, GATE_LAYER, QUANTISED_LAYERS, QuantLinear

_SCALE = 4  # bytes of one float32 scale per row
DTYPE_WORDS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class TransformerSizes:
    """Bytes by part.

    Attributes:
        config: sizes of the network.
        blocks: one number per block.
        rest: everything outside blocks that stays with the network; AdaLN projections do not.
        scratch: the largest layer dequantised, 0 when nothing is in codes.
        form: number format in words.
    """

    config: H3Config
    blocks: tuple[int, ...]
    rest: int
    scratch: int
    form: str


def transformer_sizes(path: str | os.PathLike[str], dtype: torch.dtype, weights: str) -> TransformerSizes:
    """Read headers only. `dtype` is that of plain weights, `weights` "stored" or "fp8" as for `load_h3`.

    Raises CheckpointError where the checkpoint cannot be used.
    """
    checkpoint = without_codes(open_checkpoint(path))
    recognition = recognise(checkpoint)
    recognition.require_readable(checkpoint)
    found = audit(checkpoint, recognition)
    config = found.require_complete(checkpoint, recognition.label)
    network = H3(config, adaln=False, device="meta", dtype=dtype)
    blocks = [0] * config.layers
    rest = scratch = 0
    for name, tensor in network.state_dict().items():
        module, inside = name.removesuffix(".weight"), name.startswith("blocks.")
        stored = _stored(checkpoint, found.recipes[name].sources) if name in found.recipes else None
        count = tensor.nbytes if stored is None else stored
        large = inside and module.split(".", 2)[2] in (*QUANTISED_LAYERS, GATE_LAYER)
        if weights == AS_FP8 and stored is None and large:
            count = tensor.numel() + tensor.shape[0] * _SCALE
        if count < tensor.nbytes:
            scratch = max(scratch, tensor.nbytes)
        if inside:
            blocks[int(name.split(".")[1])] += count
        else:
            rest += count
    form = checkpoint.storage if isinstance(checkpoint, QuantisedCheckpoint) else DTYPE_WORDS.get(dtype, str(dtype))
    return TransformerSizes(config, tuple(blocks), rest, scratch, "fp8 rows" if weights == AS_FP8 else form)


def _stored(checkpoint: object, sources: tuple[str, ...]) -> int | None:
    """Bytes of a quantised weight in the file, None where it is plain."""
    if not isinstance(checkpoint, QuantisedCheckpoint) or not all(checkpoint.is_quantised(name) for name in sources):
        return None
    return sum(checkpoint.stored_bytes(name) for name in sources)


def loaded_sizes(model: H3, config: H3Config) -> TransformerSizes:
    """The same of a network that is loaded, with its adapters."""
    blocks = tuple(sum(one.nbytes for one in block.parameters()) for block in model.blocks)
    everything = sum(one.nbytes for one in model.parameters())
    coded = [module for module in model.modules() if isinstance(module, QuantLinear)]
    scratch = max((layer.out_features * layer.in_features * model.dtype.itemsize for layer in coded), default=0)
    form = DTYPE_WORDS.get(model.dtype, str(model.dtype))
    kinds = ", ".join(sorted({layer.kind for layer in coded}))
    return TransformerSizes(config, blocks, everything - sum(blocks), scratch, f"{form} and {kinds}" if coded else form)
