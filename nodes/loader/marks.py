"""What a checkpoint may be, as tables of tensor names by which it is recognised, each with a remedy where it is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .forms import CURVE, FULL, LOW_RANK, TABLES, Form
from .layouts import BAKED, DIFFUSERS, FASTVIDEO, STACKED

KIND_H3 = "H3"
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


USE_FULL = "Use the full StreamRender-H3 or MiniMax-H3 Ref2VA weights in bf16."
_LOAD_ELSEWHERE = "Connect it to {} and pick the H3 transformer here."

# In the order of the questions; the first that fits wins. Names as they stand in the file.
OTHER_KINDS = (
    Mark(
        "LoRA",
        (r".*[._]lora[._]?(A|B|a|b|down|up)\b.*|.*\.(diff|diff_b|set_weight)",),
        "Pick the H3 transformer here; adapters go on top of a model.",
    ),
    Mark(
        "AdaLN tables",
        (r"adaln\.times", r"adaln\.blocks", r"adaln\.final"),
        "Pick the H3 transformer they were made from, and these as its 'tables'.",
    ),
    Mark(
        "AdaLN sidecar (vLLM-Omni)",
        (r"plan_timesteps", r"block_params"),
        "Pick the H3 transformer they were made from, and these as its 'tables'.",
    ),
    Mark("FastVideo packed NVFP4 part of an H3 model", (r".*::_nvfp4_weight",), USE_FULL),
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
    (BAKED, Mark(KIND_H3, (r"(video|audio)_patch_proj\.weight", r"h3\.fasth3\.times"))),
    (STACKED, Mark(KIND_H3, (r"(video|audio)_patch_proj\.weight",))),
    (FASTVIDEO, Mark(KIND_H3, (r"audio_proj_in\.weight", r"transformer_blocks\.\d+\.ff\.fc_in\.weight"))),
    (DIFFUSERS, Mark(KIND_H3, (r"audio_proj_in\.weight|transformer_blocks\.0\.adaln_proj\.linear\.weight",))),
)
ADALN_FORMS: tuple[tuple[Form, Mark], ...] = (
    (TABLES, Mark("baked", (r"h3\.fasth3\.times|adaln_times",))),
    (CURVE, Mark("curve", (r"adaln_t_table",))),
    (LOW_RANK, Mark("low rank", (r"adaln_basis\.weight",))),
    (FULL, Mark("full", (r"(transformer_)?blocks\.\d+\.adaln_proj\.linear\.weight",))),
)
INPUT_MAJOR = "h3.transformer_input_major.version"  # a mark of packs whose block matrices lie transposed
STORAGE_FORMS = (
    Mark("ComfyUI quantised", (r".*\.comfy_quant",), USE_FULL),
    Mark("ComfyUI scaled fp8", (r"(.*\.)?scaled_fp8|.*\.scale_weight",), USE_FULL),
    Mark("FastVideo packed NVFP4", (r".*::_nvfp4_weight",), USE_FULL),
    Mark("ModelOpt NVFP4", (r".*\.weight_scale_2",), USE_FULL),
    Mark("compressed-tensors NVFP4", (r".*\.weight_packed",), USE_FULL),
    Mark("FP8 with scales", (r".*\.weight_scale",), USE_FULL),
    Mark(PLAIN, ()),
)
