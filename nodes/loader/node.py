"""ComfyUI nodes: Load H3 Model, H3 LoRA, H3 Write Tables Checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from comfy_api.latest import io

from ...kernels.choice import offer_host_attention
from .. import host
from ..host import CATEGORY, H3_MODEL, socket
from ..sampler.grids import AUDIO_SHIFT, MAX_STEPS, VIDEO_SHIFT, TimeGrid
from . import H3Model, TableCache, adapted, bind, load_h3, read_adapter, write_table_checkpoint
from .adapters import joined, residuals
from .node_memory import large_layers, planned_text
from .quant_linear import AS_FP8, STORED
from .table_cache import WORTH_BYTES
from .table_checkpoint import FOR_COMFYUI, KINDS

KIND, LORAS = "diffusion_models", "loras"
DTYPES = {"auto": None, "bf16": torch.bfloat16, "fp32": torch.float32}
QKV_ORDERS = ["auto", "stacked", "grouped"]
GATE_ORDERS = ["auto", "gate first", "up first"]
FROM_MODEL = "auto"
AS_STORED = "as stored"
WEIGHTS_WORDS = {AS_STORED: STORED, "fp8": AS_FP8}
TABLES_WORDS = ("adaln", "table")  # in the names of files worth offering as tables


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
                io.Combo.Input(
                    "gate_order",
                    options=GATE_ORDERS,
                    default="auto",
                    tooltip="Which half of the first MLP projection comes first. Leave 'auto': native names have the gate first, "
                    "diffusers names the up half, and no file says so itself. A wrong choice gives noise.",
                ),
                io.Combo.Input(
                    "tables",
                    options=[FROM_MODEL, *_table_names()],
                    default=FROM_MODEL,
                    tooltip="Finished AdaLN tables in a file of their own. 'auto' makes them from the model, once per number of "
                    "steps, or takes the one file of tables beside a model that has none.",
                ),
                io.Combo.Input(
                    "weights",
                    options=list(WEIGHTS_WORDS),
                    default=AS_STORED,
                    tooltip="'as stored' keeps the file's numbers, also quantised ones. 'fp8' quantises the large layers while "
                    "loading, one scale per row: half the memory of bf16, a little less exact.",
                ),
            ],
            outputs=[socket(H3_MODEL).Output("model", display_name="model")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        model_name: str,
        dtype: str,
        qkv_order: str,
        gate_order: str = "auto",
        tables: str = FROM_MODEL,
        weights: str = AS_STORED,
    ) -> io.NodeOutput:
        if dtype not in DTYPES or qkv_order not in QKV_ORDERS or gate_order not in GATE_ORDERS:
            raise ValueError(
                f"Load H3 Model: dtype {dtype!r}, qkv_order {qkv_order!r} and gate_order {gate_order!r} arrived; choose "
                f"dtype from {list(DTYPES)}, qkv_order from {QKV_ORDERS} and gate_order from {GATE_ORDERS}"
            )
        if weights not in WEIGHTS_WORDS:
            raise ValueError(f"Load H3 Model: weights {weights!r} arrived; choose one of {list(WEIGHTS_WORDS)}")
        chosen = DTYPES[dtype] or (torch.bfloat16 if host.prefers_bfloat16() else torch.float32)
        path, form = host.model_path(model_name, KIND), WEIGHTS_WORDS[weights]
        plan = planned_text(path, chosen, form)
        host.show_text(plan, cls.hidden.unique_id)
        h3 = load_h3(
            path,
            dtype=chosen,
            device="cpu",
            qkv_order=qkv_order,
            gate_order=gate_order,
            tables=None if tables == FROM_MODEL else host.model_path(tables, KIND),
            cache=TableCache(host.cache_folder("tables"), worth_bytes=WORTH_BYTES),
            weights=form,
            quantise_on=host.device(),
        )
        h3.modulation.progress = _building()
        patcher = host.managed(h3.model, large_layers(h3.model))
        offer_host_attention(host.attention())
        return io.NodeOutput(HostModel(h3, patcher), ui={"text": (plan,)})


class LoRANode(io.ComfyNode):
    """Puts an adapter on a model; the model that came in stays as it is for other branches of the graph."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_LoRA",
            display_name="H3 LoRA",
            category=CATEGORY,
            description="Applies an adapter made for MiniMax-H3 in any of the published spellings. Several nodes can follow each "
            "other. What the adapter changes of the noise-level modulation goes into the lookup tables.",
            inputs=[
                socket(H3_MODEL).Input("model", tooltip="From Load H3 Model or another H3 LoRA."),
                io.Combo.Input(
                    "lora_name",
                    options=host.model_names(LORAS),
                    tooltip="An adapter from models/loras, as .safetensors.",
                ),
                io.Float.Input(
                    "strength",
                    default=1.0,
                    min=-10.0,
                    max=10.0,
                    step=0.05,
                    tooltip="How strongly it acts; 1 is as trained, 0 not at all. Changing it does not read the model again.",
                ),
                io.Combo.Input(
                    "qkv_order",
                    options=QKV_ORDERS,
                    default="auto",
                    tooltip="How the rows of fused attention factors are stored. Leave 'auto'; only DiffSynth-Studio groups them, "
                    "which shows in its names.",
                ),
            ],
            outputs=[
                socket(H3_MODEL).Output("patched", display_name="model"),
                io.String.Output("summary", display_name="summary", tooltip="How much of the adapter met the model."),
            ],
        )

    @classmethod
    def execute(cls, model: HostModel, lora_name: str, strength: float, qkv_order: str = "auto") -> io.NodeOutput:
        adapter = read_adapter(host.model_path(lora_name, LORAS), model.h3.config, qkv_order)
        bound = bind(adapter, model.h3.modulation, strength)
        if not strength:
            return io.NodeOutput(model, f"{bound.name} at 0: not applied")
        h3 = adapted(model.h3, bound, merge=False)
        beside = residuals(h3, joined(one.layers for one in h3.adapters))
        weights = {name: patches for name, patches in bound.layers.items() if name.rpartition(".")[0] not in beside}
        return io.NodeOutput(replace(model, h3=h3, patcher=host.patched(model.patcher, weights, beside)), bound.summary)


class WriteTablesCheckpointNode(io.ComfyNode):
    """Writes the model with finished tables as a checkpoint of its own."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_WriteTablesCheckpoint",
            display_name="H3 Write Tables Checkpoint",
            category=CATEGORY,
            description="Writes the model with its noise-level modulation as finished tables: 40 GB instead of 66, for one number "
            "of steps. Load H3 Model reads it; as a curve stock ComfyUI reads it too. LoRAs on the model are merged.",
            inputs=[
                socket(H3_MODEL).Input("model", tooltip="From Load H3 Model or H3 LoRA."),
                io.String.Input(
                    "file_name",
                    default="h3_tables",
                    tooltip="Name of the new file in models/diffusion_models, without ending. An existing file is not replaced.",
                ),
                io.Int.Input(
                    "steps",
                    default=2,
                    min=1,
                    max=MAX_STEPS,
                    tooltip="Denoising steps per chunk the tables are for, as in H3 Stream Sampler. Other numbers cannot be "
                    "rendered with the file.",
                ),
                io.Combo.Input(
                    "kind",
                    options=list(KINDS),
                    default=KINDS[0],
                    tooltip=f"'{KINDS[0]}' for Load H3 Model, where it takes LoRAs of the modulation later. '{FOR_COMFYUI}' is "
                    "read by stock ComfyUI and is exact at the steps' noise levels only.",
                ),
                io.Float.Input(
                    "video_shift",
                    default=VIDEO_SHIFT,
                    min=0.01,
                    max=100.0,
                    step=0.01,
                    tooltip="Shift of the picture's noise levels; 6 for StreamRender-H3.",
                ),
                io.Float.Input(
                    "audio_shift",
                    default=AUDIO_SHIFT,
                    min=0.01,
                    max=100.0,
                    step=0.01,
                    tooltip="Shift of the sound's noise levels; 1.5 for StreamRender-H3.",
                ),
            ],
            outputs=[io.String.Output("path", display_name="path", tooltip="Where the file is.")],
            is_output_node=True,
        )

    @classmethod
    def execute(
        cls, model: HostModel, file_name: str, steps: int, kind: str, video_shift: float, audio_shift: float
    ) -> io.NodeOutput:
        path = host.new_model_path(file_name, KIND)
        grid = TimeGrid.trailing(steps, video_shift, audio_shift)
        written = write_table_checkpoint(
            model.h3.modulation, grid.h3_times(), path, adapters=model.h3.adapters, kind=kind, progress=_building()
        )
        note = "was there already" if written.there else "written"
        return io.NodeOutput(
            str(written.path), ui={"text": (f"{written.path.name}: {written.nbytes / 1e9:.1f} GB, {note}",)}
        )


def _table_names() -> list[str]:
    return [name for name in host.model_names(KIND) if any(word in name.lower() for word in TABLES_WORDS)]


def _building() -> Callable[[int, int], None]:
    """Moves the running node's bar while tables are built, and stops when the person cancels."""
    bar: list[Callable[[int, Any], None]] = []

    def show(done: int, total: int) -> None:
        host.check_interrupted()
        if done == 1 or not bar:
            bar[:] = [host.progress(total, None)]
        bar[0](done, None)

    return show
