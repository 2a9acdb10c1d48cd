"""From a checkpoint to an H3 model that can run.

The AdaLN projections, 40 percent of the parameters, never become part of the model: they stay in the memory-mapped file
and are read once per time grid to build lookup tables.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..model import H3, AdaLNTables, H3Config, save_tables
from .audit import audit
from .checkpoint import Checkpoint, open_checkpoint
from .detect import Recognition, recognise
from .forms import CURVE, LOW_RANK, NOTHING, TABLES
from .header import CheckpointError
from .layouts import GATE
from .modulation_source import ModulationSource, Progress
from .quant_checkpoint import without_codes
from .quant_linear import AS_FP8, STORED, WEIGHTS, install, moved, quantise_model
from .sidecar import read_sidecar, sidecar_beside
from .table_cache import TableCache
from .tensors import NativeTensors

if TYPE_CHECKING:
    from .adapters import Bound

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class H3Model:
    """A loaded transformer and what was read beside it.

    Attributes:
        model: the network in table form, without time MLP and AdaLN projections, in eval mode.
        config: its sizes.
        identity: SHA-256 of the checkpoint's headers, sizes and data samples, and of the adapters on it.
        modulation: builds the tables the model runs on.
        metadata: the texts in the file's header.
        layout: the layout the file came in, in words.
        notes: what a person should know about the file: the order of its qkv rows and why, widened or unused tensors.
        adapters: what was applied on top, in order.
    """

    model: H3
    config: H3Config
    identity: str
    modulation: ModulationSource
    metadata: Mapping[str, str]
    layout: str
    notes: tuple[str, ...]
    adapters: tuple[Bound, ...] = ()


def load_h3(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    qkv_order: str = "auto",
    gate_order: str = "auto",
    tables: str | os.PathLike[str] | None = None,
    cache: TableCache | None = None,
    weights: str = STORED,
    quantise_on: torch.device | str | None = None,
    progress: Progress | None = None,
) -> H3Model:
    """Load an H3 transformer from a file, a shard, an index json or a folder, in any supported layout.

    On the CPU, weights that need neither conversion nor another dtype stay backed by the memory map.

    Args:
        qkv_order: "stacked" or "grouped" overrides what the file's layout tells about its qkv rows.
        gate_order: "gate first" or "up first" overrides the same for the halves of the first MLP projection.
        tables: a file of finished AdaLN tables to use in place of the checkpoint's projections; compared with them
            where it has any. A checkpoint without any modulation takes the one such file beside it.
        cache: where AdaLN tables outlive this process.
        weights: "stored" keeps them as the file has them, in codes or plain; "fp8" quantises plain ones of the main blocks.
        quantise_on: device that computes the codes; None for `device`.
        progress: called with (tensors done, tensors in all); may raise to interrupt.

    Raises:
        CheckpointError: not an H3 model, a form that is not read, incomplete, cut or damaged.
        TableError: `tables` does not belong to this checkpoint.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights is '{weights}'. It must be one of {', '.join(WEIGHTS)}. Use '{STORED}'.")
    checkpoint = open_checkpoint(path)
    tensors, recognition, notes = native_tensors(checkpoint, qkv_order, gate_order)
    device = torch.device(device)
    source = ModulationSource(tensors, dtype, device, cache=cache)
    _give_tables(source, tables, notes)
    config = _with_gates(tensors, notes)
    model = H3(config, adaln=False, device="meta", dtype=dtype)
    wanted = model.state_dict()
    state: dict[str, torch.Tensor] = {}
    for done, (name, blank) in enumerate(wanted.items()):
        packed = tensors.packed(name)
        if packed is None:
            state[name] = tensors(name).to(device=device, dtype=blank.dtype)
        else:
            state |= install(model, name.removesuffix(".weight"), moved(packed, device))
        if progress:
            progress(done + 1, len(wanted))
    model.load_state_dict(state, strict=True, assign=True)
    model.eval().requires_grad_(False)
    if weights == AS_FP8:
        quantise_model(model, quantise_on or device)

    if tensors.widened:
        names = ", ".join(sorted(tensors.widened))
        notes.append(f"stored in less than float32 and widened, some precision is lost: {names}")
        log.warning("%s: %s. Prefer a file that keeps them in float32.", path, notes[-1])
    return H3Model(
        model,
        config,
        _identity(checkpoint, weights),
        source,
        dict(checkpoint.metadata),
        recognition.label,
        tuple(notes),
    )


def _with_gates(tensors: NativeTensors, notes: list[str]) -> H3Config:
    """The sizes of the network: gates of the sparse-attention branch that are all zero switch it off and stay in the file."""
    config = tensors.config
    if not config.gate_compress:
        return config
    if any(bool(tensors(f"blocks.{layer}.{gate}").any()) for layer in range(config.layers) for gate in GATE):
        notes.append(
            "gates of a sparse-attention branch are loaded; H3 Clip Sampler uses them, dense attention does not"
        )
        return config
    notes.append("gates of a sparse-attention branch are there and all zero: the branch is switched off")
    return replace(config, gate_compress=False)


def _identity(checkpoint: Checkpoint, weights: str) -> str:
    """Of the checkpoint and of what was done to its weights."""
    if weights == STORED:
        return checkpoint.identity
    return hashlib.sha256(f"{checkpoint.identity} {weights}".encode()).hexdigest()


def write_tables(
    checkpoint_path: str | os.PathLike[str],
    times: Iterable[float],
    out_path: str | os.PathLike[str],
    *,
    qkv_order: str = "auto",
    progress: Progress | None = None,
) -> AdaLNTables:
    """Build a checkpoint's AdaLN tables for `times`, in the dtype of its projections, and write them to `out_path`.

    Raises CheckpointError for a checkpoint that cannot be used, ValueError for a place that cannot be written to.
    """
    require_writable(out_path)
    source = modulation_of(checkpoint_path, qkv_order=qkv_order)
    source.progress = progress
    tables = source.tables(times)
    save_tables(tables, Path(out_path))
    return tables


def modulation_of(
    path: str | os.PathLike[str], *, qkv_order: str = "auto", gate_order: str = "auto"
) -> ModulationSource:
    """The modulation of a checkpoint alone, on the CPU, in the dtype of its projections; no layer is loaded."""
    tensors, _, notes = native_tensors(open_checkpoint(path), qkv_order, gate_order)
    stored = next((name for name in tensors.recipes if "adaln" in name and name.startswith("blocks.0.")), None)
    source = ModulationSource(tensors, tensors(stored).dtype if stored else torch.bfloat16, torch.device("cpu"))
    _give_tables(source, None, notes)
    return source


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise ValueError where no file can be written to, before any work is done."""
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(
            f"{folder} is no folder that can be written to. The tables need one. Create it or choose another."
        )


def native_tensors(
    checkpoint: Checkpoint, qkv_order: str = "auto", gate_order: str = "auto"
) -> tuple[NativeTensors, Recognition, list[str]]:
    """Canonical tensors of a checkpoint that is readable and complete, what it is, and notes."""
    checkpoint = without_codes(checkpoint)
    recognition = recognise(checkpoint, qkv_order, gate_order)
    recognition.require_readable(checkpoint)
    found = audit(checkpoint, recognition)
    config = found.require_complete(checkpoint, recognition.label)
    stored = [f"weights stay in codes: {checkpoint.storage}"] if checkpoint.storage else []
    notes = [*stored, f"qkv rows are {recognition.qkv_order}: {recognition.qkv_reason}", *recognition.doubts]
    form = recognition.form
    if form is TABLES:
        notes.append("the modulation is finished tables: only the times in them can be rendered")
    if form is LOW_RANK or form is CURVE:
        notes.append(f"the modulation has {found.form_sizes['coordinates']} coordinates per time ({form.name} form)")
    for note in notes:
        log.info("%s: %s", checkpoint.path, note)
    return NativeTensors(checkpoint, config, found.recipes, form), recognition, notes


def _give_tables(source: ModulationSource, path: str | os.PathLike[str] | None, notes: list[str]) -> None:
    """Use the tables at `path`, or for a checkpoint without modulation those beside it."""
    checkpoint, form = source.tensors.checkpoint, source.tensors.form
    place = path if path is not None else sidecar_beside(checkpoint) if form is NOTHING else None
    if place is None:
        if form is NOTHING:
            raise CheckpointError(
                checkpoint.path,
                found="it has no AdaLN projections (no tensor 'blocks.0.adaln_proj.linear.weight'), and there is not "
                "exactly one file of tables beside it",
                needed="AdaLN projections, or tables in a .safetensors file",
                remedy="Use the full weights, or choose the tables that belong to it.",
            )
        return
    tables = read_sidecar(place, source.tensors.config)
    if form.any_time:
        source.check(tables, str(place))
    source.given = tables
    notes.append(f"the modulation comes from the tables in {Path(place).name}, for {len(tables.ladder)} times")
