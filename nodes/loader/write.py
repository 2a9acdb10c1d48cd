"""Writing an H3 model the way StreamRender publishes it: native names behind `dit.`, stacked qkv, gate-first MLP."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from .checkpoint import INDEX_SUFFIX
from .detect import QKV_KEY, STREAM_PREFIX
from .header import require_safetensors
from .layouts import BLOCKS, GATE, REFINER, STACKED, native_names


def write_h3(
    path: str | os.PathLike[str],
    model: nn.Module | Mapping[str, torch.Tensor],
    metadata: Mapping[str, str] | None = None,
    prefix: str = STREAM_PREFIX,
    *,
    shards: int = 1,
) -> tuple[Path, ...]:
    """Write a full H3 model, or its state dict in canonical names, as safetensors. Returns the files written.

    Dtypes are kept. With `shards` > 1, `NAME.safetensors` becomes `NAME-0000K-of-0000N.safetensors` and
    `NAME.safetensors.index.json`. The metadata always says that qkv is stacked.

    Raises ValueError listing the names when the tensors are not those of a model with full AdaLN.
    """
    path = Path(path)
    require_safetensors(path)
    state = model.state_dict() if isinstance(model, nn.Module) else dict(model)
    _require_canonical(path, state)
    tensors = {prefix + name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    texts = {"format": "pt", **(metadata or {}), QKV_KEY: "stacked"}
    path.parent.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        save_file(tensors, path, metadata=texts)
        return (path,)

    parts = _split(tensors, shards)
    files = [
        path.with_name(f"{path.stem}-{number + 1:05}-of-{len(parts):05}.safetensors") for number in range(len(parts))
    ]
    for file, part in zip(files, parts, strict=True):
        save_file(part, file, metadata=texts)
    index = path.with_name(path.stem + INDEX_SUFFIX)
    total = sum(tensor.nbytes for tensor in tensors.values())
    weight_map = {name: file.name for file, part in zip(files, parts, strict=True) for name in part}
    index.write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2), encoding="utf-8"
    )
    return (*files, index)


def _require_canonical(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    blocks, refiner = (STACKED.stack_indices(stack, state) for stack in (BLOCKS, REFINER))
    gates = any(name.endswith(f".{gate}") for gate in GATE for name in state)
    wanted = set(native_names(sorted(blocks), sorted(refiner), gates=gates))
    missing, unexpected = sorted(wanted - set(state)), sorted(set(state) - wanted)
    if missing or unexpected or not blocks:
        raise ValueError(
            f"{path} is not written: the model lacks {missing[:8]} and has {unexpected[:8]} too many. A file holds "
            "exactly the canonical tensors with full AdaLN. Build the model with adaln=True."
        )


def _split(tensors: Mapping[str, torch.Tensor], shards: int) -> list[dict[str, torch.Tensor]]:
    """At most `shards` parts of about equal bytes, in the order given, none empty."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    parts: list[dict[str, torch.Tensor]] = [{} for _ in range(shards)]
    before = 0
    for name, tensor in tensors.items():
        parts[min(shards - 1, before * shards // total)][name] = tensor
        before += tensor.nbytes
    return [part for part in parts if part]
