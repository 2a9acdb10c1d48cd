"""Gates of the sparse-attention branch: loaded from every spelling, switched off when all zero, changed by adapters."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from streamrender_h3.nodes.loader import load_h3, with_adapter
from streamrender_h3.nodes.loader.quant import quantise_fp8
from streamrender_h3.nodes.loader.quant_linear import QuantLinear, install
from streamrender_h3.nodes.loader.weight_sizes import loaded_sizes, transformer_sizes

CPU = {"dtype": torch.float32, "device": "cpu"}
GATE_BYTES = 128 * 96 * 4


@pytest.fixture
def gates():
    g = torch.Generator().manual_seed(9)
    return [torch.randn(128, 96, generator=g) for _ in range(3)]


def save(path, state):
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return path


def spelled(spelling, twin, native, gates):
    """The model with its gates as publishers spell them."""
    if spelling == "diffusers":
        return {
            **twin.state_dict(),
            **{f"transformer_blocks.{i}.attn.to_gate_compress.weight": g for i, g in enumerate(gates)},
        }
    if spelling == "FastVideo":
        names = {
            "time_embedder.linear_1": "time_embedder.fc_in",
            "time_embedder.linear_2": "time_embedder.fc_out",
            "attn.to_out.0": "attn.to_out",
            "ff.net.0.proj": "ff.fc_in",
            "ff.net.2": "ff.fc_out",
        }
        state = {}
        for name, tensor in twin.state_dict().items():
            for old, new in names.items():
                name = name.replace(old, new)
            state[name] = tensor
        return {**state, **{f"transformer_blocks.{i}.attn.to_gate_compress.weight": g for i, g in enumerate(gates)}}
    return {**native, **{f"blocks.{i}.attn.to_gate_compress.weight": g for i, g in enumerate(gates)}}


@pytest.mark.parametrize("spelling", ["diffusers", "FastVideo", "native"])
def test_gates_are_loaded_from_every_spelling(spelling, tmp_path, twin, native, gates):
    loaded = load_h3(save(tmp_path / "m.safetensors", spelled(spelling, twin, native, gates)), **CPU)
    assert loaded.config.gate_compress and loaded.model.config.gate_compress
    for block, gate in zip(loaded.model.blocks, gates, strict=True):
        assert torch.equal(block.attn.to_gate_compress.weight, gate)


def test_gates_of_packs_and_trims_are_loaded(tmp_path, reduced):
    for form, name in (
        ("baked", "blocks.1.attn.vsa_gate.weight"),
        ("trim, 16 directions", "transformer_blocks.1.attn.to_gate_compress.weight"),
    ):
        state = reduced(form)
        loaded = load_h3(save(tmp_path / f"{form}.safetensors", state), **CPU)
        assert torch.equal(loaded.model.blocks[1].attn.to_gate_compress.weight, state[name].float())


def test_gates_that_are_all_zero_switch_the_branch_off(tmp_path, twin, native, gates):
    zero = [torch.zeros_like(gate) for gate in gates]
    loaded = load_h3(save(tmp_path / "zero.safetensors", spelled("native", twin, native, zero)), **CPU)
    assert not loaded.config.gate_compress
    assert all(block.attn.to_gate_compress is None for block in loaded.model.blocks)
    assert "all zero" in " ".join(loaded.notes)
    one = [*zero[:2], zero[2].clone()]
    one[2][5, 7] = 1e-4
    assert load_h3(save(tmp_path / "one.safetensors", spelled("native", twin, native, one)), **CPU).config.gate_compress


def test_sizes_count_the_gates(tmp_path, twin, native, gates):
    plain = save(tmp_path / "plain.safetensors", native)
    gated = save(tmp_path / "gated.safetensors", spelled("native", twin, native, gates))
    for sizes in (
        lambda path: transformer_sizes(path, torch.float32, "stored"),
        lambda path: loaded_sizes(load_h3(path, **CPU).model, load_h3(path, **CPU).config),
    ):
        more = [b - a for a, b in zip(sizes(plain).blocks, sizes(gated).blocks, strict=True)]
        assert more == [GATE_BYTES] * 3


def test_an_adapter_changes_gates_that_are_there_and_replaces_those_that_are_not(tmp_path, twin, native, gates):
    gated = load_h3(save(tmp_path / "gated.safetensors", spelled("native", twin, native, gates)), **CPU)
    plain = load_h3(save(tmp_path / "plain.safetensors", native), **CPU)
    added = save(tmp_path / "diff.safetensors", {"blocks.1.attn.to_gate_compress.diff": torch.ones(128, 96)})
    assert torch.equal(with_adapter(gated, added, 0.5).model.blocks[1].attn.to_gate_compress.weight, gates[1] + 0.5)
    new = torch.full((128, 96), 0.25)
    put = save(tmp_path / "set.safetensors", {"transformer_blocks.2.attn.to_gate_compress.set_weight": new})
    for base in (gated, plain):
        adapted = with_adapter(base, put)
        assert adapted.config.gate_compress
        assert torch.equal(adapted.model.blocks[2].attn.to_gate_compress.weight, new)
    assert adapted.model.blocks[0].attn.to_gate_compress is None  # the adapter brought one gate to a model without


def test_fp8_on_load_takes_the_gates_too(tmp_path, twin, native, gates):
    path = save(tmp_path / "gated.safetensors", spelled("native", twin, native, gates))
    loaded = load_h3(path, weights="fp8", **CPU)
    assert all(isinstance(block.attn.to_gate_compress, QuantLinear) for block in loaded.model.blocks)
    counted = transformer_sizes(path, torch.float32, "fp8")
    assert counted.blocks == loaded_sizes(loaded.model, loaded.config).blocks
    plain = load_h3(save(tmp_path / "plain.safetensors", native), weights="fp8", **CPU)
    assert all(block.attn.to_gate_compress is None for block in plain.model.blocks)


def test_a_gate_in_codes_is_a_layer_like_the_others(tmp_path, twin, native, gates):
    """FastVideo's packed profile stores the gates in codes too."""
    loaded = load_h3(save(tmp_path / "gated.safetensors", spelled("native", twin, native, gates)), **CPU)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(1))
    wanted = loaded.model.blocks[0].attn.to_gate_compress(x)
    install(loaded.model, "blocks.0.attn.to_gate_compress", quantise_fp8(gates[0]))
    layer = loaded.model.blocks[0].attn.to_gate_compress
    assert isinstance(layer, QuantLinear)
    assert (layer(x) - wanted).norm() / wanted.norm() < 0.045
    assert load_file(tmp_path / "gated.safetensors")["blocks.0.attn.to_gate_compress.weight"].equal(gates[0])
