"""Modules in the care of the host, and changes of their weights on top."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from .memory import device


def managed(module: nn.Module, partly: Iterable[nn.Module] = ()) -> Any:
    """Hand a module to the host's memory management; `on_device` brings it to the device when it is needed.

    The layers in `partly` may stay in host memory when the device is short of it; whoever runs them has to fetch them.
    """
    from comfy import model_management
    from comfy.model_patcher import ModelPatcher

    for layer in partly:
        layer.comfy_cast_weights = False  # type: ignore[assignment]  # the attribute by which the host knows such layers
    return ModelPatcher(module, load_device=device(), offload_device=model_management.unet_offload_device())


def patched(patcher: Any, weights: Mapping[str, Sequence[Any]], modules: Mapping[str, nn.Module] | None = None) -> Any:
    """A patcher over the same module with changes of weights on top of its own; the given one stays as it is.

    `weights` are patches by tensor name with the fields of the loader's `WeightPatch`; the host merges them in float32 when
    it brings the weights to the device, and takes them back when another patcher of the module is used. `modules` are put
    in place of submodules for as long. Raises `ValueError` where a tensor is not in the module.
    """
    from comfy.weight_adapter import LoRAAdapter

    clone = patcher.clone()
    for level in range(max((len(patches) for patches in weights.values()), default=0)):
        groups: dict[float, dict[Any, Any]] = {}
        for name, patches in weights.items():
            if level < len(patches):
                one = patches[level]
                key = name if one.rows is None else (name, (0, one.rows[0], one.rows[1] - one.rows[0]))
                change: Any = ("set" if one.kind == "replacement" else "diff", (one.value,))
                if one.down is not None:
                    change = LoRAAdapter(set(), (one.value, one.down, one.alpha, None, None, None))
                groups.setdefault(one.strength, {})[key] = change
        for strength, changes in groups.items():
            missing = set(changes) - set(clone.add_patches(changes, strength))
            if missing:
                raise ValueError(f"the host's model has no tensor {sorted(map(str, missing))[0]}; load the model again")
    for name, module in (modules or {}).items():
        clone.add_object_patch(name, module)
    return clone
