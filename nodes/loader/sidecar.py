"""Finished AdaLN tables that lie in a file of their own, in the three spellings that are in use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..model import BLOCK_SLOTS, FINAL_SLOTS, MODALITIES, AdaLNTables, H3Config, TableError, canonical_time
from .checkpoint import Checkpoint, open_checkpoint
from .header import CheckpointError, TensorInfo, read_header

OWN = ("adaln.times", "adaln.blocks", "adaln.final")
PLANS = ("plan_timesteps", "plan_lengths", "block_params", "final_params")
PACK = ("h3.fasth3.times", "h3.fasth3.final.adaln")


def is_sidecar(tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether tensors of these names are tables without a model."""
    return any(set(names) <= set(tensors) for names in (OWN, PLANS, PACK)) and "video_patch_proj.weight" not in tensors


def sidecar_beside(checkpoint: Checkpoint) -> Path | None:
    """The one file of tables in the checkpoint's folder; None when there is none or more than one."""
    own = {header.path for header in checkpoint.headers}
    found = []
    for file in sorted(checkpoint.headers[0].path.parent.glob("*.safetensors")):
        try:
            if file not in own and is_sidecar(read_header(file).tensors):
                found.append(file)
        except CheckpointError:
            continue  # another file that is damaged is not this checkpoint's business
    return found[0] if len(found) == 1 else None


def read_sidecar(path: str | os.PathLike[str], config: H3Config) -> AdaLNTables:
    """Tables written by `tables`, by SGLang or vLLM-Omni (plans of timesteps), or with FastH3's names.

    A time that stands in several plans is taken from the first. Raises CheckpointError for another file, TableError for
    tables of another model.
    """
    checkpoint = open_checkpoint(path)
    names = checkpoint.tensors
    if not is_sidecar(names):
        raise CheckpointError(
            Path(path),
            found=f"it is no file of AdaLN tables (its first tensor is '{next(iter(names), None)}')",
            needed=f"the tensors {', '.join(OWN)}, or {', '.join(PLANS)}",
            remedy="Write tables with the command `tables`, or leave this choice at 'auto'.",
        )
    shape = (MODALITIES, BLOCK_SLOTS, config.hidden)
    if set(OWN) <= set(names):
        times, blocks, final = (checkpoint.read(name) for name in OWN)
    elif set(PLANS) <= set(names):
        times, blocks, final = _of_plans(*(checkpoint.read(name) for name in PLANS))
    else:
        layers = sum(name.startswith("h3.fasth3.blocks.") for name in names)
        times, final = checkpoint.read(PACK[0]), checkpoint.read(PACK[1])
        blocks = torch.stack([checkpoint.read(f"h3.fasth3.blocks.{i}.adaln") for i in range(layers)])
    try:
        tables = _ordered(
            times, blocks.reshape(*blocks.shape[:2], *shape), final.reshape(-1, FINAL_SLOTS, config.hidden)
        )
    except RuntimeError as error:
        raise TableError(
            f"{path}: tensor '{next(iter(names))}' and the others are tables of shape {list(blocks.shape)}; a model of "
            f"width {config.hidden} needs [layers, times, {', '.join(map(str, shape))}]. Use the tables made for it."
        ) from error
    tables.check(config)
    return tables


def _of_plans(times: Tensor, lengths: Tensor, blocks: Tensor, final: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[P, W] times with [P] lengths, [P, W, L, .] and [P, W, .] -> [n], [L, n, .], [n, .]."""
    used = torch.arange(times.shape[1])[None] < lengths[:, None]
    return times[used], blocks[used].transpose(0, 1), final[used]


def _ordered(times: Tensor, blocks: Tensor, final: Tensor) -> AdaLNTables:
    canonical = [canonical_time(time) for time in times.tolist()]
    rows = [canonical.index(time) for time in sorted(set(canonical))]
    ladder = torch.tensor([canonical[row] for row in rows], dtype=torch.float32)
    return AdaLNTables(ladder, blocks[:, rows].contiguous(), final[rows].contiguous())
