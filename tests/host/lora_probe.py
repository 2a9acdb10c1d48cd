"""Adapters through ComfyUI's own patcher: `lora_probe.py COMFYUI BASE MODEL LORA LORA`, JSON on the last line.

Loads MODEL with the host's modules on the CPU, patches it through the pack's host room, and compares with the weights and
outputs that merging in plain Python gives.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

comfyui, base, model_file, first, second = sys.argv[1:6]

from run_comfyui import install_companions  # noqa: E402 (beside this file)

install_companions()
sys.path[0] = comfyui
sys.argv = ["main.py"]
importlib.import_module("utils.extra_config")  # first, as main.py does
from comfy.cli_args import args  # noqa: E402

args.cpu = True
args.base_directory = base

import torch  # noqa: E402
from streamrender_h3.nodes import host  # noqa: E402
from streamrender_h3.nodes.loader import adapted, bind, load_h3, read_adapter  # noqa: E402
from streamrender_h3.nodes.loader import node as nodes  # noqa: E402

TIMES = (0.0, 0.4)
told: dict[str, object] = {}


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def worst(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    assert found.keys() == wanted.keys()
    return max((found[name].float() - wanted[name].float()).abs().max().item() for name in found)


def loaded(value: nodes.HostModel) -> dict[str, torch.Tensor]:
    """Weights while the host has the model on its device."""
    with host.on_device([value.patcher], 0):
        return state_of(value.h3.model)


for dtype in ("fp32", "bf16"):
    chosen = nodes.DTYPES[dtype]
    h3 = load_h3(model_file, dtype=chosen, device="cpu")
    clean = state_of(h3.model)
    start = nodes.HostModel(h3, host.managed(h3.model))
    host.model_path = lambda name, kind, also=(): name  # the probe names files by their paths

    def put(value: nodes.HostModel, file: str, strength: float) -> nodes.HostModel:
        return nodes.LoRANode.execute(value, file, strength).args[0]

    def plain(files: list[tuple[str, float]], h3=h3):
        result = h3
        for file, strength in files:
            result = adapted(result, bind(read_adapter(file, h3.config), result.modulation, strength))
        return result

    one = put(start, first, 0.5)
    both = put(one, second, 0.25)
    stronger = put(start, first, 1.5)
    told[dtype] = {
        "one": worst(loaded(one), state_of(plain([(first, 0.5)]).model)),
        "both": worst(loaded(both), state_of(plain([(first, 0.5), (second, 0.25)]).model)),
        "stronger": worst(loaded(stronger), state_of(plain([(first, 1.5)]).model)),
        "base after the others": worst(loaded(start), clean),
        "one again": worst(loaded(one), state_of(plain([(first, 0.5)]).model)),
        "changes": worst(loaded(one), clean),
        "tables": (
            both.h3.modulation.tables(TIMES).blocks
            - plain([(first, 0.5), (second, 0.25)]).modulation.tables(TIMES).blocks
        )
        .abs()
        .max()
        .item(),
        "tables changed": (both.h3.modulation.tables(TIMES).blocks - start.h3.modulation.tables(TIMES).blocks)
        .float()
        .abs()
        .max()
        .item(),
        "same network": one.h3.model is start.h3.model,
        "off": put(start, first, 0.0) is start,
        "summary": nodes.LoRANode.execute(start, second, 1.0).args[1],
        "identities": len({start.h3.identity, one.h3.identity, both.h3.identity, stronger.h3.identity}),
    }
    for value in (one, both, stronger, start):
        value.patcher.detach()

quantised = load_h3(model_file, dtype=torch.float32, device="cpu", weights="fp8")
start = nodes.HostModel(quantised, host.managed(quantised.model))
value = nodes.LoRANode.execute(start, first, 0.5).args[0]
before = [type(m).__name__ for m in quantised.model.modules()]
with host.on_device([value.patcher], 0):
    inside = sum(type(module).__name__ == "Residual" for module in value.h3.model.modules())
with host.on_device([start.patcher], 0):
    after = [type(m).__name__ for m in quantised.model.modules()]
told["quantised"] = {"residuals": inside, "restored": before == after}

writer = nodes.WriteTablesCheckpointNode.PREPARE_CLASS_CLONE({})
h3 = load_h3(model_file, dtype=torch.float32, device="cpu")
value = nodes.LoRANode.execute(nodes.HostModel(h3, host.managed(h3.model)), second, 0.5).args[0]
chosen = {"file_name": "smaller", "steps": 2, "kind": "tables", "video_shift": 6.0, "audio_shift": 1.5}
path = Path(writer.execute(value, **chosen).args[0])
merged, written = adapted(h3, value.h3.adapters[0]), load_h3(path, dtype=torch.float32, device="cpu")
times = written.modulation.times
assert times is not None
told["written"] = {
    "tables": (written.modulation.tables(times).blocks - merged.modulation.tables(times).blocks).abs().max().item(),
    "weights": worst(state_of(written.model), state_of(merged.model)),
    "again": "was there already" in writer.execute(value, **chosen).ui["text"][0],
    "folder": path.parent.name,
}
refused = {}
for name in ("../escape", "a/b", "", "C:thing"):
    try:
        writer.execute(value, **{**chosen, "file_name": name})
    except ValueError as error:
        refused[name] = str(error)
told["refused"] = refused

print(json.dumps(told))
