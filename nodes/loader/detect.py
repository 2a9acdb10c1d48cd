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
from .header import CheckpointError, TensorInfo
from .layouts import DIFFUSERS, GROUPED, STACKED, Layout

QKV_ORDERS = ("auto", "stacked", "grouped")
QKV_KEY = "qkv_layout"  # metadata key our own writer sets

PREFIXES = ("model.diffusion_model.", "diffusion_model.", "transformer.", "dit.", "model.")  # longest first
STREAM_PREFIX = "dit."  # the training wrapper's name for the transformer; only StreamRender's merged weights carry it

KIND_H3 = "H3"
UNKNOWN = "unknown"
FULL = "full"
PLAIN = "plain"


@dataclass(frozen=True)
class Mark:
    """Something recognisable: `needs` are patterns, each of which must match a whole tensor name."""

    name: str
    needs: tuple[str, ...]
    remedy: str = ""

    def fits(self, names: Iterable[str]) -> bool:
        """Whether every pattern finds a name."""
        return all(any(re.fullmatch(pattern, name) for name in names) for pattern in self.needs)


_USE_FULL = "Use the full StreamRender-H3 or MiniMax-H3 Ref2VA weights in bf16."
_LOAD_ELSEWHERE = "Connect it to {} and pick the H3 transformer here."

# In the order of the questions; the first that fits wins. Names as they stand in the file.
OTHER_KINDS = (
    Mark("LoRA", (r".*[._]lora_?(A|B|down|up)\b.*",), "Pick the H3 transformer here; adapters go on top of a model."),
    Mark(
        "AdaLN tables",
        (r"adaln\.times", r"adaln\.blocks", r"adaln\.final"),
        "Pick the H3 transformer they were made from.",
    ),
    Mark("AdaLN sidecar (vLLM-Omni)", (r"plan_timesteps", r"block_params"), _USE_FULL),
    Mark("FastVideo packed NVFP4 part of an H3 model", (r".*::_nvfp4_weight",), _USE_FULL),
    Mark(
        "TAE",
        (r"encoder\.0\.weight", r"decoder\.1\.weight", r"decoder\.22\.weight"),
        _LOAD_ELSEWHERE.format("Load H3 Encoder"),
    ),
    Mark(
        "causal ViT decoder",
        (r"post_quant_conv\.weight", r"x_embedder\.weight", r"register_tokens", r"blocks\.0\.attn\.to_qkv\.weight"),
        _LOAD_ELSEWHERE.format("Load H3 Decoder"),
    ),
    Mark(
        "native VAE",
        (r"decoder\.transformer_blocks\.0\.scale1", r"encoder\.down\.\d+\.block\.0\.conv1\.weight"),
        _LOAD_ELSEWHERE.format("ComfyUI's Load VAE"),
    ),
    Mark(
        "audio VAE",
        (r"pre_block\.attn\.zero_k_bias|(.*\.)?dec_in_proj\.weight(_g|_v)?",),
        _LOAD_ELSEWHERE.format("ComfyUI's Load VAE"),
    ),
    Mark(
        "Qwen3-VL",
        (
            r"(.*\.)?visual\.deepstack_merger_list\.0\.norm\.weight|(.*\.)?language_model\.layers\.\d+\.self_attn\.q_proj\.weight.*",
        ),
        _LOAD_ELSEWHERE.format("H3 Look as its text encoder"),
    ),
    Mark(
        "2D TAE decoder (bare module numbers)",
        (r"\d+\.weight",),
        "Use taeh3.safetensors of the TAEHV family as encoder or decoder.",
    ),
)

# Names without prefix. One of two marks is enough: a file that lacks the other is an H3 model with a missing tensor.
FAMILIES = (
    (STACKED, Mark(KIND_H3, (r"(video|audio)_patch_proj\.weight",))),
    (DIFFUSERS, Mark(KIND_H3, (r"audio_proj_in\.weight|transformer_blocks\.0\.adaln_proj\.linear\.weight",))),
)
ADALN_FORMS = (
    Mark("curve", (r"adaln_t_table",), _USE_FULL),
    Mark("low rank", (r"adaln_basis\.weight",), _USE_FULL),
    Mark("baked", (r"h3\.fasth3\.times",), _USE_FULL),
    Mark(FULL, (r"(transformer_)?blocks\.\d+\.adaln_proj\.linear\.weight",)),
    Mark("absent", (), _USE_FULL),
)
STORAGE_FORMS = (
    Mark("ComfyUI quantised", (r".*\.comfy_quant",), _USE_FULL),
    Mark("ComfyUI scaled fp8", (r"(.*\.)?scaled_fp8|.*\.scale_weight",), _USE_FULL),
    Mark("FastVideo packed NVFP4", (r".*::_nvfp4_weight",), _USE_FULL),
    Mark("ModelOpt NVFP4", (r".*\.weight_scale_2",), _USE_FULL),
    Mark("compressed-tensors NVFP4", (r".*\.weight_packed",), _USE_FULL),
    Mark("FP8 with scales", (r".*\.weight_scale",), _USE_FULL),
    Mark(PLAIN, ()),
)
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
        adaln: form of the AdaLN projections: full, curve, low rank, baked or absent.
        storage: plain, or the quantised form.
        gates: number of gate projections of the sparse-attention branch.
        qkv_order, qkv_reason: stacked, grouped or split, and why.
        refusal: why `load_h3` does not read it, with a remedy; None when it does.
    """

    kind: str
    layout: Layout | None = None
    label: str = ""
    prefix: str = ""
    tensors: Mapping[str, TensorInfo] | None = None
    adaln: str = ""
    storage: str = PLAIN
    gates: int = 0
    qkv_order: str = ""
    qkv_reason: str = ""
    refusal: tuple[str, str] | None = None

    def require_readable(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError when this is not an H3 model in a form that is read."""
        if self.refusal:
            found, remedy = self.refusal
            raise CheckpointError(
                checkpoint.path,
                found=found,
                needed="an H3 transformer with full AdaLN in bf16, fp16 or fp32",
                remedy=remedy,
            )


def recognise(checkpoint: Checkpoint, qkv_order: str = "auto") -> Recognition:
    """Recognise a checkpoint from its headers. `qkv_order` "stacked" or "grouped" overrides the decision."""
    if qkv_order not in QKV_ORDERS:
        raise ValueError(f"qkv_order is '{qkv_order}'. It must be one of {', '.join(QKV_ORDERS)}. Use 'auto'.")
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

    adaln = next(mark for mark in ADALN_FORMS if mark.fits(tensors))
    storage = _storage(tensors, checkpoint)
    order, reason = _qkv_order(
        family, prefix, checkpoint, qkv_order, foreign=adaln.name == "curve" or storage.name.startswith("ComfyUI")
    )
    return Recognition(
        kind=KIND_H3,
        layout=GROUPED if order == "grouped" else family,
        label=_label(family, prefix, order),
        prefix=prefix,
        tensors=tensors,
        adaln=adaln.name,
        storage=storage.name,
        gates=sum(bool(_GATE.fullmatch(name)) for name in tensors),
        qkv_order=order,
        qkv_reason=reason,
        refusal=_refusal(tensors, adaln, storage),
    )


def shared_prefix(names: Iterable[str]) -> str:
    """The longest known prefix that every name carries, or nothing."""
    names = list(names)
    return next((prefix for prefix in PREFIXES if names and all(name.startswith(prefix) for name in names)), "")


def h3_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The `config.json` beside the checkpoint if it describes an H3 transformer: folders hold many models."""
    return checkpoint.config if checkpoint.config.get("_class_name") in CONFIG_CLASSES else {}


def _storage(tensors: Mapping[str, TensorInfo], checkpoint: Checkpoint) -> Mark:
    if QUANTISATION_KEY in checkpoint.metadata:
        return STORAGE_FORMS[0]
    return next(mark for mark in STORAGE_FORMS if mark.fits(tensors))


def _refusal(tensors: Mapping[str, TensorInfo], adaln: Mark, storage: Mark) -> tuple[str, str] | None:
    if storage.name != PLAIN:
        return f"its weights are stored as {storage.name}, which is not read yet", storage.remedy
    if adaln.name != FULL:
        form = {"curve": "a curve table (pruned)", "baked": "baked tables", "low rank": "low-rank factors"}.get(
            adaln.name
        )
        found = (
            f"its AdaLN projections are replaced by {form}, which are not read yet"
            if form
            else "it has no AdaLN projections"
        )
        return found, adaln.remedy
    for name, info in tensors.items():
        if info.dtype not in PLAIN_DTYPES:
            return f"tensor '{name}' is stored as {info.dtype} without a known scale", _USE_FULL
    heads, rows = (tensors.get(name) for name in ("final_layer.video_out.weight", "video_patch_proj.weight"))
    if heads and rows and len(heads.shape) == len(rows.shape) == 2:
        count, rest = divmod(heads.shape[0], max(1, rows.shape[1]))
        if count > 1 and not rest:
            return f"'final_layer.video_out.weight' stacks {count} output heads (a step-dependent head bank)", _USE_FULL
    return None


def _qkv_order(family: Layout, prefix: str, checkpoint: Checkpoint, asked: str, *, foreign: bool) -> tuple[str, str]:
    """The order of qkv rows, which neither names nor shapes tell, and the reason for the decision."""
    if family is DIFFUSERS:
        return "split", "q, k and v are separate tensors"
    if asked != "auto":
        return asked, "asked for"
    own = checkpoint.metadata.get(QKV_KEY)
    if own in QKV_ORDERS[1:]:
        return own, f"the file's metadata says {QKV_KEY}: {own}"
    if prefix == STREAM_PREFIX:
        return "stacked", "names begin with 'dit.', as StreamRender's merged weights do"
    if foreign:
        return "stacked", "the file was made by ComfyUI tools, which stack"
    if checkpoint.sharded and not prefix:
        return "grouped", "it is a set of shards with native names and no prefix, as MiniMax publishes"
    if h3_config(checkpoint).get("_class_name") == "MiniMaxH3DiTModel":
        return "grouped", "config.json beside it says MiniMaxH3DiTModel, MiniMax's own class"
    return "stacked", "it is no MiniMax release, and every repackaged file with native names stacks"


def _label(family: Layout, prefix: str, order: str) -> str:
    if family is DIFFUSERS:
        return "diffusers names"
    if prefix == STREAM_PREFIX:
        return f"StreamRender merged: native names with prefix 'dit.', {order} qkv"
    return f"native names{f' with prefix {prefix!r}' if prefix else ''}, {order} qkv"
