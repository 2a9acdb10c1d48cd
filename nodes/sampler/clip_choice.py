"""Which recipe a checkpoint was made for: by its side file, its tables, its gates, its number of blocks and its adapters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..loader import H3Model
from ..loader.forms import LOW_RANK, TABLES, TIMES
from .clip_network import ladder
from .clip_recipes import BASE_50, FAST_TRIM, FAST_V1, FAST_V2, RECIPES, TURBO_4, TURBO_6, TURBO_8, Recipe
from .finite import RenderError

AUTO = "auto"
PACK_SPARSITY = "h3.fasth3.vsa.sparsity"
SIDE_FILE = "fastvideo_inference.json"  # beside FastVideo's checkpoints
_TURBO = {4: TURBO_4, 6: TURBO_6, 8: TURBO_8}
_TURBO_NAME = re.compile(r"turbo.*?(\d+)[ _-]*steps?|(\d+)[ _-]*steps?.*turbo", re.IGNORECASE)
_PREVIEW_NAME = re.compile(r"preview|(?<![a-z0-9])v1(?![0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class Choice:
    """A recipe, the share of video tiles in percent that the checkpoint says it was trained with, and why."""

    recipe: Recipe
    keep: float | None
    reason: str


def choose_recipe(model: H3Model, asked: str = AUTO) -> Choice:
    """The recipe named by `asked`, else the one the checkpoint was made for. Raises `RenderError` for an unknown name."""
    side = _side_file(model)
    keep = _keep_of(side) or _keep_in_pack(model)
    if asked != AUTO:
        if asked not in RECIPES:
            raise RenderError(f"recipe is {asked!r}; choose {AUTO} or one of {', '.join(RECIPES)}")
        return Choice(RECIPES[asked], keep, "asked for")
    for bound in model.adapters:
        if found := _TURBO_NAME.search(bound.name):
            steps = int(found[1] or found[2])
            if steps in _TURBO:
                return Choice(_TURBO[steps], keep, f"the adapter {bound.name}")
    tensors = model.modulation.tensors
    if tensors.form is TABLES and TIMES in tensors:
        held = {float(time) for time in tensors(TIMES).flatten().tolist()}
        for recipe in RECIPES.values():
            if held >= set(ladder(recipe.grid, clean=False)):
                return Choice(recipe, keep, "the times of its finished tables")
    if side is not None and (told := _steps_of(side)):
        fast = FAST_V1 if told == FAST_V1.steps else FAST_TRIM if tensors.form is LOW_RANK else FAST_V2
        return Choice(fast, keep, f"{SIDE_FILE} beside it")
    if model.config.gate_compress:
        if tensors.form is LOW_RANK:
            return Choice(FAST_TRIM, keep, "gates and the low-rank modulation of FastH3 Trim")
        names = (tensors.checkpoint.path.name, *(bound.name for bound in model.adapters))
        if any(_PREVIEW_NAME.search(name) for name in names):
            return Choice(FAST_V1, keep, "gates, and its name")
        return Choice(FAST_V2, keep, "gates; FastH3 V1 has them too, choose it by hand if it is one")
    return Choice(BASE_50, keep, "no mark of a distilled checkpoint")


def _side_file(model: H3Model) -> Any:
    """What the side file holds, from the checkpoint's folder or the one above; None where there is none to read."""
    folder = Path(model.modulation.tensors.checkpoint.headers[0].path).parent
    for place in (folder / SIDE_FILE, folder.parent / SIDE_FILE):
        try:
            return json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
    return None


def _keep_in_pack(model: H3Model) -> float | None:
    """The share that a FastH3 pack names in a tensor of its own."""
    checkpoint = model.modulation.tensors.checkpoint
    if PACK_SPARSITY not in checkpoint.tensors:
        return None
    return round(100.0 * (1.0 - float(checkpoint.read(PACK_SPARSITY).float().flatten()[0])), 4)


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every entry of a JSON value with the name it has, however deep."""
    yield name, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _entries(inner, str(key).lower())


def _steps_of(side: Any) -> int | None:
    """The number of steps: a list of positions without its final 0, else a whole number called steps."""
    for name, value in _entries(side):
        if isinstance(value, list) and len(value) > 1 and re.search(r"position|sigma|timestep|schedule", name):
            numbers = [v for v in value if isinstance(v, int | float)]
            if len(numbers) == len(value):
                return sum(v > 0 for v in numbers)
    return next((v for name, v in _entries(side) if "step" in name and isinstance(v, int) and v > 0), None)


def _keep_of(side: Any) -> float | None:
    """The share kept in percent, from the sparsity that the side file names."""
    for name, value in _entries(side):
        if "sparsity" in name and isinstance(value, int | float) and 0.0 <= value < 1.0:
            return round(100.0 * (1.0 - value), 6)
    return None
