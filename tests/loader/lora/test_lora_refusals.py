"""Adapters that do not fit are refused by name, and published ones bind whole."""

import pytest
import torch
from lora_files import save
from streamrender_h3.nodes.loader import (
    CheckpointError,
    bind,
    read_adapter,
    with_adapter,
)
from streamrender_h3.nodes.loader.load import modulation_of


def refusal(path, base, *words):
    with pytest.raises(CheckpointError) as caught:
        with_adapter(base, path)
    assert caught.value.path == path and caught.value.needed and caught.value.remedy.endswith(".")
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_half_a_pair(tmp_path, base, factors):
    down, _ = factors["blocks.0.mlp.fc1"]
    path = save(tmp_path / "a.safetensors", {"blocks.0.mlp.fc1.lora_A.weight": down})
    refusal(path, base, "'blocks.0.mlp.fc1.lora_A.weight' has no partner", "up factor of module 'blocks.0.mlp.fc1'")
    path = save(tmp_path / "b.safetensors", {"blocks.0.mlp.fc1.alpha": torch.tensor(1.0)})
    refusal(path, base, "stands alone")


def test_unknown_keys_and_unknown_modules(tmp_path, base, factors):
    down, up = factors["blocks.0.mlp.fc1"]
    pair = {"blocks.0.mlp.fc1.lora_A.weight": down, "blocks.0.mlp.fc1.lora_B.weight": up}
    path = save(tmp_path / "a.safetensors", {**pair, "blocks.0.mlp.fc1.dora_scale": torch.ones(320)})
    refusal(path, base, "1 of its 3 tensors are no part of an adapter", "dora_scale")
    path = save(tmp_path / "b.safetensors", {**pair, "double_blocks.0.img_attn.lora_A.weight": down.clone()})
    refusal(path, base, "name no module of an H3 model", "double_blocks.0.img_attn.lora_A.weight")
    path = save(tmp_path / "c.safetensors", {"some.weight": torch.ones(2)})
    refusal(path, base, "no part of an adapter", "whole models go into Load H3 Model")


def test_wrong_shapes_and_blocks_that_are_not_there(tmp_path, base, factors):
    down, up = factors["blocks.0.mlp.fc1"]
    name = "blocks.{}.mlp.fc1.lora_{}.weight".format
    path = save(tmp_path / "a.safetensors", {name(0, "A"): down[:, :50], name(0, "B"): up})
    refusal(path, base, "module 'blocks.0.mlp.fc1'", "[320, 50]", "[320, 96]", "blocks.0.mlp.fc1.weight")
    path = save(tmp_path / "b.safetensors", {name(0, "A"): down[:2], name(0, "B"): up})
    refusal(path, base, "do not make a product", "[r, in]")
    path = save(tmp_path / "c.safetensors", {name(7, "A"): down, name(7, "B"): up})
    refusal(path, base, "blocks.7.mlp.fc1", "this model of 3 blocks lacks")


def test_nothing_bound_is_an_error(tmp_path, base):
    path = save(tmp_path / "a.safetensors", {"blocks.0.attn.to_gate_compress.diff": torch.ones(128, 96)})
    refusal(path, base, "nothing of it fits this model", "bound 0 of 1", "sparse-attention branch")


# -------------------------------------------------------------------------------------- published adapters, in their true size


@pytest.mark.parametrize(
    ("name", "prefix", "ends", "modules", "tensors"),
    [
        ("RAVEN", "base_model.model.dit.", ("lora_A.weight", "lora_B.weight"), "core adaln time boundary", 532),
        ("TaoMate", "", ("lora_a", "lora_b"), "core", 416),
        ("larryvrh", "diffusion_model.", ("lora_A.weight", "lora_B.weight"), "core adaln", 518),
        ("lightx2v", "", ("lora_A.weight", "lora_B.weight"), "split", 624),
    ],
)
def test_published_adapters_bind_whole_to_the_released_model(name, prefix, ends, modules, tensors, tmp_path, sparse):
    """Headers of the true size over holes: what is counted is how many of the published modules meet a tensor."""
    d, inner, f, t, rank = 5376, 7168, 14336, 2688, 2
    linear = {"attn.qkv_proj": (3 * inner, d), "attn.out_proj": (d, inner), "mlp.fc1": (2 * f, d), "mlp.fc2": (d, f)}
    split = {f"attn.to_{x}": (inner, d) for x in "qkv"} | {
        "attn.to_out.0": (d, inner),
        "ff.net.0.proj": (2 * f, d),
        "ff.net.2": (d, f),
    }
    shapes = {}
    for stack, count, theirs in (
        ("blocks", 50, "transformer_blocks"),
        ("token_refiner.blocks", 2, "token_refiner.refiner_blocks"),
    ):
        for i in range(count):
            if "core" in modules:
                shapes |= {f"{stack}.{i}.{module}": shape for module, shape in linear.items()}
            if "split" in modules:
                shapes |= {f"{theirs}.{i}.{module}": shape for module, shape in split.items()}
    if "adaln" in modules:
        shapes |= {f"blocks.{i}.adaln_proj.linear": (18 * d, t) for i in range(50)}
        shapes["final_layer.adaln_proj.linear"] = (2 * d, t)
    if "time" in modules:
        shapes |= {"time_embedder.proj_in": (5376, 256), "time_embedder.proj_out": (t, 5376)}
        shapes |= {"video_patch_proj": (d, 96), "audio_patch_proj": (d, 32), "condition_proj": (d, 5120)}
        shapes |= {"final_layer.video_out": (96, d), "final_layer.audio_out": (32, d)}
    header = {}
    for module, (out, width) in shapes.items():
        header[f"{prefix}{module}.{ends[0]}"] = ("F32", (rank, width))
        header[f"{prefix}{module}.{ends[1]}"] = ("F32", (out, rank))
    assert len(header) == tensors
    (tmp_path / "lora").mkdir()
    file = sparse.write(tmp_path / "lora" / "a.safetensors", header)
    source = modulation_of(sparse.write(tmp_path / "sr.safetensors", sparse.release()))
    bound = bind(read_adapter(file, source.tensors.config), source)
    assert bound.summary == f"a.safetensors at 1: bound {tensors // 2} of {tensors // 2}"
    if name == "larryvrh":
        tensors = {n: e for n, e in sparse.release().items() if "adaln" not in n and "time_embedder" not in n}
        tensors |= {"dit.adaln_times": ("F32", (4,)), "dit.final_layer.adaln_table": ("BF16", (4, 2 * d))}
        tensors |= {f"dit.blocks.{i}.adaln_table": ("BF16", (4, 18 * d)) for i in range(50)}
        baked = modulation_of(sparse.write(tmp_path / "baked.safetensors", tensors))
        bound = bind(read_adapter(file, baked.tensors.config), baked)
        assert (
            "bound 208 of 259" in bound.summary
            and "51 of the modulation, which is finished tables here" in bound.summary
        )
