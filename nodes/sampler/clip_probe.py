"""How much of the true attention the chosen tiles hold in every layer, and which layers are dense because it is too little.

An experiment, off by default: in the first sparse step every sparse layer asks some of its rows, see `kernels.recall`. Layers
whose mean recall is below `LEAST_RECALL` are dense from then on, in that step too.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from ...kernels.recall import ROWS_AT_ONCE, recall, sampled_rows
from ...kernels.sparse_attention import Forced, Steps
from ...kernels.tiles import Tiles

log = logging.getLogger("streamrender_h3")

LEAST_RECALL = 0.8
ROWS_PER_HEAD = 128
DIGITS = 4  # of shares in the run report
FLOAT_BYTES = 4
WEIGHT_COPIES = 3  # of the weights of the rows asked at once: scores, their softmax, and what is added up


@dataclass(frozen=True)
class LayerRecall:
    """Shares of the attention of a layer: held by the chosen tiles, and the most that so many tiles can hold (`ceiling`).

    Means over heads, and the same of the head whose chosen tiles hold least.
    """

    layer: int
    recall: float
    ceiling: float
    worst_head: int
    worst_recall: float
    worst_ceiling: float

    @property
    def vetoed(self) -> bool:
        """Whether the layer is dense from now on; a share that is no number does not save it."""
        return not self.recall >= LEAST_RECALL


@dataclass
class RowsProbe:
    """The probe of one arrangement of rows, that is of one guidance branch; `layers` is how many it will see."""

    tiles: Tiles
    steps: Steps
    forced: Forced | None
    rows: Tensor  # [heads, ROWS_PER_HEAD], on the device
    layers: int
    step: int | None = None
    found: dict[int, LayerRecall] = field(default_factory=dict)

    def vetoes(self, step: int, layer: int, q: Tensor, k: Tensor, sparsity: float) -> bool:
        """Whether a layer has to be dense. Measures it when it is seen first, which waits once for the device."""
        if layer not in self.found:
            shares = recall(q, k, self.tiles, sparsity, self.rows, steps=self.steps, forced=self.forced)
            held, ceiling = shares.stacked().tolist()
            worst = min(range(len(held)), key=held.__getitem__)
            means = sum(held) / len(held), sum(ceiling) / len(ceiling)
            self.step = step
            self.found[layer] = LayerRecall(layer, *means, worst, held[worst], ceiling[worst])
            if len(self.found) == self.layers:
                log.info("sparse attention: %s", self.summary())
        return self.found[layer].vetoed

    @property
    def vetoed(self) -> list[int]:
        return sorted(one.layer for one in self.found.values() if one.vetoed)

    def summary(self) -> str:
        """One line for the log."""
        layers = list(self.found.values())
        least = min(layers, key=lambda one: one.recall)
        dense = f"dense from now on: {', '.join(map(str, self.vetoed))}" if self.vetoed else "no layer is made dense"
        mean, ceiling = (
            sum(values) / len(layers) for values in zip(*((x.recall, x.ceiling) for x in layers), strict=True)
        )
        return (
            f"the tiles chosen in step {self.step} hold {mean:.2f} of the attention of {self.tiles.rows:,} rows (at best "
            f"{ceiling:.2f}), {least.recall:.2f} in layer {least.layer}; {dense}"
        )

    def facts(self) -> dict[str, Any]:
        layers = [{name: round(value, DIGITS) for name, value in asdict(x).items()} for x in self.found.values()]
        return {"rows": self.tiles.rows, "step": self.step, "dense_layers": self.vetoed, "layers": layers}


@dataclass
class AutoDense:
    """The probe of a render whose model has so many heads and sparse layers."""

    heads: int
    layers: int
    probes: list[RowsProbe] = field(default_factory=list)

    def of(self, tiles: Tiles, steps: Steps, forced: Forced | None) -> RowsProbe:
        """A probe for one arrangement of rows, on the device of its tiles."""
        probe = RowsProbe(tiles, steps, forced, sampled_rows(tiles, self.heads, ROWS_PER_HEAD), self.layers)
        self.probes.append(probe)
        return probe

    def working_bytes(self, rows: int, head_dim: int) -> int:
        """Device bytes beside those of the choice of tiles: keys of one head, weights of the rows asked at once."""
        return rows * FLOAT_BYTES * (head_dim + WEIGHT_COPIES * ROWS_AT_ONCE)

    def facts(self) -> dict[str, Any]:
        return {"least_recall": LEAST_RECALL, "rows_per_head": ROWS_PER_HEAD}

    def found(self) -> list[dict[str, Any]]:
        """By arrangement of rows, for the run report."""
        return [probe.facts() for probe in self.probes]
