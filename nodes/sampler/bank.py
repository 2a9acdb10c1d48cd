"""The prefix bank: per denoising step, the keys and values of the rows that never change after chunk 1.

Prefix rows attend only to each other and their inputs are frozen (text, picture, sink with its noise), so their keys and
values are computed once per step and every later chunk only runs its moving rows against them. A forward first reserves
room for the keys and values of its rows in a layer, writes them there, and then asks what to attend to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from ..model import Stretch
from .bank_forms import Sandwich, Split
from .bank_fp8 import Narrow

SANDWICH, SPLIT, FP8 = "sandwich", "split", "fp8"
FORMS = (SANDWICH, SPLIT, FP8)


class Store(Protocol):
    """Memory of all layers, prefix and moving. A bank is named by its key, (branch, step)."""

    @property
    def nbytes(self) -> int:
        """Of the prefix's keys and values."""

    def own(self, key: tuple[str, int], layer: int, like: Tensor) -> Stretch:
        """Room for the keys and values of a prefix, as large as `like` [rows, heads, head_dim]."""

    def finish(self, key: tuple[str, int], layer: int) -> Stretch:
        """Called once these are written: what the prefix attends to, itself."""

    def tail(self, key: tuple[str, int], layer: int, like: Tensor) -> Stretch:
        """Room for the keys and values of moving rows."""

    def seen(self, key: tuple[str, int], layer: int, rows: int) -> tuple[Stretch, ...]:
        """Once `rows` moving rows are written: prefix and moving rows, as one stretch or two."""


class Place(ABC):
    """Where one forward's rows put their keys and values, and what they look at."""

    @abstractmethod
    def reserve(self, layer: int, like: Tensor) -> Stretch:
        """Room for the keys and values of rows as many and as large as `like` [rows, heads, head_dim]."""

    @abstractmethod
    def attended(self, layer: int) -> tuple[Stretch, ...]:
        """What the rows of `layer` attend to, once the reserved room is filled; to be asked once."""

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep `key` and `value` and return everything they attend to, as the plain modules want it."""
        for room, new in zip(self.reserve(layer, key), (key, value), strict=True):
            room.copy_(new)
        stretches = self.attended(layer)
        if len(stretches) == 1:
            return stretches[0]
        keys, values = zip(*stretches, strict=True)
        return torch.cat(keys), torch.cat(values)


class Recorder(Place):
    """Takes the keys and values of a prefix-only forward, layer by layer; the prefix attends itself only."""

    def __init__(self, store: Store, key: tuple[str, int]) -> None:
        self._store, self._key = store, key
        self._layers = 0

    def reserve(self, layer: int, like: Tensor) -> Stretch:
        if layer != self._layers:
            raise RuntimeError(f"prefix layer {layer} arrived after {self._layers} layers; layers must come in order")
        self._layers += 1
        return self._store.own(self._key, layer, like)

    def attended(self, layer: int) -> tuple[Stretch, ...]:
        return (self._store.finish(self._key, layer),)


class StepBank(Place):
    """The finished prefix of one denoising step; moving rows attend to it and to themselves."""

    def __init__(self, store: Store, key: tuple[str, int]) -> None:
        self._store, self._key = store, key
        self._rows = 0
        self.means: dict[int, Tensor] = {}  # of the bank's keys by layer, where a sparse window asked for them

    @property
    def moving_first(self) -> bool:
        """Whether moving rows stand before the prefix in the one stretch of both."""
        return isinstance(self._store, Sandwich) and self._key[1] == 1

    def reserve(self, layer: int, like: Tensor) -> Stretch:
        self._rows = len(like)
        return self._store.tail(self._key, layer, like)

    def attended(self, layer: int) -> tuple[Stretch, ...]:
        return self._store.seen(self._key, layer, self._rows)


class PrefixBank:
    """One step bank per (branch, step); filled on demand and counted, because a prefill costs a full prefix forward.

    `form` is "sandwich" (two banks share the room of the moving rows, nothing is ever copied: fastest, most memory),
    "split" (banks alone and one room for the moving rows of all layers) or "fp8" (half the bytes, no longer exact).
    """

    def __init__(self, form: str = SPLIT) -> None:
        self.form = form
        self.prefills = 0
        self._store: Store | None = None
        self._steps: dict[tuple[str, int], StepBank] = {}

    def get(self, branch: str, step: int) -> StepBank | None:
        return self._steps.get((branch, step))

    def recorder(self, branch: str, step: int, moving: int) -> Recorder:
        """What takes the keys and values of the prefix-only forward; `moving` rows will run against them, about."""
        if self._store is None:
            self._store = Sandwich(moving) if self.form == SANDWICH else Split() if self.form == SPLIT else Narrow()
        return Recorder(self._store, (branch, step))

    def store(self, branch: str, step: int) -> StepBank:
        """The step bank of a prefix that was recorded to its end."""
        if self._store is None:
            raise RuntimeError(f"no prefix was recorded for step {step} of {branch!r}")
        bank = self._steps[branch, step] = StepBank(self._store, (branch, step))
        self.prefills += 1
        return bank

    @property
    def nbytes(self) -> int:
        """Bytes of the prefix's keys and values."""
        return self._store.nbytes if self._store else 0
