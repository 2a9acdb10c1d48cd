"""Reading an adapter (LoRA) for H3 in any of the spellings in use, as changes of canonical tensors.

Published so far: RAVEN, TaoMate, larryvrh, ModelTC / lightx2v, DiffSynth-Studio (qkv rows grouped per head), FastH3's
hybrid patches (low rank, differences and replaced gates in one file), peft, kohya and ComfyUI names.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..model import H3Config
from .checkpoint import Checkpoint, open_checkpoint
from .detect import QKV_ORDERS
from .header import CheckpointError
from .layouts import GATE, keep, ungroup_heads
from .lora_names import ADD, ADD_BIAS, ALPHA, DOWN, SET, UP, Key, Target, read_key, targets
from .patches import DIFFERENCE, LOW_RANK, REPLACEMENT, WeightPatch

_SPARE_BLOCKS = 64  # block numbers that are still H3 module names, whatever the model has
_SHOWN = 6
ALPHA_NAMES = ("lora_alpha", "alpha", "ss_network_alpha")
PEFT_METADATA = "lora_adapter_metadata"  # a JSON text in which diffusers keeps the configuration of every part


@dataclass(frozen=True)
class Change:
    """One entry of an adapter: the module as its file spells it, the canonical tensor, and the change."""

    module: str
    tensor: str
    patch: WeightPatch


@dataclass(frozen=True, eq=False)
class Adapter:
    """A read adapter.

    Attributes:
        path: its file.
        identity: SHA-256 of the file's header, size and data samples.
        changes: its entries, a pair of factors or one full tensor each.
        notes: what was assumed: the order of qkv rows, the scale.
    """

    path: Path
    identity: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


def read_adapter(path: str | os.PathLike[str], config: H3Config, qkv_order: str = "auto") -> Adapter:
    """Read the adapter at `path` for models of `config`; factors stay memory-mapped where their rows are kept.

    `qkv_order` overrides what the file's names tell about the rows of fused qkv factors.

    Raises:
        CheckpointError: no adapter, a key that is no H3 module, half a pair, or shapes that contradict each other.
    """
    if qkv_order not in QKV_ORDERS:
        raise ValueError(f"qkv_order is '{qkv_order}'. It must be one of {', '.join(QKV_ORDERS)}. Use 'auto'.")
    checkpoint = open_checkpoint(path)
    keys = _read_keys(checkpoint)
    grouped, reason = _qkv_order(keys.values(), qkv_order)
    table = targets(config, max(_SPARE_BLOCKS, config.layers))
    unknown = sorted(name for name, key in keys.items() if key.module not in table)
    if unknown:
        raise CheckpointError(
            checkpoint.path,
            found=f"{len(unknown)} of its {len(keys)} tensors name no module of an H3 model: {_some(unknown)}",
            needed="an adapter (LoRA) made for MiniMax-H3",
            remedy="Pick an H3 adapter.",
        )

    entries: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, key in keys.items():
        if entries[key.module].setdefault(key.part, name) != name:
            raise CheckpointError(
                checkpoint.path,
                found=f"tensors '{entries[key.module][key.part]}' and '{name}' are the same part of one module",
                needed="one adapter in one file",
                remedy="Use a file that holds a single adapter.",
            )
    alphas = _Alphas(checkpoint, keys.values())
    changes = [
        change
        for module, parts in entries.items()
        for change in _changes(checkpoint, config, module, parts, table[module], alphas, grouped)
    ]
    notes = [f"fused qkv rows are {'grouped' if grouped else 'stacked'}: {reason}"] if reason else []
    return Adapter(checkpoint.path, checkpoint.identity, tuple(changes), (*notes, alphas.note))


def _read_keys(checkpoint: Checkpoint) -> dict[str, Key]:
    keys = {name: read_key(name) for name in checkpoint.tensors}
    unread = sorted(name for name, key in keys.items() if key is None)
    if unread or not keys:
        adapters = len(keys) - len(unread)
        raise CheckpointError(
            checkpoint.path,
            found=f"{len(unread)} of its {len(keys)} tensors are no part of an adapter: {_some(unread)}"
            if keys
            else "it holds no tensors",
            needed="pairs '.lora_A' and '.lora_B' (or '.lora_down' and '.lora_up'), '.alpha', '.diff', '.diff_b', '.set_weight'",
            remedy="Pick another version of the adapter; this kind is not read."
            if adapters
            else "Pick an adapter (LoRA); whole models go into Load H3 Model.",
        )
    return {name: key for name, key in keys.items() if key is not None}


def _qkv_order(keys: Any, asked: str) -> tuple[bool, str]:
    """Whether fused qkv rows are grouped per head, and why; no reason where nothing is fused."""
    fused = [key for key in keys if key.module.replace(".", "_").endswith("attn_qkv_proj")]
    if not fused:
        return False, ""
    if asked != "auto":
        return asked == "grouped", "asked for"
    if all(not key.prefix and key.adapter == "default" for key in fused if key.part in (DOWN, UP)):
        return True, "names without prefix and with '.default.', as DiffSynth-Studio writes"
    return False, "every trainer but DiffSynth-Studio stacks them"


class _Alphas:
    """Scale of every pair: its own alpha, else the file's metadata, else the adapter_config.json beside it, else 1."""

    def __init__(self, checkpoint: Checkpoint, keys: Any) -> None:
        self.own = any(key.part == ALPHA for key in keys)
        self.common, where = _number(_flat(checkpoint.metadata), ALPHA_NAMES), "the file's metadata"
        self.rank_root = False
        if self.common is None and not self.own:
            beside = _config_of_adapter(checkpoint)
            self.common, where = _number(beside, ALPHA_NAMES), "the configuration beside it"
            self.rank_root = bool(beside.get("use_rslora"))
        self.note = "scale alpha / rank: " + (
            "alpha of every module"
            if self.own
            else f"alpha {self.common:g} from {where}"
            if self.common is not None
            else "no alpha, so 1"
        )

    def of(self, checkpoint: Checkpoint, name: str | None, rank: int) -> float | None:
        if name is not None:
            return float(checkpoint.read(name).float().flatten()[0])
        if self.common is not None and self.rank_root:
            return self.common * rank**0.5
        return self.common


def _config_of_adapter(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """adapter_config.json or config.json of an adapter in its own folder; a folder of many adapters tells nothing."""
    file = checkpoint.headers[0].path
    if len(list(file.parent.glob("*.safetensors"))) != len(checkpoint.headers):
        return {}
    for name in ("adapter_config.json", "config.json"):
        try:
            content = json.loads(file.with_name(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and _number(content, ALPHA_NAMES) is not None:
            return content
    return {}


def _flat(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """Metadata with the configuration that diffusers puts into one of its texts."""
    try:
        inner = json.loads(metadata.get(PEFT_METADATA, "{}"))
    except ValueError:
        inner = {}
    parts = {str(name).rpartition(".")[2]: value for name, value in inner.items()} if isinstance(inner, dict) else {}
    return {**parts, **metadata}


def _number(source: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        try:
            value = float(source[name])
        except (KeyError, TypeError, ValueError):
            continue
        if value > 0:
            return value
    return None


def _changes(
    checkpoint: Checkpoint,
    config: H3Config,
    module: str,
    parts: Mapping[str, str],
    target: Target,
    alphas: _Alphas,
    grouped: bool,
) -> list[Change]:
    """What one module's tensors do to the canonical model."""

    def wrong(found: str, needed: str) -> CheckpointError:
        return CheckpointError(checkpoint.path, found=found, needed=needed, remedy="Download the adapter again.")

    def rows(tensor: Tensor) -> Tensor:
        operation = ungroup_heads if grouped and target.fused_qkv else target.rows
        if operation is keep:
            return tensor
        if operation is ungroup_heads and len(tensor) % (3 * config.heads):
            raise wrong(f"module '{module}' has {len(tensor)} rows", f"a multiple of 3 * {config.heads} heads")
        return operation([tensor], config.heads)

    def patch(kind: str, value: Tensor, down: Tensor | None = None, alpha: float | None = None) -> WeightPatch:
        span = None if target.parts == 1 else (target.part * len(value), (target.part + 1) * len(value))
        return WeightPatch(kind, rows(value), down, alpha, span)

    changes = []
    if (DOWN in parts) != (UP in parts):
        there, absent = (DOWN, UP) if DOWN in parts else (UP, DOWN)
        raise wrong(f"tensor '{parts[there]}' has no partner", f"the {absent} factor of module '{module}'")
    if DOWN in parts:
        down, up = checkpoint.read(parts[DOWN]), checkpoint.read(parts[UP])
        if down.ndim != 2 or up.ndim != 2 or down.shape[0] != up.shape[1]:
            raise wrong(
                f"tensors '{parts[DOWN]}' {list(down.shape)} and '{parts[UP]}' {list(up.shape)} do not make a product",
                "factors [r, in] and [out, r]",
            )
        alpha = alphas.of(checkpoint, parts.get(ALPHA), down.shape[0])
        changes.append(Change(module, target.tensor, patch(LOW_RANK, up, down, alpha)))
    elif ALPHA in parts:
        raise wrong(f"tensor '{parts[ALPHA]}' stands alone", f"the factors of module '{module}'")
    for part, kind, tensor in (
        (ADD, DIFFERENCE, target.tensor),
        (ADD_BIAS, DIFFERENCE, target.tensor.removesuffix("weight") + "bias"),
        (SET, REPLACEMENT, target.tensor),
    ):
        if part in parts:
            changes.append(Change(module, tensor, patch(kind, checkpoint.read(parts[part]))))
    return changes


def is_gate(tensor: str) -> bool:
    """Whether a canonical tensor is a gate of the sparse-attention branch, which dense attention does not read."""
    return any(tensor.endswith(f".{gate}") for gate in GATE)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
