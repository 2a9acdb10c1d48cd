"""How adapters spell the modules they change, as data: prefixes, suffixes, and the layouts' own tables for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..model import H3Config
from .layouts import DIFFUSERS, FASTVIDEO, INV_FREQ, STACKED, RowOperation, concatenate, keep, native_names

DOWN, UP, ALPHA = "down", "up", "alpha"
ADD, ADD_BIAS, SET = "diff", "diff_b", "set"

PREFIXES = (
    "base_model.model.dit.",
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "lora_transformer_",
    "transformer.",
    "lora_unet_",
    "model.",
    "dit.",
)
"""Longest first; stripped key by key, because some files mix two."""

_ADAPTER = r"(?:\.(?P<adapter>(?!weight$)[^.]+))?"
SUFFIXES: Mapping[str, str] = {
    rf"\.(?:lora_A|lora_a){_ADAPTER}(?:\.weight)?": DOWN,
    rf"\.(?:lora_B|lora_b){_ADAPTER}(?:\.weight)?": UP,
    r"(?:\.|_)lora(?:_|\.)down\.weight": DOWN,
    r"(?:\.|_)lora(?:_|\.)up\.weight": UP,
    r"\.alpha": ALPHA,
    r"\.diff_b": ADD_BIAS,
    r"\.diff": ADD,
    r"\.set_weight": SET,
}
"""Ends of keys, as patterns, and what each means; the first that fits."""

_SUFFIXES = tuple((re.compile(rf"(?P<module>.+?){pattern}"), part) for pattern, part in SUFFIXES.items())


@dataclass(frozen=True)
class Key:
    """One tensor of an adapter: the module as the file spells it, without prefix, and its part in the change."""

    module: str
    part: str
    prefix: str
    adapter: str  # name of the adapter inside a peft file, such as "default"; empty without one


@dataclass(frozen=True)
class Target:
    """Where a module lies in the canonical model: its tensor, which of how many equal parts of the rows, and their order."""

    tensor: str
    part: int
    parts: int
    rows: RowOperation
    fused_qkv: bool


def read_key(key: str) -> Key | None:
    """The parts of a key, or None where the end says nothing known."""
    prefix, rest = "", key
    while found := next((text for text in PREFIXES if rest.startswith(text)), ""):
        prefix, rest = prefix + found, rest.removeprefix(found)
    for pattern, part in _SUFFIXES:
        if match := pattern.fullmatch(rest):
            return Key(match["module"], part, prefix, match.groupdict().get("adapter") or "")
    return None


def targets(config: H3Config, blocks: int) -> dict[str, Target]:
    """Every spelling of every module of a model with `blocks` blocks: native, diffusers, FastVideo; with dots or flat."""
    table: dict[str, Target] = {}
    for module, target in _spelled(config, blocks):
        table.setdefault(module, target)
    for module, target in list(table.items()):
        table.setdefault(module.replace(".", "_"), target)
    return table


def _spelled(config: H3Config, blocks: int) -> Iterator[tuple[str, Target]]:
    names = native_names(range(blocks), range(config.refiner_layers), gates=True)
    for layout in (STACKED, DIFFUSERS, FASTVIDEO):
        for name in names:
            if name == INV_FREQ or name.endswith(".bias"):
                continue  # a bias is named by its module
            recipe = layout.recipe(name)
            rows = keep if recipe.rows is concatenate else recipe.rows
            fused = name.endswith("attn.qkv_proj.weight") and len(recipe.sources) == 1
            for part, source in enumerate(recipe.sources):
                yield source.removesuffix(".weight"), Target(name, part, len(recipe.sources), rows, fused)
