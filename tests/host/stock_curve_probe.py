"""A curve written for ComfyUI in ComfyUI's own model: `stock_curve_probe.py COMFYUI BASE FOLDER`, JSON on the last line."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

comfyui, base, folder = sys.argv[1:4]

from run_comfyui import install_companions  # noqa: E402 (beside this file)

install_companions()
sys.path[0] = comfyui
sys.argv = ["main.py"]
importlib.import_module("utils.extra_config")  # first, as main.py does
from comfy.cli_args import args  # noqa: E402

args.cpu = True
args.base_directory = base

import comfy.ops  # noqa: E402
import torch  # noqa: E402
from comfy.ldm.minimax.model import MiniMaxH3Model  # noqa: E402
from comfy.model_detection import detect_unet_config  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from streamrender_h3.nodes.loader import load_h3, write_table_checkpoint  # noqa: E402
from streamrender_h3.nodes.loader.table_checkpoint import FOR_COMFYUI  # noqa: E402

TIMES = (0.0, 1 / 7, 0.4, 0.999)
told = {}
for dtype in (torch.float32, torch.bfloat16):
    source = load_h3(Path(folder) / "model.safetensors", dtype=dtype, device="cpu").modulation
    written = write_table_checkpoint(source, TIMES, Path(folder) / f"{dtype}.safetensors", kind=FOR_COMFYUI)
    state = load_file(written.path)
    config = detect_unet_config(state, "")
    kind = config.pop("image_model")
    network = MiniMaxH3Model(**config, dtype=dtype, device="cpu", operations=comfy.ops.disable_weight_init)
    network.load_state_dict(state, strict=True)
    tables = source.tables(TIMES)
    places = torch.tensor(tables.ladder).clamp(0, 1) * (len(network.adaln_t_table) - 1)
    low = places.floor().long().clamp(max=len(network.adaln_t_table) - 2)
    read = torch.lerp(network.adaln_t_table[low], network.adaln_t_table[low + 1], (places - low)[:, None])
    layers = [*zip((block.adaln_proj for block in network.blocks), tables.blocks, strict=True)]
    worst = 0.0
    with torch.no_grad():
        for projection, table in [*layers, (network.final_layer.adaln_proj, tables.final)]:
            found = torch.stack(list(projection(read)), -2).reshape(table.shape)
            worst = max(worst, (found.float() - table.float()).abs().max().item())
    told[str(dtype)] = {"kind": kind, "worst": worst}
print(json.dumps(told))
