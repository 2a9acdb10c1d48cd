"""Where a loaded model's modulation comes from: tables for a set of times, made from whatever form the checkpoint has.

Full, low-rank and curve checkpoints give the tables of any times, one projection in memory at a time; baked ones give
the times they hold. Adapters that touch the projections or the time MLP are merged before, or folded in where only
finished tables are left.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ..model import (
    BLOCK_SLOTS,
    FINAL_SLOTS,
    MODALITIES,
    AdaLNTables,
    OffLadderError,
    TableError,
    build_tables,
    canonical_time,
    curve_coordinates,
    distinct_times,
    embed_times,
    layer_table,
)
from .forms import BASIS, BLOCK_TABLE, CURVE, CURVE_TABLE, FINAL_TABLE, LOW_RANK, TABLES, TIMES, VECTORS
from .patches import WeightPatch, added, merged
from .table_cache import TableCache, modulation_digest
from .tensors import NativeTensors

Progress = Callable[[int, int], None]  # (done, in all); may raise to interrupt

_ROWS_AT_ONCE = 16384  # of a projection, 176 MB in float32
_TOLERANCE = 1e-3  # of the root mean square of a layer's table

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ModulationSource:
    """Builds AdaLN tables, once per set of times, and keeps them in memory and in `cache`.

    Attributes:
        tensors: the checkpoint's canonical tensors.
        dtype, device: of the tables.
        patches: what adapters change of the tensors the tables are made from, by canonical name.
        adapters: identity of everything in `patches`, part of the tables' identity.
        given: finished tables that came beside the checkpoint; used in place of its own.
        cache: where tables outlive the process; None for nowhere.
        progress: called with (layers done, layers in all) while tables are built; may raise to interrupt.
    """

    tensors: NativeTensors
    dtype: torch.dtype
    device: torch.device
    patches: Mapping[str, Sequence[WeightPatch]] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()
    given: AdaLNTables | None = None
    cache: TableCache | None = None
    progress: Progress | None = None
    _built: dict[tuple[float, ...], AdaLNTables] = field(default_factory=dict)

    @property
    def times(self) -> tuple[float, ...] | None:
        """The only times there are tables for; None for any time."""
        if self.given is not None:
            return self.given.ladder
        return self._stored.ladder if self.tensors.form is TABLES else None

    def with_adapters(
        self, patches: Mapping[str, Sequence[WeightPatch]], adapters: tuple[str, ...]
    ) -> ModulationSource:
        """The same source with other adapters; tables that were built or given stay with the old one."""
        given = None if patches and self.tensors.form.any_time else self.given
        return replace(self, patches=patches, adapters=adapters, given=given, _built={})

    def tables(self, times: Iterable[float]) -> AdaLNTables:
        """Tables on the model's device, in the model's dtype, for the distinct float32 values of `times`.

        The first call for a set of times reads every projection once (26 GB for the released model), unless the cache
        has them. Raises OffLadderError for a time that a baked checkpoint does not hold.
        """
        ladder = distinct_times(times)
        if ladder not in self._built:
            self._built[ladder] = self._make(ladder).to(self.device)
        return self._built[ladder]

    def check(self, tables: AdaLNTables, name: str) -> None:
        """Compare `tables` called `name` with this checkpoint's projections: the last layer, the first and last block.

        Raises TableError naming the layer, the value expected and the value found where one differs by more than a
        rounding of their dtype and a thousandth of the layer's root mean square.
        """
        tables.check(self.tensors.config)
        config, dtype = self.tensors.config, tables.blocks.dtype
        ways = [self._coordinates(tables.ladder, dtype)]
        if not ways[0][1] and dtype != torch.float32:  # tables made of unrounded weights are as good
            ways.append((embed_times(self._tensor, config, tables.ladder, None), True))
        for layer in dict.fromkeys((None, 0, config.layers - 1)):
            found = (tables.final if layer is None else tables.blocks[layer]).cpu()
            wanted = [layer_table(self._tensor, config, read, dtype, layer, exact=exact) for read, exact in ways]
            excess, worst, expected = min(_worst(found, one) for one in wanted)
            if not excess <= 0:
                time = tables.ladder[worst // (found.numel() // len(tables.ladder))]
                tensor = "adaln.final" if layer is None else f"adaln.blocks, block {layer}"
                raise TableError(
                    f"{name}: tensor {tensor} holds {found.flatten()[worst]:.6g} at time {time!r}; expected is "
                    f"{expected:.6g}, as the checkpoint's projections give. Use the tables made from this checkpoint and "
                    "these adapters, or build them again."
                )

    def _make(self, ladder: tuple[float, ...]) -> AdaLNTables:
        if self.times is not None:
            return self._of_stored(ladder)
        cache = self.cache if self.cache and self.cache.is_worth(self.tensors) else None
        identity = self._identity(ladder) if cache else {}
        if cache and (known := cache.load(identity, self.tensors.config)):
            log.info("AdaLN tables of %d times come from the cache", len(ladder))
            return known
        coordinates = self._coordinates(ladder, self.dtype)[0] if self.tensors.form in (LOW_RANK, CURVE) else None
        identity = identity or {"checkpoint": self.tensors.checkpoint.identity, **self._adapter_identity()}
        tables = build_tables(
            self._tensor,
            self.tensors.config,
            ladder,
            self.dtype,
            identity,
            coordinates=coordinates,
            progress=self.progress,
        )
        if cache:
            cache.save(tables)
        return tables

    def _identity(self, ladder: tuple[float, ...]) -> dict[str, str]:
        return {
            "modulation": self._digest,
            "form": self.tensors.form.name,
            "times": json.dumps([time.hex() for time in ladder]),
            "dtype": str(self.dtype),
            **self._adapter_identity(),
        }

    def _adapter_identity(self) -> dict[str, str]:
        return {"adapters": json.dumps(self.adapters)} if self.adapters else {}

    @cached_property
    def _digest(self) -> str:
        return modulation_digest(self.tensors)

    def _tensor(self, name: str) -> Tensor:
        """A canonical tensor after the adapters."""
        return merged(self.tensors(name), self.patches.get(name, ()), at_once=_ROWS_AT_ONCE)

    def _coordinates(self, ladder: tuple[float, ...], dtype: torch.dtype) -> tuple[Tensor, bool]:
        """What the projections read, and whether they are to be taken unrounded (low-rank and curve forms)."""
        if self.tensors.form is CURVE:
            return curve_coordinates(ladder, self._tensor(CURVE_TABLE)), True
        if self.tensors.form is LOW_RANK:
            return embed_times(self._tensor, self.tensors.config, ladder, None) @ self._tensor(BASIS).float().T, True
        return embed_times(self._tensor, self.tensors.config, ladder, dtype), False

    def vectors(self, times: Iterable[float]) -> Tensor | None:
        """float32 [n, time_dim] that full projections read at the distinct `times`; None where it is not known."""
        ladder = distinct_times(times)
        if self.tensors.form.has_time_mlp:
            return embed_times(self._tensor, self.tensors.config, ladder, None)
        if self.tensors.form is TABLES and VECTORS in self.tensors:
            place = {time: row for row, time in enumerate(map(canonical_time, self.tensors(TIMES).tolist()))}
            return self.tensors(VECTORS).float()[[place[time] for time in ladder]]
        return None

    @cached_property
    def _stored(self) -> AdaLNTables:
        """The tables of a baked checkpoint after the adapters, float32, in ascending order of times."""
        config = self.tensors.config
        times = [canonical_time(time) for time in self.tensors(TIMES).tolist()]
        order = [times.index(time) for time in distinct_times(times)]
        vectors = self.vectors(times) if VECTORS in self.tensors else None

        def rows(name: str, projection: str) -> Tensor:
            table = self.tensors(name)[order].float()
            for kind in ("weight", "bias"):
                table = added(table, vectors, self.patches.get(f"{projection}.linear.{kind}", ()))
            return table

        blocks = [rows(f"blocks.{i}.{BLOCK_TABLE}", f"blocks.{i}.adaln_proj") for i in range(config.layers)]
        shape = (MODALITIES, BLOCK_SLOTS, config.hidden)
        return AdaLNTables(
            torch.tensor(distinct_times(times), dtype=torch.float32),
            torch.stack(blocks).unflatten(-1, shape),
            rows(FINAL_TABLE, "final_layer.adaln_proj").unflatten(-1, (FINAL_SLOTS, config.hidden)),
            {"checkpoint": self.tensors.checkpoint.identity, **self._adapter_identity()},
        )

    def _of_stored(self, ladder: tuple[float, ...]) -> AdaLNTables:
        """The asked times of finished tables, in the model's dtype."""
        stored = self.given if self.given is not None else self._stored
        missing = [time for time in ladder if time not in stored.ladder]
        if missing:
            raise OffLadderError(
                f"{self.tensors.checkpoint.path} holds finished AdaLN tables for the times {list(stored.ladder)}; time "
                f"{missing[0]!r} was asked for. Choose the number of steps the tables were made for, or use the full weights."
            )
        rows = [stored.ladder.index(time) for time in ladder]
        return replace(
            stored,
            times=stored.times[rows],
            blocks=stored.blocks[:, rows].to(self.dtype),
            final=stored.final[rows].to(self.dtype),
        )


def _worst(found: Tensor, wanted: Tensor) -> tuple[float, int, float]:
    """By how much the worst value differs beyond what is allowed, its place, and what it should be."""
    found, wanted, eps = found.double(), wanted.double(), torch.finfo(wanted.dtype).eps
    unit = torch.exp2(torch.floor(torch.log2(wanted.abs().clamp(min=1e-30)))) * eps
    excess = ((found - wanted).abs() - unit - _TOLERANCE * wanted.square().mean().sqrt()).flatten()
    excess = excess.nan_to_num(nan=float("inf"))
    place = int(excess.argmax())
    return float(excess[place]), place, float(wanted.flatten()[place])
