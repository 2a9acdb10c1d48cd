"""`inspect_file` tells what a checkpoint is from its header, whatever its size."""

import json
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import save_file
from streamrender_h3.nodes.loader import CheckpointError, inspect_file, write_h3
from streamrender_h3.nodes.model import H3Config


def test_the_full_size_release_is_counted_in_under_two_seconds(tmp_path, sparse):
    path = sparse.write(tmp_path / "sr.safetensors", sparse.release())
    assert path.stat().st_size > 66e9 and path.stat().st_blocks * 512 < 1e6
    started = time.perf_counter()
    report = inspect_file(path)
    assert time.perf_counter() - started < 2
    assert (report.tensors, report.parameters, report.bytes) == (535, 33_122_992_912, 66_280_430_144)
    assert report.dtypes["F32"].parameters == 17_222_144 + 16 and report.dtypes["F32"].tensors == 13
    assert report.dtypes["BF16"].bytes + report.dtypes["F32"].bytes == report.bytes
    assert (report.kind, report.prefix, report.adaln, report.storage, report.gates) == (
        "H3",
        "dit.",
        "full",
        "plain",
        0,
    )
    assert report.qkv_order == "stacked" and "dit." in report.qkv_reason
    assert report.loadable and not report.reason
    assert report.missing == report.unexpected == report.wrong_shapes == report.problems == ()
    assert H3Config(**report.config).layers == 50 and report.config["heads"] == 56 and report.config["text_dim"] == 5120


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_inspecting_the_full_size_release_takes_no_memory_to_speak_of(tmp_path, sparse):
    """The whole process, Python and torch included."""
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from streamrender_h3.nodes.loader import inspect_file\n"
        "start = time.perf_counter()\n"
        "assert inspect_file(sys.argv[1]).loadable\n"
        "seconds = time.perf_counter() - start\n"
        "print(seconds, int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) * 1024)\n"
    )
    path = sparse.write(tmp_path / "sr.safetensors", sparse.release())
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, peak = map(float, done.stdout.split())
    assert seconds < 2 and peak < 300e6


def test_the_full_size_release_in_shards(tmp_path, sparse):
    tensors = list(sparse.release().items())
    files = [f"sr-{i + 1:05}-of-00009.safetensors" for i in range(9)]
    for i, file in enumerate(files):
        sparse.write(tmp_path / file, dict(tensors[i::9]))
    listed = {name: files[i % 9] for i, (name, _) in enumerate(tensors)}
    (tmp_path / "sr.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    started = time.perf_counter()
    report = inspect_file(tmp_path / files[4])
    assert time.perf_counter() - started < 2
    assert (report.tensors, report.parameters, len(report.files)) == (535, 33_122_992_912, 9)
    assert report.qkv_order == "stacked" and report.loadable


def test_minimax_shards_are_grouped_and_the_reason_says_why(tmp_path, sparse):
    tensors = {name.removeprefix("dit."): entry for name, entry in sparse.release().items()}
    names = list(tensors)
    files = [f"model-{i + 1:05}-of-00013.safetensors" for i in range(13)]
    for i, file in enumerate(files):
        sparse.write(tmp_path / file, {name: tensors[name] for name in names[i::13]})
    listed = {name: files[i % 13] for i, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    report = inspect_file(tmp_path)
    assert report.loadable and report.qkv_order == "grouped" and "MiniMax" in report.qkv_reason


def test_diffusers_release_counts(tmp_path, twin):
    twin.save_pretrained(tmp_path)
    report = inspect_file(tmp_path)
    assert (report.layout, report.qkv_order, report.tensors) == ("diffusers names", "split", 74)
    assert report.parameters == sum(weight.numel() for weight in twin.parameters()) and report.loadable


def test_missing_unexpected_and_wrong_names_are_listed_in_the_files_own_spelling(tmp_path, native):
    state = {f"dit.{name}": tensor for name, tensor in native.items()}
    del state["dit.blocks.1.norm1.weight"]
    state["dit.blocks.0.extra"] = torch.zeros(2)
    state["dit.blocks.2.mlp.fc2.weight"] = torch.zeros(3)
    save_file(state, tmp_path / "m.safetensors")
    report = inspect_file(tmp_path / "m.safetensors")
    assert report.missing == ("dit.blocks.1.norm1.weight",)
    assert report.unexpected == ("dit.blocks.0.extra",)
    assert report.wrong_shapes == ("dit.blocks.2.mlp.fc2.weight: [3] instead of [96, 160]",)
    assert not report.loadable and "not complete" in report.reason
    text = report.as_text()
    assert "dit.blocks.0.extra" in text and "loads        no" in text


def test_report_becomes_json_and_text(tmp_path, native):
    report = inspect_file(write_h3(tmp_path / "m.safetensors", native, {"note": "tiny"})[0])
    told = json.loads(json.dumps(report.as_dict()))
    assert told["metadata"]["note"] == "tiny" and told["dtypes"]["F32"]["tensors"] == 65
    text = report.as_text()
    for line in ("kind         H3", "AdaLN        full", "gates        none", "missing      none", "loads        yes"):
        assert line in text


KINDS = {
    "TAE": {"encoder.0.weight": (8, 12, 3, 3), "decoder.1.weight": (8, 24, 3, 3), "decoder.22.weight": (12, 8, 3, 3)},
    "causal ViT decoder": {
        "post_quant_conv.weight": (24, 24, 1, 1, 1),
        "x_embedder.weight": (64, 24),
        "register_tokens": (1, 4, 64),
        "blocks.0.attn.to_qkv.weight": (192, 64),
        "proj_out.weight": (3072, 64),
    },
    "native VAE": {
        "decoder.transformer_blocks.0.scale1": (2048,),
        "encoder.down.5.block.0.conv1.weight": (8, 8, 3, 3, 3),
    },
    "audio VAE": {"pre_block.attn.zero_k_bias": (32,)},
    "LoRA": {
        "diffusion_model.blocks.0.attn.qkv_proj.lora_A.weight": (8, 96),
        "diffusion_model.blocks.0.attn.qkv_proj.lora_B.weight": (384, 8),
    },
    "Qwen3-VL": {"model.language_model.layers.0.self_attn.q_proj.weight": (8, 8), "lm_head.weight": (8, 8)},
    "AdaLN tables": {"adaln.times": (4,), "adaln.blocks": (3, 4, 3, 6, 96), "adaln.final": (4, 2, 96)},
    "unknown": {"whatever.weight": (3,)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_are_recognised(tmp_path, kind):
    save_file({name: torch.zeros(shape) for name, shape in KINDS[kind].items()}, tmp_path / "x.safetensors")
    report = inspect_file(tmp_path / "x.safetensors")
    assert report.kind == kind and not report.loadable and report.reason
    assert report.config is None and report.tensors == len(KINDS[kind])
    assert f"kind         {kind}" in report.as_text()


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.dit.blocks.0.attn.qkv_proj.lora_A.default.weight",
        "lora_unet_blocks_0_attn_qkv_proj.lora_down.weight",
        "transformer_blocks.0.attn.to_q.lora_up.weight",
        "blocks.0.attn.qkv_proj.lora_B.default.weight",
    ],
)
def test_adapters_of_every_spelling_are_loras(tmp_path, name):
    save_file({name: torch.zeros(8, 8)}, tmp_path / "x.safetensors")
    assert inspect_file(tmp_path / "x.safetensors").kind == "LoRA"


def test_a_text_encoder_written_by_transformers_is_recognised(tmp_path):
    names = ("language_model.layers.0.self_attn.q_proj.weight", "visual.deepstack_merger_list.0.norm.weight")
    save_file({name: torch.zeros(8) for name in names}, tmp_path / "x.safetensors")
    assert inspect_file(tmp_path / "x.safetensors").kind == "Qwen3-VL"


def test_forms_that_are_not_read_still_get_a_report(tmp_path, native):
    save_file({**native, "scaled_fp8": torch.zeros(2)}, tmp_path / "x.safetensors")
    report = inspect_file(tmp_path / "x.safetensors")
    assert (report.kind, report.adaln, report.qkv_order) == ("H3", "full", "stacked")
    assert not report.loadable and "scaled fp8" in report.reason


def test_what_a_file_does_not_tell_is_said(tmp_path, native):
    save_file(native, tmp_path / "x.safetensors")
    report = inspect_file(tmp_path / "x.safetensors")
    assert report.gate_order == "gate first" and "native names" in report.gate_reason
    assert "the file does not tell its order of qkv rows; stacked is assumed" in report.as_text()
    assert "choose qkv_order 'grouped'" in report.as_text()
    assert "does not tell" not in inspect_file(tmp_path / "x.safetensors", qkv_order="stacked").as_text()


def test_gates_are_counted(tmp_path, native):
    gates = {f"blocks.{i}.attn.to_gate_compress.weight": torch.zeros(128, 96) for i in range(3)}
    save_file({**native, **gates}, tmp_path / "x.safetensors")
    report = inspect_file(tmp_path / "x.safetensors")
    assert report.gates == 3 and report.config["gate_compress"] and report.loadable


def test_a_cut_file_is_an_error_not_a_report(tmp_path, sparse):
    path = sparse.write(tmp_path / "sr.safetensors", sparse.release())
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=r"1 are missing"):
        inspect_file(path)
