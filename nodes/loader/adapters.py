"""Adapters on a loaded model: which of their changes meet a tensor of it, and the model after them.

Nothing that is loaded changes. What an adapter does to the layers is merged into new tensors (or handed to the host,
which merges when it brings the weights to the device); what it does to the modulation goes into the tables.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..model import H3
from .forms import BASIS, CURVE, FULL, LOW_RANK, NOTHING, TABLES, VECTORS
from .header import CheckpointError
from .layouts import native_names, native_shape
from .load import H3Model
from .lora import Adapter, Change, is_gate, read_adapter
from .modulation_source import ModulationSource
from .patches import REPLACEMENT, WeightPatch, merged
from .quant_linear import QuantLinear
from .residual import Residual

_SHOWN = 4

Tree = TypeVar("Tree", bound=nn.Module)

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Bound:
    """An adapter matched to a model.

    Attributes:
        layers: changes of the model's own tensors, by canonical name.
        modulation: changes of what its tables are made from, by canonical name.
        left: modules that meet nothing here, by reason.
        total: entries of the adapter.
        name, identity, strength, notes: the adapter's.
    """

    layers: Mapping[str, tuple[WeightPatch, ...]]
    modulation: Mapping[str, tuple[WeightPatch, ...]]
    left: Mapping[str, tuple[str, ...]]
    total: int
    name: str
    identity: str
    strength: float
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Entries that meet a tensor."""
        return self.total - sum(len(modules) for modules in self.left.values())

    @property
    def summary(self) -> str:
        """One line: how much was bound, and what was not and why."""
        left = "; ".join(f"{len(modules)} {reason} ({_some(modules)})" for reason, modules in self.left.items())
        return f"{self.name} at {self.strength:g}: bound {self.count} of {self.total}" + (
            f"; left: {left}" if left else ""
        )


def bind(adapter: Adapter, source: ModulationSource, strength: float = 1.0) -> Bound:
    """Match an adapter to the model of `source`, tensor by tensor, folding AdaLN factors into the checkpoint's form.

    Raises CheckpointError where nothing is bound, a block is not there, or a shape is another.
    """
    config = source.tensors.config
    names, whole = (
        set(native_names(range(config.layers), range(config.refiner_layers), form=form)) for form in (NOTHING, FULL)
    )
    modulated = whole - names
    layers: defaultdict[str, list[WeightPatch]] = defaultdict(list)
    modulation: defaultdict[str, list[WeightPatch]] = defaultdict(list)
    left: defaultdict[str, list[str]] = defaultdict(list)
    touches_time = any(change.tensor.startswith("time_embedder.") for change in adapter.changes)
    for change in adapter.changes:
        patch = replace(change.patch, strength=strength)
        if change.tensor in names:
            _require_shape(adapter, change, native_shape(change.tensor, config))
            layers[change.tensor].append(patch)
        elif is_gate(change.tensor):
            if patch.kind != REPLACEMENT and change.tensor not in source.tensors:
                left["of a sparse-attention branch, which this model lacks"].append(change.module)
                continue
            _require_shape(adapter, change, native_shape(change.tensor, config))
            layers[change.tensor].append(patch)
        elif change.tensor in modulated:
            folded = _fold(adapter, change, patch, source, touches_time)
            if isinstance(folded, str):
                left[folded].append(change.module)
            else:
                modulation[change.tensor].append(folded)
        else:
            raise _error(
                adapter,
                f"module '{change.module}' changes '{change.tensor}', which this model of {config.layers} blocks lacks",
                "an adapter made for this model",
            )
    bound = Bound(
        {name: tuple(patches) for name, patches in layers.items()},
        {name: tuple(patches) for name, patches in modulation.items()},
        {reason: tuple(modules) for reason, modules in left.items()},
        len(adapter.changes),
        adapter.path.name,
        adapter.identity,
        strength,
        adapter.notes,
    )
    if not bound.count:
        raise _error(
            adapter, f"nothing of it fits this model: {bound.summary}", "an adapter with a module of this model"
        )
    return bound


def adapted(model: H3Model, bound: Bound, *, merge: bool = True) -> H3Model:
    """The model after an adapter, on top of those it has. The given model stays as it is.

    With `merge` the new model has its own copy of every tensor that changes, merged from the file so that any number of
    adapters is rounded once. Without, its network is the given one, and the host has to patch it with `bound.layers`.
    """
    adapters = (*model.adapters, bound)
    source = adapted_source(model.modulation, adapters) if bound.modulation else model.modulation
    layers = joined(one.layers for one in adapters)
    network = _merged_network(model, layers, bound.layers) if merge else model.model
    gated = model.config.gate_compress or any(map(is_gate, bound.layers))
    digest = hashlib.sha256(f"{model.identity} {bound.identity} {bound.strength!r}".encode()).hexdigest()
    log.info("%s", bound.summary)
    return replace(
        model,
        model=network,
        config=replace(model.config, gate_compress=gated),
        modulation=source,
        identity=digest,
        adapters=adapters,
        notes=(*model.notes, bound.summary, *bound.notes),
    )


def adapted_source(source: ModulationSource, adapters: Sequence[Bound]) -> ModulationSource:
    """The modulation under all of `adapters`."""
    touching = tuple(f"{one.identity} {one.strength!r}" for one in adapters if one.modulation)
    return source.with_adapters(joined(one.modulation for one in adapters), touching)


def with_adapter(
    model: H3Model, path: str | os.PathLike[str], strength: float = 1.0, qkv_order: str = "auto"
) -> H3Model:
    """The model after the adapter at `path`, its weights merged. Raises CheckpointError for one that does not fit."""
    return adapted(model, bind(read_adapter(path, model.config, qkv_order), model.modulation, strength))


def _fold(
    adapter: Adapter, change: Change, patch: WeightPatch, source: ModulationSource, touches_time: bool
) -> WeightPatch | str:
    """The change as this checkpoint's form of the modulation takes it, or why it cannot."""
    tensors, form = source.tensors, source.tensors.form
    config = tensors.config
    if not form.any_time:
        if form is not TABLES or VECTORS not in tensors or source.given is not None:
            return "of the modulation, which is finished tables here"
        if touches_time:
            return "of the modulation, which moves with the time MLP and is finished tables here"
        wanted = native_shape(
            change.tensor, replace(config, time_dim=tensors(VECTORS).shape[1], time_hidden=1, freq_dim=2)
        )
        _require_shape(adapter, change, wanted)
        return patch
    if change.tensor.startswith("time_embedder."):
        if form is CURVE:
            return "of the time MLP, which is a curve table here"
        _require_shape(adapter, change, native_shape(change.tensor, config))
        return patch
    if form is not FULL and change.tensor.endswith(".weight"):
        width = tensors(change.tensor).shape[1]
        if form is LOW_RANK and patch.shape[1] == config.time_dim:
            _require_shape(adapter, change, native_shape(change.tensor, config))
            basis = tensors(BASIS).float()
            if patch.down is not None:
                return replace(patch, down=patch.down.float() @ basis.T)
            return replace(patch, value=patch.value.float() @ basis.T)
        if form is CURVE and patch.shape[1] != width:
            return "of full AdaLN projections, which are factors of a curve here"
    _require_shape(adapter, change, tuple(tensors(change.tensor).shape))
    return patch


def _require_shape(adapter: Adapter, change: Change, shape: tuple[int, ...]) -> None:
    rows = change.patch.rows
    wanted = shape if rows is None else (rows[1] - rows[0], *shape[1:])
    if change.patch.shape != wanted or (rows is not None and rows[1] > shape[0]):
        raise _error(
            adapter,
            f"module '{change.module}' changes a tensor of shape {list(change.patch.shape)}",
            f"the shape {list(wanted)} of '{change.tensor}' in this model",
        )


def _merged_network(
    model: H3Model, patches: Mapping[str, Sequence[WeightPatch]], fresh: Mapping[str, Sequence[WeightPatch]]
) -> H3:
    """A network that shares every module with the model's but those in `fresh`, whose weights are merged from the file."""
    network = _shared(model.model)
    for name, changes in fresh.items():
        path, _, kind = name.rpartition(".")
        if _absent_gate(network, name):
            parent, _, child = path.rpartition(".")
            setattr(network.get_submodule(parent), child, _new_gate(model, name, patches[name]))
            continue
        layer = network.get_submodule(path)
        old = getattr(layer, kind, None)
        if isinstance(old, Tensor) and not isinstance(layer, QuantLinear):
            weight = model.modulation.tensors(name).to(device=old.device, dtype=old.dtype)
            setattr(layer, kind, nn.Parameter(merged(weight, patches[name]), requires_grad=False))
        else:
            parent, _, child = path.rpartition(".")
            setattr(network.get_submodule(parent), child, Residual(layer, changes, model.model.dtype))
    return network


def _absent_gate(network: H3, name: str) -> bool:
    """Whether `name` is a gate of the sparse-attention branch that the network was made without."""
    return is_gate(name) and network.get_submodule(name.rsplit(".", 2)[0]).to_gate_compress is None


def _new_gate(model: H3Model, name: str, patches: Sequence[WeightPatch]) -> nn.Linear:
    """The layer of a gate that an adapter brings."""
    config, network, tensors = model.config, model.model, model.modulation.tensors
    device = network.condition_proj.bias.device
    shape = native_shape(name, config)
    old = tensors(name).to(device, network.dtype) if name in tensors else torch.zeros(shape, dtype=network.dtype)
    layer = nn.Linear(config.hidden, config.inner, bias=False, device="meta", dtype=network.dtype)
    layer.weight = nn.Parameter(merged(old.to(device), patches), requires_grad=False)
    return layer


def residuals(model: H3Model, patches: Mapping[str, Sequence[WeightPatch]]) -> dict[str, nn.Module]:
    """Modules to put in place of those whose weights are codes and cannot be merged into, and of absent gates, by name."""
    modules: dict[str, nn.Module] = {}
    network = model.model
    for name, changes in patches.items():
        path, _, kind = name.rpartition(".")
        if _absent_gate(network, name):
            modules[path] = _new_gate(model, name, changes)
            continue
        layer = network.get_submodule(path)
        if isinstance(layer, QuantLinear) or not isinstance(getattr(layer, kind, None), Tensor):
            modules[path] = Residual(layer, changes, network.dtype)
    return modules


def _shared(module: Tree) -> Tree:
    """A module tree of its own over the same parameters and buffers."""
    twin = copy.copy(module)
    tables = {name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)}
    vars(twin).update(tables)  # parameters, buffers and hooks: what is put into one tree is not seen in the other
    for name, child in module._modules.items():
        twin._modules[name] = child and _shared(child)
    return twin


def joined(parts: Iterable[Mapping[str, tuple[WeightPatch, ...]]]) -> dict[str, tuple[WeightPatch, ...]]:
    """Patches of several adapters by tensor, in order."""
    joined: defaultdict[str, tuple[WeightPatch, ...]] = defaultdict(tuple)
    for part in parts:
        for name, patches in part.items():
            joined[name] += patches
    return dict(joined)


def _error(adapter: Adapter, found: str, needed: str) -> CheckpointError:
    return CheckpointError(adapter.path, found=found, needed=needed, remedy="Pick the adapter made for this model.")


def _some(modules: Sequence[str]) -> str:
    return ", ".join(modules[:_SHOWN]) + (f" and {len(modules) - _SHOWN} more" if len(modules) > _SHOWN else "")
