"""A checkpoint with its AdaLN projections replaced by finished tables: 40 GB instead of 66, for one time grid.

Two spellings: our own, which keeps what adapters of AdaLN need later, and a curve that stock ComfyUI reads. A curve whose
rows around every time t_j are the unit vector e_j, and whose projections hold the table of t_j in column j, gives the
tables back exactly at these times and nothing of use between them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from ..model import FLOAT32_TENSORS, AdaLNTables
from .adapters import Bound, joined
from .checkpoint import TORCH_DTYPES
from .detect import GATE_KEY, QKV_KEY, QUANTISATION_KEY, STREAM_PREFIX
from .forms import BLOCK_TABLE, CURVE_TABLE, FINAL_TABLE, NOTHING, TIMES, VECTORS
from .header import read_header
from .layouts import INV_FREQ, native_names, native_shape
from .load import require_writable
from .modulation_source import ModulationSource, Progress
from .patches import merged
from .stream_file import Planned, write_stream

OWN, FOR_COMFYUI = "tables", "curve for ComfyUI"
KINDS = (OWN, FOR_COMFYUI)
FACTS_KEY = "streamrender_h3.tables"  # metadata: what the tables were made from

_GRIDS = tuple(2**power + 1 for power in range(10, 21))  # rows of a curve; published curves have 1025
_APART = 4  # rows between two times, so that a time off by a rounding still meets its own unit vector


@dataclass(frozen=True)
class Written:
    """A written checkpoint: its file, its size, and whether it was there already."""

    path: Path
    nbytes: int
    there: bool = False


def write_table_checkpoint(
    source: ModulationSource,
    times: Iterable[float],
    out_path: str | os.PathLike[str],
    *,
    adapters: Sequence[Bound] = (),
    kind: str = OWN,
    progress: Progress | None = None,
) -> Written:
    """Write the model of `source` with tables for `times`, streamed: one tensor is in memory at a time.

    Adapters are merged: `adapters` into the layers, those that `source` knows into the tables. Gates of a
    sparse-attention branch are left out. A file that was written from the same things is left as it is.

    Raises ValueError for another file of that name, a place that cannot be written to, or too small a disk.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is '{kind}'. It must be one of {', '.join(KINDS)}. Use '{OWN}'.")
    path = Path(out_path)
    require_writable(path)
    ladder = tuple(sorted(set(times)))
    facts = json.dumps(
        {
            "kind": kind,
            "checkpoint": source.tensors.checkpoint.identity,
            "adapters": [f"{one.identity} {one.strength!r}" for one in adapters],
            "times": [time.hex() for time in ladder],
            "dtype": str(source.dtype),
        },
        sort_keys=True,
    )
    if path.exists():
        if read_header(path).metadata.get(FACTS_KEY) == facts:
            return Written(path, path.stat().st_size, there=True)
        raise ValueError(f"{path} is there already and holds something else. Choose another name, or move it away.")
    tables = source.tables(ladder)
    plan = [*_layers(source, adapters), *(_own(source, tables) if kind == OWN else _curve(source, tables))]
    checkpoint = source.tensors.checkpoint
    prefix = STREAM_PREFIX if kind == OWN and all(name.startswith(STREAM_PREFIX) for name in checkpoint.tensors) else ""
    metadata = {name: text for name, text in checkpoint.metadata.items() if name != QUANTISATION_KEY}
    metadata |= {"format": "pt", QKV_KEY: "stacked", GATE_KEY: "gate first", FACTS_KEY: facts}
    named = [Planned(prefix + one.name, one.dtype, one.shape, one.make) for one in plan]
    return Written(path, write_stream(path, named, metadata, progress))


def _layers(source: ModulationSource, adapters: Sequence[Bound]) -> list[Planned]:
    """Everything but the modulation, in canonical names and row orders, after the adapters."""
    tensors, config = source.tensors, source.tensors.config
    patches = joined(one.layers for one in adapters)

    def make(name: str) -> Tensor:
        return merged(tensors(name), patches.get(name, ()))

    plan = []
    for name in native_names(range(config.layers), range(config.refiner_layers), form=NOTHING):
        stored = torch.float32
        if name != INV_FREQ and name not in FLOAT32_TENSORS:
            stored = TORCH_DTYPES[tensors.checkpoint.tensors[tensors.recipes[name].sources[0]].dtype]
        plan.append(Planned(name, stored, native_shape(name, config), partial(make, name)))
    return plan


def _own(source: ModulationSource, tables: AdaLNTables) -> list[Planned]:
    """Tables in our own names, and the inputs of the projections, into which adapters of AdaLN can be folded later."""
    plan = [_held(TIMES, tables.times), _held(FINAL_TABLE, tables.final.flatten(1))]
    plan += [_held(f"blocks.{i}.{BLOCK_TABLE}", table.flatten(1)) for i, table in enumerate(tables.blocks)]
    vectors = source.vectors(tables.ladder)
    return plan if vectors is None else [*plan, _held(VECTORS, vectors)]


def _curve(source: ModulationSource, tables: AdaLNTables) -> list[Planned]:
    """Tables as a curve over the times: unit vectors where the times lie, the tables as columns of the projections."""
    layers = [*((f"blocks.{i}", table) for i, table in enumerate(tables.blocks)), ("final_layer", tables.final)]
    plan = [_held(CURVE_TABLE, unit_curve(tables.ladder))]
    for name, table in layers:
        columns = table.flatten(1).T
        plan.append(_held(f"{name}.adaln_proj.linear.weight", columns))
        plan.append(_held(f"{name}.adaln_proj.linear.bias", torch.zeros(len(columns), dtype=columns.dtype)))
    return plan


def unit_curve(ladder: Sequence[float]) -> Tensor:
    """float32 [G, n]: the rows on both sides of time j are the unit vector e_j, all others zero."""
    for grid in _GRIDS:
        places = [min(int(time * (grid - 1)), grid - 2) for time in ladder]
        if all(later - earlier >= _APART for earlier, later in pairwise(places)):
            curve = torch.zeros(grid, len(ladder))
            for column, place in enumerate(places):
                curve[max(0, place - 1) : place + 3, column] = 1.0
            return curve
    raise ValueError(
        f"the times {list(ladder)} lie too close together for a curve of {_GRIDS[-1]} rows. Choose fewer steps, or '{OWN}'."
    )


def _held(name: str, tensor: Tensor) -> Planned:
    return Planned(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)
