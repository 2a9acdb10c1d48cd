"""The names and row orders an H3 checkpoint may come in, as data, and the one conversion that reads them.

Canonical here and in the model: MiniMax's own tensor names without prefix, the qkv projection stacked (all of q, then
all of k, then all of v), the first MLP projection gate half first. Every other layout is a table of renamings plus an
operation on rows; nothing is ever transposed. The same tables read adapters: rows of a LoRA's up factor are rows of the
weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from einops import rearrange

from ..model.config import BLOCK_SLOTS, FINAL_SLOTS, MODALITIES, H3Config
from .forms import FULL, TIMES, Dims, Form

# -------------------------------------------------------------------------------- the canonical tensors and their sizes

ROOT: Mapping[str, Dims] = {
    "video_patch_proj.weight": ("hidden", "video_row"),
    "video_patch_proj.bias": ("hidden",),
    "audio_patch_proj.weight": ("hidden", "audio_row"),
    "audio_patch_proj.bias": ("hidden",),
    "condition_proj.weight": ("hidden", "text"),
    "condition_proj.bias": ("hidden",),
    "rope.inv_freq": ("rope",),
    "token_refiner.final_norm.weight": ("hidden",),
    "final_layer.norm.weight": ("hidden",),
    "final_layer.video_out.weight": ("video_row", "hidden"),
    "final_layer.video_out.bias": ("video_row",),
    "final_layer.audio_out.weight": ("audio_row", "hidden"),
    "final_layer.audio_out.bias": ("audio_row",),
}
CORE: Mapping[str, Dims] = {
    "norm1.weight": ("hidden",),
    "norm2.weight": ("hidden",),
    "attn.qkv_proj.weight": ("qkv", "hidden"),
    "attn.q_norm.weight": ("head",),
    "attn.k_norm.weight": ("head",),
    "attn.out_proj.weight": ("hidden", "inner"),
    "mlp.fc1.weight": ("gate_up", "hidden"),
    "mlp.fc2.weight": ("hidden", "ffn"),
}
GATE: Mapping[str, Dims] = {"attn.to_gate_compress.weight": ("inner", "hidden")}

BLOCKS, REFINER = "blocks", "token_refiner.blocks"
INV_FREQ = "rope.inv_freq"

_STACKED_NAME = re.compile(rf"(?P<stack>{re.escape(REFINER)}|{BLOCKS})\.(?P<index>\d+)\.(?P<rest>.+)")


def native_names(
    blocks: Iterable[int], refiner_blocks: Iterable[int], *, gates: bool = False, form: Form = FULL
) -> list[str]:
    """Canonical names of a model with these block numbers; 50 and 2 blocks with full AdaLN make 535."""
    block = [*CORE, *form.block, *(GATE if gates else ())]
    names = [*ROOT, *form.root]
    names += [f"{REFINER}.{index}.{rest}" for index in refiner_blocks for rest in CORE]
    return names + [f"{BLOCKS}.{index}.{rest}" for index in blocks for rest in block]


def native_shape(
    name: str, config: H3Config, form: Form = FULL, form_sizes: Mapping[str, int] | None = None
) -> tuple[int, ...]:
    """Shape of the canonical tensor `name` in a model of `config` whose modulation has `form` with sizes `form_sizes`."""
    sizes = {
        "hidden": config.hidden,
        "video_row": config.video_features,
        "audio_row": config.audio_channels,
        "text": config.text_dim,
        "freq": config.freq_dim,
        "time_hidden": config.time_hidden,
        "time": config.time_dim,
        "coordinates": config.time_dim,
        "rope": config.rope_freqs,
        "head": config.head_dim,
        "inner": config.inner,
        "qkv": 3 * config.inner,
        "ffn": config.ffn,
        "gate_up": 2 * config.ffn,
        "adaln": MODALITIES * BLOCK_SLOTS * config.hidden,
        "final_adaln": FINAL_SLOTS * config.hidden,
        **(form_sizes or {}),
    }
    stacked = _STACKED_NAME.fullmatch(name)
    dims = {**ROOT, **form.root}[name] if stacked is None else {**CORE, **form.block, **GATE}[stacked["rest"]]
    return tuple(sizes[dim] for dim in dims)


# --------------------------------------------------------------------------------------------------- operations on rows

RowOperation = Callable[[Sequence[torch.Tensor], int], torch.Tensor]


def keep(parts: Sequence[torch.Tensor], heads: int) -> torch.Tensor:
    """The tensor as it lies in the file, still memory-mapped."""
    return parts[0]


def concatenate(parts: Sequence[torch.Tensor], heads: int) -> torch.Tensor:
    """Rows of several tensors one below the other: separate q, k, v into stacked qkv."""
    return torch.cat(list(parts), dim=0)


def ungroup_heads(parts: Sequence[torch.Tensor], heads: int) -> torch.Tensor:
    """Rows grouped per head [q0 k0 v0 q1 k1 v1 ...] into stacked [q0 q1 .. k0 k1 .. v0 v1 ..]. Not its own inverse."""
    return rearrange(parts[0], "(head part channel) ... -> (part head channel) ...", head=heads, part=3).contiguous()


def swap_halves(parts: Sequence[torch.Tensor], heads: int) -> torch.Tensor:
    """Rows [up | gate] into [gate | up]."""
    up, gate = parts[0].chunk(2, dim=0)
    return torch.cat([gate, up], dim=0)


# ---------------------------------------------------------------------------------------------------------- the layouts


@dataclass(frozen=True)
class Rule:
    """Where a module's tensors come from: the source modules and what happens to their rows."""

    sources: tuple[str, ...]
    rows: RowOperation = keep


@dataclass(frozen=True)
class Recipe:
    """One canonical tensor: the source tensors to read and what happens to their rows."""

    sources: tuple[str, ...]
    rows: RowOperation = keep

    def source_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of each source tensor, given the canonical one."""
        return (shape[0] // len(self.sources), *shape[1:])


@dataclass(frozen=True)
class Layout:
    """How canonical names map to the names in a file. What a table does not mention keeps its name.

    Attributes:
        name: as shown to people.
        stacks: canonical prefix of a stack of blocks -> prefix in the file.
        root: module outside blocks -> module in the file.
        block: module inside a block (or a refiner block) -> rule.
        names: whole canonical tensor names, as patterns -> their names in the file. Asked first.
    """

    name: str
    stacks: Mapping[str, str] = field(default_factory=dict)
    root: Mapping[str, str] = field(default_factory=dict)
    block: Mapping[str, Rule] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def recipe(self, name: str) -> Recipe:
        """Recipe for the canonical tensor `name`."""
        for pattern, spelling in self.names.items():
            if match := re.fullmatch(pattern, name):
                return Recipe((match.expand(spelling),))
        stacked = _STACKED_NAME.fullmatch(name)
        module, _, kind = (name if stacked is None else stacked["rest"]).rpartition(".")
        if stacked is None:
            return Recipe((_dotted(self.root.get(module, module), kind),))
        rule = self.block.get(module, Rule((module,)))
        stack = f"{self.stacks.get(stacked['stack'], stacked['stack'])}.{stacked['index']}"
        return Recipe(tuple(_dotted(stack, source, kind) for source in rule.sources), rule.rows)

    def stack_indices(self, stack: str, names: Iterable[str]) -> set[int]:
        """Block numbers of the canonical stack `stack` that occur among the file's `names`."""
        pattern = re.compile(re.escape(self.stacks.get(stack, stack)) + r"\.(\d+)\.")
        return {int(match[1]) for match in map(pattern.match, names) if match}


def _dotted(*parts: str) -> str:
    return ".".join(filter(None, parts))  # a table belongs to no module


STACKED = Layout("native, stacked qkv")
DIFFUSERS = Layout(
    "diffusers",
    stacks={BLOCKS: "transformer_blocks", REFINER: "token_refiner.refiner_blocks"},
    root={
        "video_patch_proj": "proj_in",
        "audio_patch_proj": "audio_proj_in",
        "condition_proj": "context_embedder",
        "time_embedder.proj_in": "time_embedder.linear_1",
        "time_embedder.proj_out": "time_embedder.linear_2",
        "final_layer.norm": "norm_out.norm",
        "final_layer.adaln_proj.linear": "norm_out.linear",
        "final_layer.video_out": "proj_out",
        "final_layer.audio_out": "audio_proj_out",
    },
    block={
        "attn.qkv_proj": Rule(("attn.to_q", "attn.to_k", "attn.to_v"), concatenate),
        "attn.q_norm": Rule(("attn.norm_q",)),
        "attn.k_norm": Rule(("attn.norm_k",)),
        "attn.out_proj": Rule(("attn.to_out.0",)),
        "mlp.fc1": Rule(("ff.net.0.proj",), swap_halves),
        "mlp.fc2": Rule(("ff.net.2",)),
    },
)

FASTVIDEO = replace(
    DIFFUSERS,
    name="FastVideo",
    root={
        **DIFFUSERS.root,
        "time_embedder.proj_in": "time_embedder.fc_in",
        "time_embedder.proj_out": "time_embedder.fc_out",
    },
    block={
        **DIFFUSERS.block,
        "attn.out_proj": Rule(("attn.to_out",)),
        "mlp.fc1": Rule(("ff.fc_in",), swap_halves),
        "mlp.fc2": Rule(("ff.fc_out",)),
    },
)
BAKED = replace(
    STACKED,
    name="native, FastH3 pack",
    block={"attn.to_gate_compress": Rule(("attn.vsa_gate",))},
    names={
        TIMES: "h3.fasth3.times",
        r"blocks\.(\d+)\.adaln_table": r"h3.fasth3.blocks.\1.adaln",
        r"final_layer\.adaln_table": "h3.fasth3.final.adaln",
    },
)
FAMILIES = (STACKED, DIFFUSERS, FASTVIDEO, BAKED)


def in_order(family: Layout, *, grouped: bool, up_first: bool) -> Layout:
    """`family` with its rows in the given orders: what its names and shapes cannot tell."""
    block = dict(family.block)
    if len(block.get("attn.qkv_proj", Rule(("",))).sources) == 1:
        block["attn.qkv_proj"] = Rule(("attn.qkv_proj",), ungroup_heads if grouped else keep)
    (fc1,) = block.get("mlp.fc1", Rule(("mlp.fc1",))).sources
    block["mlp.fc1"] = Rule((fc1,), swap_halves if up_first else keep)
    return replace(family, block=block)


def natural(name: str) -> list[int | str]:
    """Sorting key that puts block 2 before block 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
