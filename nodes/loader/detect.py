"""What a checkpoint is, judged by names, shapes and metadata alone: its kind, its layout, the form of its AdaLN
projections, how its weights are stored, and in which order its qkv rows lie.

Everything a person may meet is recognised by name, also what the pack does not read, so that the refusal can say what
to do instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .checkpoint import Checkpoint
from .forms import FULL, NOTHING, Form
from .header import CheckpointError, TensorInfo
from .layouts import BAKED, DIFFUSERS, FASTVIDEO, Layout, in_order
from .marks import (
    ADALN_FORMS,
    FAMILIES,
    INPUT_MAJOR,
    KIND_H3,
    OTHER_KINDS,
    PLAIN,
    STORAGE_FORMS,
    USE_FULL,
    Mark,
)

QKV_ORDERS = ("auto", "stacked", "grouped")
GATE_ORDERS = ("auto", "gate first", "up first")
QKV_KEY, GATE_KEY = "qkv_layout", "fc1_layout"  # metadata keys our own writers set

PREFIXES = ("model.diffusion_model.", "diffusion_model.", "transformer.", "dit.", "model.")  # longest first
STREAM_PREFIX = "dit."  # the training wrapper's name for the transformer; only StreamRender's merged weights carry it

UNKNOWN = "unknown"
MINIMAX_INDEX, STREAM_SHARDS = "model.safetensors.index.json", 9


CONFIG_CLASSES = ("MiniMaxH3DiTModel", "MiniMaxH3Transformer3DModel")  # MiniMax's and diffusers' name for the model
QUANTISATION_KEY = "_quantization_metadata"
PLAIN_DTYPES = ("F32", "BF16", "F16")
_GATE = re.compile(r"(transformer_)?blocks\.\d+\.attn\.(to_gate_compress|vsa_gate)\.weight")


@dataclass(frozen=True)
class Recognition:
    """What `recognise` found out.

    Attributes:
        kind: "H3", the name of another known kind, or "unknown".
        layout: how names and rows map to the canonical ones; None when the kind is not H3.
        label: the layout in words.
        prefix: stripped from every name in the file.
        tensors: by name without prefix.
        adaln: form of the AdaLN projections: full, curve, low rank, baked or absent; `form` is the same as data.
        storage: plain, or the quantised form.
        gates: number of gate projections of the sparse-attention branch.
        qkv_order, qkv_reason: stacked, grouped or split, and why.
        gate_order, gate_reason: which half of the first MLP projection comes first, and why.
        doubts: what the file itself does not tell and was assumed, in sentences with what to do if it is wrong.
        refusal: why `load_h3` does not read it, with a remedy; None when it does.
    """

    kind: str
    layout: Layout | None = None
    label: str = ""
    prefix: str = ""
    tensors: Mapping[str, TensorInfo] | None = None
    adaln: str = ""
    form: Form = FULL
    storage: str = PLAIN
    gates: int = 0
    qkv_order: str = ""
    qkv_reason: str = ""
    gate_order: str = ""
    gate_reason: str = ""
    doubts: tuple[str, ...] = ()
    refusal: tuple[str, str] | None = None

    def require_readable(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError when this is not an H3 model in a form that is read."""
        if self.refusal:
            found, remedy = self.refusal
            raise CheckpointError(
                checkpoint.path,
                found=found,
                needed="an H3 transformer (with the tensor 'video_patch_proj.weight') in a form that is read",
                remedy=remedy,
            )


def recognise(checkpoint: Checkpoint, qkv_order: str = "auto", gate_order: str = "auto") -> Recognition:
    """Recognise a checkpoint from its headers.

    `qkv_order` "stacked" or "grouped" and `gate_order` "gate first" or "up first" override what is decided from the
    layout; names and shapes of a file tell neither.
    """
    for name, value, values in (("qkv_order", qkv_order, QKV_ORDERS), ("gate_order", gate_order, GATE_ORDERS)):
        if value not in values:
            raise ValueError(f"{name} is '{value}'. It must be one of {', '.join(values)}. Use 'auto'.")
    prefix = shared_prefix(checkpoint.tensors)
    tensors = {name.removeprefix(prefix): info for name, info in checkpoint.tensors.items()}
    family = next((layout for layout, mark in FAMILIES if mark.fits(tensors)), None)
    other = next((mark for mark in OTHER_KINDS if mark.fits(checkpoint.tensors)), None)
    if other is not None and (family is None or other.name == "LoRA"):
        return Recognition(
            other.name, storage=_storage(tensors, checkpoint).name, refusal=(f"it is a {other.name} file", other.remedy)
        )
    if family is None:
        example = next(iter(checkpoint.tensors), None)
        found = f"it is no model known here (its first tensor is '{example}')" if example else "it holds no tensors"
        return Recognition(UNKNOWN, refusal=(found, "Pick an H3 transformer."))

    form, adaln = next(((form, mark.name) for form, mark in ADALN_FORMS if mark.fits(tensors)), (NOTHING, NOTHING.name))
    storage = _storage(tensors, checkpoint)
    order = _qkv_order(
        family, prefix, checkpoint, qkv_order, foreign=adaln == "curve" or storage.name.startswith("Comfy")
    )
    halves = _gate_order(family, checkpoint, gate_order)
    return Recognition(
        kind=KIND_H3,
        layout=in_order(family, grouped=order.value == "grouped", up_first=halves.value == "up first"),
        label=_label(family, prefix, order.value),
        prefix=prefix,
        tensors=tensors,
        adaln=adaln,
        form=form,
        storage=storage.name,
        gates=sum(bool(_GATE.fullmatch(name)) for name in tensors),
        qkv_order=order.value,
        qkv_reason=order.reason,
        gate_order=halves.value,
        gate_reason=halves.reason,
        doubts=tuple(
            f"the file does not tell its {what}; {decided.value} is assumed because {decided.reason}. "
            f"If the render is noise, choose {option} '{decided.other}'"
            for what, option, decided in (
                ("order of qkv rows", "qkv_order", order),
                ("order of the halves of fc1", "gate_order", halves),
            )
            if decided.other
        ),
        refusal=_refusal(tensors, form, storage),
    )


def shared_prefix(names: Iterable[str]) -> str:
    """The longest known prefix that every name carries, or nothing."""
    names = list(names)
    return next((prefix for prefix in PREFIXES if names and all(name.startswith(prefix) for name in names)), "")


def h3_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The `config.json` beside the checkpoint if it describes an H3 transformer: folders hold many models."""
    return checkpoint.config if checkpoint.config.get("_class_name") in CONFIG_CLASSES else {}


def _storage(tensors: Mapping[str, TensorInfo], checkpoint: Checkpoint) -> Mark:
    if checkpoint.storage:
        return Mark(checkpoint.storage, ())
    if QUANTISATION_KEY in checkpoint.metadata:
        return STORAGE_FORMS[0]
    return next(mark for mark in STORAGE_FORMS if mark.fits(tensors))


def _refusal(tensors: Mapping[str, TensorInfo], form: Form, storage: Mark) -> tuple[str, str] | None:
    if storage.remedy:
        return f"its weights are stored as {storage.name}, which is not read yet", storage.remedy
    if INPUT_MAJOR in tensors:
        return f"its block matrices lie transposed (tensor '{INPUT_MAJOR}')", USE_FULL
    for name, info in tensors.items():
        if info.dtype not in PLAIN_DTYPES and not form.is_spare(name):
            return f"tensor '{name}' is stored as {info.dtype} without a known scale", USE_FULL
    heads, rows = (tensors.get(name) for name in ("final_layer.video_out.weight", "video_patch_proj.weight"))
    if heads and rows and len(heads.shape) == len(rows.shape) == 2:
        count, rest = divmod(heads.shape[0], max(1, rows.shape[1]))
        if count > 1 and not rest:
            return f"'final_layer.video_out.weight' stacks {count} output heads (a step-dependent head bank)", USE_FULL
    return None


@dataclass(frozen=True)
class _Decision:
    """An order of rows, the reason for it, and the order to try if it is wrong; no such order where it is certain."""

    value: str
    reason: str
    other: str = ""


def _qkv_order(family: Layout, prefix: str, checkpoint: Checkpoint, asked: str, *, foreign: bool) -> _Decision:
    """The order of qkv rows, which neither names nor shapes tell."""
    if family in (DIFFUSERS, FASTVIDEO):
        return _Decision("split", "q, k and v are separate tensors")
    if asked != "auto":
        return _Decision(asked, "asked for")
    own = checkpoint.metadata.get(QKV_KEY)
    if own in QKV_ORDERS[1:]:
        return _Decision(own, f"the file's metadata says {QKV_KEY}: {own}")
    if prefix == STREAM_PREFIX:
        return _Decision("stacked", "names begin with 'dit.', as StreamRender's merged weights do")
    if foreign:
        return _Decision("stacked", "the file was made by ComfyUI tools, which stack")
    if h3_config(checkpoint).get("_class_name") == "MiniMaxH3DiTModel":
        return _Decision("grouped", "config.json beside it says MiniMaxH3DiTModel, MiniMax's own class")
    count = len(checkpoint.headers)
    if checkpoint.sharded and not prefix and count != STREAM_SHARDS and checkpoint.index == MINIMAX_INDEX:
        return _Decision(
            "grouped", f"it is a set of {count} shards with native names and no prefix, as MiniMax publishes", "stacked"
        )
    if checkpoint.sharded and not prefix:
        return _Decision("stacked", f"it is a set of {count} shards, and MiniMax's set is named otherwise", "grouped")
    return _Decision(
        "stacked", "it is no MiniMax release, and every repackaged file with native names stacks", "grouped"
    )


def _gate_order(family: Layout, checkpoint: Checkpoint, asked: str) -> _Decision:
    """Which half of the first MLP projection comes first. Every publisher so far keeps to the family's own."""
    if asked != "auto":
        return _Decision(asked, "asked for")
    own = checkpoint.metadata.get(GATE_KEY)
    if own in GATE_ORDERS[1:]:
        return _Decision(own, f"the file's metadata says {GATE_KEY}: {own}")
    if family in (DIFFUSERS, FASTVIDEO):
        return _Decision("up first", "diffusers names are only used with the up half first")
    return _Decision("gate first", "native names are only used with the gate half first")


def _label(family: Layout, prefix: str, order: str) -> str:
    if family in (DIFFUSERS, FASTVIDEO):
        return f"{family.name} names"
    if family is BAKED:
        return f"FastH3 pack: native names with baked tables, {order} qkv"
    if prefix == STREAM_PREFIX:
        return f"StreamRender merged: native names with prefix 'dit.', {order} qkv"
    return f"native names{f' with prefix {prefix!r}' if prefix else ''}, {order} qkv"
