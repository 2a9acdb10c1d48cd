"""From a checkpoint to an H3 model that can run.

The AdaLN projections, 40 percent of the parameters, never become part of the model: they stay in the memory-mapped file
and are read once per time grid to build lookup tables.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..model import (
    FLOAT32_TENSORS,
    H3,
    AdaLNTables,
    H3Config,
    build_tables,
    distinct_times,
    inverse_frequencies,
    save_tables,
)
from .audit import audit
from .checkpoint import Checkpoint, open_checkpoint
from .detect import recognise
from .layouts import INV_FREQ, Recipe

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # (tensors done, tensors in all); may raise to interrupt


class NativeTensors:
    """Canonical tensors of a complete checkpoint, read one at a time in the file's dtype.

    The float32 set comes as float32 whatever the file holds; names of those that had to be widened go to `widened`.
    """

    def __init__(self, checkpoint: Checkpoint, config: H3Config, recipes: Mapping[str, Recipe]) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.recipes = recipes
        self.widened: set[str] = set()

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


@dataclass(eq=False)
class ModulationSource:
    """Builds AdaLN tables from the checkpoint's full projections, once per set of times, and keeps them in memory."""

    tensors: NativeTensors
    dtype: torch.dtype
    device: torch.device
    _built: dict[tuple[float, ...], AdaLNTables] = field(default_factory=dict)

    def tables(self, times: Iterable[float]) -> AdaLNTables:
        """Tables on the model's device, in the model's dtype, for the distinct float32 values of `times`.

        The first call for a set of times reads every projection once (26 GB for the released model).
        """
        ladder = distinct_times(times)
        if ladder not in self._built:
            identity = {"checkpoint": self.tensors.checkpoint.identity}
            tables = build_tables(self.tensors, self.tensors.config, ladder, self.dtype, identity)
            self._built[ladder] = tables.to(self.device)
        return self._built[ladder]


@dataclass(frozen=True, eq=False)
class H3Model:
    """A loaded transformer and what was read beside it.

    Attributes:
        model: the network in table form, without time MLP and AdaLN projections, in eval mode.
        config: its sizes.
        identity: SHA-256 of the checkpoint's headers, sizes and data samples.
        modulation: builds the tables the model runs on.
        metadata: the texts in the file's header.
        layout: the layout the file came in, in words.
        notes: what a person should know about the file: the order of its qkv rows and why, widened or unused tensors.
    """

    model: H3
    config: H3Config
    identity: str
    modulation: ModulationSource
    metadata: Mapping[str, str]
    layout: str
    notes: tuple[str, ...]


def load_h3(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    qkv_order: str = "auto",
    progress: Progress | None = None,
) -> H3Model:
    """Load an H3 transformer from a file, a shard, an index json or a folder, in any supported layout.

    On the CPU, weights that need neither conversion nor another dtype stay backed by the memory map.
    `qkv_order` "stacked" or "grouped" overrides what the file's layout tells about its qkv rows.

    Raises:
        CheckpointError: not an H3 model, a form that is not read, incomplete, cut or damaged.
    """
    checkpoint = open_checkpoint(path)
    tensors, label, notes = _native_tensors(checkpoint, qkv_order)
    config, device = tensors.config, torch.device(device)
    model = H3(config, adaln=False, device="meta", dtype=dtype)
    wanted = model.state_dict()
    state: dict[str, torch.Tensor] = {}
    for done, (name, blank) in enumerate(wanted.items()):
        state[name] = tensors(name).to(device=device, dtype=blank.dtype)
        if progress:
            progress(done + 1, len(wanted))
    model.load_state_dict(state, strict=True, assign=True)
    model.eval().requires_grad_(False)

    if tensors.widened:
        names = ", ".join(sorted(tensors.widened))
        notes.append(f"stored in less than float32 and widened, some precision is lost: {names}")
        log.warning("%s: %s. Prefer a file that keeps them in float32.", path, notes[-1])
    source = ModulationSource(tensors, dtype, device)
    return H3Model(model, config, checkpoint.identity, source, dict(checkpoint.metadata), label, tuple(notes))


def write_tables(
    checkpoint_path: str | os.PathLike[str], times: Iterable[float], out_path: str | os.PathLike[str]
) -> AdaLNTables:
    """Build a checkpoint's AdaLN tables for `times`, in the dtype of its projections, and write them to `out_path`.

    Raises CheckpointError for a checkpoint that cannot be used, ValueError for a place that cannot be written to.
    """
    folder = Path(out_path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(
            f"{folder} is no folder that can be written to. The tables need one. Create it or choose another."
        )
    checkpoint = open_checkpoint(checkpoint_path)
    tensors, _, _ = _native_tensors(checkpoint, "auto")
    dtype = tensors("blocks.0.adaln_proj.linear.weight").dtype
    tables = ModulationSource(tensors, dtype, torch.device("cpu")).tables(times)
    save_tables(tables, Path(out_path))
    return tables


def _native_tensors(checkpoint: Checkpoint, qkv_order: str) -> tuple[NativeTensors, str, list[str]]:
    """Canonical tensors of a checkpoint that is readable and complete, its layout in words, and notes."""
    recognition = recognise(checkpoint, qkv_order)
    recognition.require_readable(checkpoint)
    found = audit(checkpoint, recognition)
    config = found.require_complete(checkpoint, recognition.label)
    notes = [f"qkv rows are {recognition.qkv_order}: {recognition.qkv_reason}"]
    if recognition.gates:
        notes.append(
            f"{recognition.gates} gates of a sparse-attention branch are there and not used: attention is dense"
        )
    for note in notes:
        log.info("%s: %s", checkpoint.path, note)
    return NativeTensors(checkpoint, config, found.recipes), recognition.label, notes
