"""AdaLN lookup tables: every modulation vector a fixed time grid can ask for, so that the projections can be dropped.

A time is looked up by the exact bits of its float32 value. Another time is an error: never the nearest, never a blend.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .config import BLOCK_SLOTS, FINAL_SLOTS, MODALITIES, ConfigError, H3Config
from .modulation import Modulation, distinct_times, time_vector

FORMAT = "streamrender-h3 adaln tables 1"
_ROWS_AT_ONCE = 8192  # of a projection, 88 MB in float32


class TableError(ValueError):
    """A table file or table tensors that do not fit together or do not fit the model."""


class OffLadderError(ValueError):
    """A time that the table was not built for."""


@dataclass(frozen=True, eq=False)
class LookedUpModulation:
    """The table rows of one forward pass."""

    times: tuple[float, ...]
    blocks: Tensor  # [L, 3M, 6, hidden]
    last: Tensor  # [M, 2, hidden]

    def block(self, index: int) -> Tensor:
        return self.blocks[index]

    def final(self) -> Tensor:
        return self.last


@dataclass(frozen=True, eq=False)
class AdaLNTables:
    """Modulation of n times (the ladder) for all L blocks and the final layer.

    `identity` says what the tables were made from (checkpoint, LoRAs, schedule); it is stored with them.
    """

    times: Tensor  # [n] float32 on the CPU, ascending and distinct
    blocks: Tensor  # [L, n, 3, 6, hidden]
    final: Tensor  # [n, 2, hidden]
    identity: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, hidden = self.times.numel(), self.blocks.shape[-1]
        if self.blocks.shape[1:] != (n, MODALITIES, BLOCK_SLOTS, hidden) or self.final.shape != (
            n,
            FINAL_SLOTS,
            hidden,
        ):
            raise TableError(
                f"AdaLN tables for {n} times arrived with blocks {tuple(self.blocks.shape)} and final "
                f"{tuple(self.final.shape)}; needed are [layers, {n}, {MODALITIES}, {BLOCK_SLOTS}, hidden] and "
                f"[{n}, {FINAL_SLOTS}, hidden]. Build the tables again."
            )
        if self.ladder != distinct_times(self.ladder):
            raise TableError(
                f"AdaLN tables arrived with times {list(self.ladder)}; they must be float32, ascending and distinct. "
                "Build the tables again."
            )

    @property
    def ladder(self) -> tuple[float, ...]:
        return tuple(self.times.tolist())

    def at(self, times: Iterable[float]) -> Modulation:
        """Modulation for the sorted distinct float32 values of `times`. Raises OffLadderError for any other time."""
        distinct = distinct_times(times)
        place = {time: index for index, time in enumerate(self.ladder)}
        for time in distinct:
            if time not in place:
                raise OffLadderError(
                    f"time {time!r} was asked for; the AdaLN tables hold {list(self.ladder)}. "
                    "Build tables for this time grid, or use the grid they were built for."
                )
        index = torch.tensor([place[time] for time in distinct], device=self.blocks.device)
        return LookedUpModulation(distinct, self.blocks[:, index].flatten(1, 2), self.final[index])

    def to(self, device: torch.device | str) -> AdaLNTables:
        return replace(self, blocks=self.blocks.to(device), final=self.final.to(device))

    def check(self, config: H3Config) -> None:
        """Raise TableError if these tables cannot belong to a model of this size."""
        layers, hidden = self.blocks.shape[0], self.blocks.shape[-1]
        if (layers, hidden) != (config.layers, config.hidden):
            raise TableError(
                f"AdaLN tables for {layers} blocks of width {hidden} arrived; the model has {config.layers} blocks "
                f"of width {config.hidden}. Use the tables built from this checkpoint."
            )


def embed_times(
    tensor: Callable[[str], Tensor], config: H3Config, times: Iterable[float], dtype: torch.dtype | None
) -> Tensor:
    """What full AdaLN projections read at the distinct `times`: float32 [n, time_dim], rounded to `dtype` if given."""
    if not config.has_time_mlp:
        raise ConfigError(
            "times were to be embedded by a checkpoint without time MLP; the full form is needed. "
            "Use the unpruned checkpoint."
        )

    def linear(name: str) -> Callable[[Tensor], Tensor]:
        return partial(F.linear, weight=tensor(f"{name}.weight").float(), bias=tensor(f"{name}.bias").float())

    proj_in, proj_out = linear("time_embedder.proj_in"), linear("time_embedder.proj_out")
    device = tensor("time_embedder.proj_in.bias").device
    vector = time_vector(distinct_times(times), config.freq_dim, proj_in, proj_out, device)
    return vector if dtype is None else vector.to(dtype).float()


def build_tables(
    tensor: Callable[[str], Tensor],
    config: H3Config,
    times: Iterable[float],
    dtype: torch.dtype,
    identity: Mapping[str, str] | None = None,
    *,
    coordinates: Tensor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AdaLNTables:
    """Tables of the distinct `times`, in `dtype`, from the AdaLN projections after any LoRA.

    `tensor(name)` returns a native tensor; each projection (520 MB in the released model) is asked for once and let go
    before the next. `coordinates` float32 [n, k] is what the projections of a low-rank or curve checkpoint read; these
    are evaluated in float32 as they are. Without it the projections are full ones, and equal the full model in `dtype`
    up to the rounding of its matrix products: those here are float32.

    `progress(done, total)` is called after every layer and may raise to interrupt.
    """
    ladder = distinct_times(times)
    exact = coordinates is not None
    vector = embed_times(tensor, config, ladder, dtype) if coordinates is None else coordinates.float()
    layers = [*range(config.layers), None]
    tables = []
    for done, layer in enumerate(layers):
        tables.append(layer_table(tensor, config, vector, dtype, layer, exact=exact))
        if progress:
            progress(done + 1, len(layers))
    blocks = torch.stack(tables[:-1])
    return AdaLNTables(torch.tensor(ladder, dtype=torch.float32), blocks, tables[-1], dict(identity or {}))


def layer_table(
    tensor: Callable[[str], Tensor],
    config: H3Config,
    vector: Tensor,
    dtype: torch.dtype,
    layer: int | None,
    *,
    exact: bool = False,
) -> Tensor:
    """One layer's table in `dtype` for `vector` float32 [n, k]: [n, 3, 6, hidden] of a block, [n, 2, hidden] for None.

    A few rows of the projection are widened to float32 at a time. Weights are first rounded to `dtype`, as the model
    holds them, unless `exact`.
    """
    name = "final_layer.adaln_proj" if layer is None else f"blocks.{layer}.adaln_proj"
    shape = (FINAL_SLOTS, config.hidden) if layer is None else (MODALITIES, BLOCK_SLOTS, config.hidden)
    weight, bias = (tensor(f"{name}.linear.{kind}") for kind in ("weight", "bias"))

    def read(part: Tensor) -> Tensor:
        return part if exact else part.to(dtype)

    table = torch.empty(len(vector), len(weight), device=weight.device)
    widened = torch.empty(min(_ROWS_AT_ONCE, len(weight)), weight.shape[1], device=weight.device)
    for start in range(0, len(weight), _ROWS_AT_ONCE):
        rows = read(weight[start : start + _ROWS_AT_ONCE])
        part = widened[: len(rows)].copy_(rows)
        table[:, start : start + len(rows)] = (part @ vector.T).T
    table += read(bias).float()
    return table.unflatten(1, shape).to(dtype)


def save_tables(tables: AdaLNTables, path: str | Path) -> None:
    """Write a safetensors file: adaln.times, adaln.blocks, adaln.final; the identity as JSON in the metadata."""
    tensors = {"adaln.times": tables.times, "adaln.blocks": tables.blocks, "adaln.final": tables.final}
    metadata = {"format": FORMAT, "identity": json.dumps(dict(tables.identity), sort_keys=True)}
    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, path, metadata=metadata)


def load_tables(path: str | Path, config: H3Config) -> AdaLNTables:
    """Read what `save_tables` wrote, for a model of this size. Raises TableError for any other file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise TableError(
                    f"{path} says its format is {metadata.get('format')!r}; needed is {FORMAT!r}. "
                    "Write it with `tables`."
                )
            times, blocks, final = (file.get_tensor(f"adaln.{name}") for name in ("times", "blocks", "final"))
    except SafetensorError as error:
        raise TableError(f"{path} cannot be read as AdaLN tables ({error}). Write it again with `tables`.") from error
    tables = AdaLNTables(times, blocks, final, json.loads(metadata["identity"]))
    tables.check(config)
    return tables
