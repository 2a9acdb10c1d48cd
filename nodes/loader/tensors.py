"""The canonical tensors of a checkpoint, whatever its layout: read by name, converted on the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from ..model import FLOAT32_TENSORS, H3Config, inverse_frequencies
from .checkpoint import Checkpoint, FileSpan
from .forms import Form
from .layouts import INV_FREQ, Recipe, keep
from .quant import QuantWeight, arrange
from .quant_checkpoint import QuantisedCheckpoint

log = logging.getLogger(__name__)


class NativeTensors:
    """Canonical tensors of a complete checkpoint, read one at a time in the file's dtype.

    The float32 set comes as float32 whatever the file holds; names of those that had to be widened go to `widened`.
    """

    def __init__(self, checkpoint: Checkpoint, config: H3Config, recipes: Mapping[str, Recipe], form: Form) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.recipes = recipes
        self.form = form
        self.widened: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.recipes

    def __call__(self, name: str) -> torch.Tensor:
        """The canonical tensor `name` on the CPU; where its rows are kept as they lie, backed by the memory map."""
        if name == INV_FREQ:
            return self._inverse_frequencies()
        recipe = self.recipes[name]
        tensor = recipe.rows([self.checkpoint.read(source) for source in recipe.sources], self.config.heads)
        if name in FLOAT32_TENSORS and tensor.dtype != torch.float32:
            self.widened.add(name)
            return tensor.float()
        return tensor

    def packed(self, name: str) -> QuantWeight | None:
        """The weight `name` in codes, its rows in canonical order; None where the file holds it plain."""
        recipe = self.recipes.get(name)
        if recipe is None or not isinstance(self.checkpoint, QuantisedCheckpoint):
            return None
        parts = [self.checkpoint.packed(source) for source in recipe.sources]
        if any(part is None for part in parts):
            return None
        try:
            return arrange([p for p in parts if p], lambda tensors: recipe.rows(tensors, self.config.heads))
        except ValueError as error:
            log.warning("%s is dequantised: %s", name, error)
            return None

    def span(self, name: str) -> FileSpan | None:
        """Where the file holds the bytes of `name` as they are needed; None where they are converted on the way."""
        recipe = self.recipes.get(name)
        if recipe is None or recipe.rows is not keep or self.packed_sources(recipe):
            return None
        return self.checkpoint.span(recipe.sources[0])

    def packed_sources(self, recipe: Recipe) -> bool:
        """Whether any source of `recipe` is stored in codes."""
        quantised = self.checkpoint
        return isinstance(quantised, QuantisedCheckpoint) and any(map(quantised.is_quantised, recipe.sources))

    def _inverse_frequencies(self) -> torch.Tensor:
        """What the file holds; where it holds a rounding of the computed ones, or nothing, the computed ones."""
        computed = inverse_frequencies(self.config.rope_freqs, self.config.rope_theta)
        if INV_FREQ not in self.recipes:
            return computed
        stored = self.checkpoint.read(self.recipes[INV_FREQ].sources[0])
        if stored.dtype == torch.float32:
            return stored
        self.widened.add(INV_FREQ)
        return computed if torch.equal(computed.to(stored.dtype), stored) else stored.float()
