"""ComfyUI node: Load H3 Model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from comfy_api.latest import io

from .. import host
from ..host import CATEGORY, H3_MODEL, socket
from . import H3Model, load_h3

KIND = "diffusion_models"
DTYPES = {"auto": None, "bf16": torch.bfloat16, "fp32": torch.float32}
QKV_ORDERS = ["auto", "stacked", "grouped"]


@dataclass(frozen=True)
class HostModel:
    """What travels on H3_MODEL: the transformer and the host's handle on its memory."""

    h3: H3Model
    patcher: Any


class LoadModelNode(io.ComfyNode):
    """Reads an H3 checkpoint; its AdaLN projections stay on disk and become lookup tables."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_LoadModel",
            display_name="Load H3 Model",
            category=CATEGORY,
            description="Loads a MiniMax-H3 Ref2VA transformer, such as StreamRender-H3. The 26 GB that only depend on the "
            "noise level stay on disk and are replaced by small lookup tables.",
            inputs=[
                io.Combo.Input(
                    "model_name",
                    options=host.model_names(KIND),
                    tooltip="A checkpoint from models/diffusion_models: one file, or any '-of-' shard (all its shards are "
                    "loaded). The layout is recognised by its tensors.",
                ),
                io.Combo.Input(
                    "dtype",
                    options=list(DTYPES),
                    default="auto",
                    tooltip="Number format of weights and computation. 'auto' takes bf16 where the device computes it well, "
                    "else fp32. bf16 needs half the memory.",
                ),
                io.Combo.Input(
                    "qkv_order",
                    options=QKV_ORDERS,
                    default="auto",
                    tooltip="How attention rows are stored. Leave 'auto'; only MiniMax's own shards are grouped, and no file "
                    "says so itself. A wrong choice gives noise.",
                ),
            ],
            outputs=[socket(H3_MODEL).Output("model", display_name="model")],
        )

    @classmethod
    def execute(cls, model_name: str, dtype: str, qkv_order: str) -> io.NodeOutput:
        if dtype not in DTYPES or qkv_order not in QKV_ORDERS:
            raise ValueError(
                f"Load H3 Model: dtype {dtype!r} and qkv_order {qkv_order!r} arrived; choose dtype from {list(DTYPES)} and "
                f"qkv_order from {QKV_ORDERS}"
            )
        chosen = DTYPES[dtype] or (torch.bfloat16 if host.prefers_bfloat16() else torch.float32)
        h3 = load_h3(host.model_path(model_name, KIND), dtype=chosen, device="cpu", qkv_order=qkv_order)
        return io.NodeOutput(HostModel(h3, host.managed(h3.model)))
