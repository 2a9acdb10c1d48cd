"""H3 LoRA through ComfyUI's weight patches equals merging, and leaves other branches of the graph alone; what H3 Write
Tables Checkpoint writes loads again, here and in stock ComfyUI where that knows H3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from streamrender_h3.nodes.loader import write_h3
from streamrender_h3.nodes.model import H3, H3Config

TINY = H3Config(
    hidden=48,
    layers=2,
    refiner_layers=1,
    heads=2,
    head_dim=24,
    ffn=64,
    text_dim=32,
    freq_dim=16,
    time_hidden=32,
    time_dim=24,
    rope_freqs=4,
)


def write_model(folder: Path) -> Path:
    g = torch.Generator().manual_seed(4)
    model = H3(TINY)
    state = {n: torch.randn(t.shape, generator=g) * 0.1 + (t.ndim == 1) for n, t in model.state_dict().items()}
    state["rope.inv_freq"] = model.rope.inv_freq
    return write_h3(folder / "model.safetensors", state)[0]


def probe(name: str, *arguments: object) -> dict[str, dict[str, object]]:
    """What a script beside this file found in a process of its own, with ComfyUI's modules."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name)), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def told(comfyui, tmp_path_factory):
    """The nodes' doings with two adapters, one of the layers and one of the modulation too."""
    folder = tmp_path_factory.mktemp("lora")
    model_file = write_model(folder)
    g = torch.Generator().manual_seed(5)

    def pair(module: str, out: int, width: int, ends: tuple[str, str]) -> dict[str, torch.Tensor]:
        factors = torch.randn(3, width, generator=g) * 0.3, torch.randn(out, 3, generator=g) * 0.3
        return {f"{module}.{end}": factor for end, factor in zip(ends, factors, strict=True)}

    kohya, peft = ("lora_down.weight", "lora_up.weight"), ("lora_A.weight", "lora_B.weight")
    first = {}  # split q, k and v, swapped halves, alpha, a difference
    for part in "qkv":
        first |= pair(f"transformer_blocks.0.attn.to_{part}", 48, 48, kohya)
    first |= pair("transformer_blocks.1.ff.net.0.proj", 128, 48, kohya)
    first["transformer_blocks.1.ff.net.0.proj.alpha"] = torch.tensor(6.0)
    first["transformer_blocks.1.norm2.diff"] = torch.randn(48, generator=g) * 0.1
    second = pair("diffusion_model.blocks.0.attn.qkv_proj", 144, 48, peft)
    second |= pair("diffusion_model.blocks.1.adaln_proj.linear", 18 * 48, 24, peft)
    second |= pair("diffusion_model.time_embedder.proj_out", 24, 32, peft)
    second |= pair("diffusion_model.final_layer.video_out", 96, 48, peft)
    save_file(first, folder / "first.safetensors")
    save_file(second, folder / "second.safetensors")
    files = [folder / f"{name}.safetensors" for name in ("first", "second")]
    return probe("lora_probe.py", comfyui, folder / "base", model_file, *files)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_patched_weights_equal_merged_ones(told, dtype):
    found = told[dtype]
    tolerance = 1e-6 if dtype == "fp32" else 0.0
    assert max(found[name] for name in ("one", "both", "stronger", "one again")) <= tolerance
    assert found["tables"] == 0.0 and found["tables changed"] > 1e-2 and found["changes"] > 1e-2


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_another_branch_keeps_its_weights_and_nothing_is_loaded_again(told, dtype):
    found = told[dtype]
    assert found["base after the others"] == 0.0
    assert found["same network"] and found["off"] and found["identities"] == 4
    assert found["summary"] == "second.safetensors at 1: bound 4 of 4"


def test_an_adapter_stands_beside_weights_in_codes(told):
    assert told["quantised"] == {"residuals": 2, "restored": True}


def test_a_written_tables_checkpoint_is_the_model_with_its_adapters(told):
    assert told["written"] == {"tables": 0.0, "weights": 0.0, "again": True, "folder": "diffusion_models"}


def test_names_that_leave_the_folder_are_refused(told):
    assert all("a plain file name" in message for message in told["refused"].values()) and len(told["refused"]) == 4


def test_stock_comfyui_reads_the_curve_exactly(comfyui, tmp_path):
    if not (comfyui / "comfy" / "ldm" / "minimax" / "model.py").is_file():
        pytest.skip("this ComfyUI has no MiniMax-H3 of its own")
    write_model(tmp_path)
    found = probe("stock_curve_probe.py", comfyui, tmp_path / "base", tmp_path)
    assert len(found) == 2
    assert all(one == {"kind": "minimax_h3", "worst": 0.0} for one in found.values())
