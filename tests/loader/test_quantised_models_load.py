"""Whole models with quantised blocks, written the way each publisher does, loaded, and compared with the dequantised model."""

import json

import pytest
import torch
from safetensors.torch import save_file
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.loader.inspect import inspect_file
from streamrender_h3.nodes.loader.quant import dequantise, quantise_fp8, tile_scales
from streamrender_h3.nodes.loader.quant_linear import QUANTISED_LAYERS, QuantLinear
from streamrender_h3.nodes.loader.weight_sizes import transformer_sizes

CPU = {"dtype": torch.float32, "device": "cpu"}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
MODULES = [f"blocks.{i}.{layer}" for i in range(3) for layer in QUANTISED_LAYERS]


def about(**settings):
    return torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)


def fp8(weight, per_row):
    """Codes, scale, and the weight they stand for."""
    largest = weight.abs().amax(dim=1, keepdim=True) if per_row else weight.abs().max()
    scale = largest / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return codes, scale, codes.float() * scale


def int8(weight):
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    codes = (weight / scale).round().to(torch.int8)
    return codes, scale, codes.float() * scale


def nvfp4(weight, scale=None):
    """4-bit codes one per byte, block scales, scale, and the weight they stand for."""
    scale = weight.abs().max() / (6 * 448) if scale is None else scale
    groups = weight.unflatten(1, (-1, 16))
    blocks = (groups.abs().amax(-1) / 6 / scale).clamp(max=448).to(torch.float8_e4m3fn)
    ratio = groups / (blocks.float() * scale).unsqueeze(-1).clamp(min=1e-30)
    codes = (ratio.abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    signs = torch.where(ratio < 0, -1.0, 1.0)
    values = (E2M1[codes] * signs * blocks.float().unsqueeze(-1)).flatten(1) * scale
    return (codes + 8 * (ratio < 0)).flatten(1).to(torch.uint8), blocks, scale, values


def comfy_fp8(state):
    for module in MODULES:
        codes, scale, state[f"={module}"] = fp8(state[f"{module}.weight"], per_row=False)
        state |= {f"{module}.weight": codes, f"{module}.weight_scale": scale}
        state[f"{module}.comfy_quant"] = about(format="float8_e4m3fn")


def row_fp8(state):
    for module in MODULES:
        codes, scale, state[f"={module}"] = fp8(state[f"{module}.weight"], per_row=True)
        state |= {f"{module}.weight": codes, f"{module}.weight_scale": scale}


def mixed(state):
    """As ComfyUI's mixed files: some layers fp8, some int8, the rest plain."""
    for module in MODULES[::2]:
        if "mlp" in module:
            codes, scale, state[f"={module}"] = int8(state[f"{module}.weight"])
            state[f"{module}.comfy_quant"] = about(format="int8_tensorwise")
        else:
            codes, scale, state[f"={module}"] = fp8(state[f"{module}.weight"], per_row=False)
            state[f"{module}.comfy_quant"] = about(format="float8_e4m3fn")
        state |= {f"{module}.weight": codes, f"{module}.weight_scale": scale}


def comfy_nvfp4(state):
    for module in MODULES:
        codes, blocks, scale, state[f"={module}"] = nvfp4(state[f"{module}.weight"])
        rows, columns = -(-blocks.shape[0] // 128) * 128, -(-blocks.shape[1] // 4) * 4
        state |= {
            f"{module}.weight": codes[:, 0::2] << 4 | codes[:, 1::2],
            f"{module}.weight_scale": tile_scales(blocks).view(torch.float8_e4m3fn).view(rows, columns),
            f"{module}.weight_scale_2": scale,
            f"{module}.comfy_quant": about(format="nvfp4"),
        }


FILES = {"comfy fp8": comfy_fp8, "row fp8": row_fp8, "mixed": mixed, "comfy nvfp4": comfy_nvfp4}


@pytest.fixture
def written(tmp_path, native):
    """Write a quantised model and its dequantised twin; returns both paths and the weights by module."""

    def written(how):
        state = dict(native)
        FILES[how](state)
        plain = {name[1:]: state.pop(name) for name in [name for name in state if name.startswith("=")]}
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "codes.safetensors")
        twin = {**native, **{f"{module}.weight": weight.contiguous() for module, weight in plain.items()}}
        save_file(twin, tmp_path / "plain.safetensors")
        return tmp_path / "codes.safetensors", tmp_path / "plain.safetensors", plain

    return written


@pytest.mark.parametrize("how", FILES)
def test_a_quantised_model_runs_as_its_dequantised_twin(written, run, error, how):
    codes, plain, weights = written(how)
    loaded = load_h3(codes, **CPU)
    for module, weight in weights.items():
        layer = loaded.model.get_submodule(module)
        assert isinstance(layer, QuantLinear)
        assert torch.equal(dequantise(layer.packed), weight), module
    others = set(MODULES) - weights.keys()
    assert not any(isinstance(loaded.model.get_submodule(module), QuantLinear) for module in others)
    assert error(run(loaded), run(load_h3(plain, **CPU))) < 1e-6


@pytest.mark.parametrize("how", FILES)
def test_the_report_names_the_format_and_the_plan_counts_its_bytes(written, how):
    codes, plain, weights = written(how)
    report = inspect_file(codes)
    assert report.loadable and report.kind == "H3"
    assert report.storage.count("layers") == (2 if how == "mixed" else 1)
    sizes, twin = (transformer_sizes(path, torch.float32, "stored") for path in (codes, plain))
    assert sizes.rest == twin.rest and sum(sizes.blocks) < sum(twin.blocks)
    loaded = load_h3(codes, **CPU).model
    for index, counted in enumerate(sizes.blocks):
        held = sum(one.nbytes for one in loaded.blocks[index].parameters())
        assert held * 0.7 < counted <= held * 1.5  # the file holds one scale where the model holds one per row
    assert sizes.scratch == max(weight.nbytes for weight in weights.values())


def test_modelopt_with_three_scales_is_joined_and_rows_are_put_in_order(tmp_path, twin, native, run, error):
    """diffusers names: q, k, v apart, each with a scale of its own; the halves of the first MLP matrix swapped."""
    state, plain = dict(twin.state_dict()), dict(twin.state_dict())
    for i in range(3):
        for module in ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "ff.net.0.proj", "ff.net.2"):
            name = f"transformer_blocks.{i}.{module}"
            codes, blocks, scale, values = nvfp4(state[f"{name}.weight"])
            state |= {
                f"{name}.weight": codes[:, 0::2] | codes[:, 1::2] << 4,
                f"{name}.weight_scale": blocks,
                f"{name}.weight_scale_2": scale,
                f"{name}.input_scale": torch.tensor(1.0),
            }
            plain[f"{name}.weight"] = values
    for path, tensors in ((tmp_path / "codes.safetensors", state), (tmp_path / "plain.safetensors", plain)):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    loaded = load_h3(tmp_path / "codes.safetensors", **CPU)
    qkv = loaded.model.blocks[1].attn.qkv_proj
    assert isinstance(qkv, QuantLinear) and not qkv.one_scale
    assert torch.equal(
        dequantise(qkv.packed), torch.cat([plain[f"transformer_blocks.1.attn.to_{part}.weight"] for part in "qkv"])
    )
    assert error(run(loaded), run(load_h3(tmp_path / "plain.safetensors", **CPU))) < 1e-6


def test_grouped_rows_of_codes_are_ungrouped(tmp_path, native, grouped, run, error):
    state, twin = dict(grouped), dict(native)
    for i in range(3):
        name = f"blocks.{i}.attn.qkv_proj.weight"
        codes, scale, _ = fp8(grouped[name], per_row=True)
        state |= {name: codes, f"{name}_scale": scale}
        codes, scale, twin[name] = fp8(native[name], per_row=True)
    save_file(state, tmp_path / "codes.safetensors")
    save_file(twin, tmp_path / "plain.safetensors")
    loaded = load_h3(tmp_path / "codes.safetensors", **CPU, qkv_order="grouped")
    assert error(run(loaded), run(load_h3(tmp_path / "plain.safetensors", **CPU))) < 1e-6
    assert error(run(load_h3(tmp_path / "codes.safetensors", **CPU)), run(loaded)) > 1e-3


def test_quantise_on_load_is_the_fp8_of_the_plain_weights(tmp_path, native, run, error):
    save_file(native, tmp_path / "plain.safetensors")
    loaded = load_h3(tmp_path / "plain.safetensors", **CPU, weights="fp8")
    large = [f"{module}.weight" for module in MODULES]
    twin = {name: dequantise(quantise_fp8(native[name])) if name in large else native[name] for name in native}
    save_file(twin, tmp_path / "twin.safetensors")
    assert error(run(loaded), run(load_h3(tmp_path / "twin.safetensors", **CPU))) < 1e-6
    assert 1e-3 < error(run(loaded), run(load_h3(tmp_path / "plain.safetensors", **CPU))) < 0.1
    sizes = transformer_sizes(tmp_path / "plain.safetensors", torch.float32, "fp8")
    assert sizes.form == "fp8 rows"
    for index, counted in enumerate(sizes.blocks):
        assert counted == sum(one.nbytes for one in loaded.model.blocks[index].parameters())


def test_another_word_for_weights_is_refused(tmp_path, native):
    save_file(native, tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match=r"'int4'.*stored, fp8"):
        load_h3(tmp_path / "plain.safetensors", **CPU, weights="int4")
