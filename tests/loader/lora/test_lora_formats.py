"""Every trainer's spelling of the same changes gives diffusers' output with the merged weights."""

import json

import pytest
import torch
from lora_files import (
    CORE,
    CPU,
    LAYOUTS,
    TIMES,
    adapter,
    save,
)
from streamrender_h3.nodes.loader import (
    TableCache,
    inspect_file,
    load_h3,
    with_adapter,
    write_h3,
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_spelling_gives_diffusers_output_with_merged_weights(
    layout, tmp_path, factors, base, run, expected, merged_output, error
):
    path, chosen, scale = adapter(layout, tmp_path, factors)
    assert inspect_file(path).kind == "LoRA"
    adapted = with_adapter(base, path, 0.5)
    half = (lambda m, r: 0.5 * scale(m, r)) if callable(scale) else 0.5 * scale
    wanted = merged_output(chosen, half)
    assert error(run(adapted), wanted) < 1e-5 and error(expected, wanted) > 1e-2, "the change is large enough to see"
    split = 3 if layout.startswith(("lightx2v", "fastvideo")) else 1
    total = sum(split if "qkv" in module else 1 for module in chosen)
    assert adapted.adapters[0].summary == f"{path.name} at 0.5: bound {total} of {total}"


@pytest.mark.parametrize("layout", ["larryvrh", "diffsynth", "lightx2v bare"])
def test_an_adapter_on_a_diffusers_checkpoint_is_the_same(layout, tmp_path, factors, twin, run, merged_output, error):
    path, chosen, scale = adapter(layout, tmp_path, factors)
    twin.save_pretrained(tmp_path / "d")
    assert error(run(with_adapter(load_h3(tmp_path / "d", **CPU), path)), merged_output(chosen, scale)) < 1e-5


def test_wrong_order_of_qkv_rows_differs(tmp_path, factors, base, run, merged_output, error):
    for layout, right, wrong in (("diffsynth", "grouped", "stacked"), ("larryvrh", "stacked", "grouped")):
        path, chosen, scale = adapter(layout, tmp_path / layout, factors)
        wanted = merged_output(chosen, scale)
        assert error(run(with_adapter(base, path, qkv_order=right)), wanted) < 1e-5
        assert error(run(with_adapter(base, path, qkv_order=wrong)), wanted) > 1e-2


def test_a_hybrid_patch_adds_sets_and_brings_the_gates(tmp_path, factors, base, run, merged_output, error):
    """FastH3: low rank and a difference on one layer, differences of norms and biases, replaced gates."""
    g = torch.Generator().manual_seed(12)
    path, chosen, _ = adapter("lightx2v bare", tmp_path, {m: factors[m] for m in CORE} | factors)
    from safetensors.torch import load_file

    state = load_file(path)
    extra = {
        "proj_in.diff": torch.randn(96, 96, generator=g) * 0.05,
        "proj_in.diff_b": torch.randn(96, generator=g) * 0.05,
        "transformer_blocks.1.norm1.diff": torch.randn(96, generator=g) * 0.05,
        "transformer_blocks.2.attn.norm_k.diff": torch.randn(32, generator=g) * 0.05,
        "transformer_blocks.0.adaln_proj.linear.diff_b": torch.randn(1728, generator=g) * 0.05,
        "norm_out.linear.diff": torch.randn(192, 48, generator=g) * 0.05,
        "transformer_blocks.1.attn.to_q.diff": torch.randn(128, 96, generator=g) * 0.05,
    }
    gates = {
        f"transformer_blocks.{i}.attn.to_gate_compress.set_weight": torch.randn(128, 96, generator=g) for i in range(3)
    }
    metadata = {"format": "fastvideo-lora-v2", "rank": "64"}
    save(path, {**state, **extra, **gates}, metadata)

    def also(modules):
        for name, value in extra.items():
            module, _, end = name.rpartition(".")
            target = modules[module].bias if end == "diff_b" else modules[module].weight
            target += 2.0 * value

    adapted = with_adapter(base, path, 2.0)
    assert error(run(adapted), merged_output(chosen, 2.0, also)) < 1e-5
    bound = adapted.adapters[0]
    assert bound.count == bound.total == len(CORE) + 2 * 5 + len(extra) + 3
    assert adapted.config.gate_compress and not base.config.gate_compress
    for block, gate in zip(adapted.model.blocks, gates.values(), strict=True):
        assert torch.equal(block.attn.to_gate_compress.weight, gate)
    assert all(block.attn.to_gate_compress is None for block in base.model.blocks)


def test_a_replaced_tensor_is_replaced_whatever_the_strength(tmp_path, native, base):
    value = torch.full((96, 160), 0.25)
    path = save(tmp_path / "a.safetensors", {"blocks.1.mlp.fc2.set_weight": value})
    assert torch.equal(with_adapter(base, path, 0.3).model.blocks[1].mlp.fc2.weight, value)
    assert torch.equal(with_adapter(base, path, 0.0).model.blocks[1].mlp.fc2.weight, native["blocks.1.mlp.fc2.weight"])


def test_adapters_stack_and_the_given_model_stays(tmp_path, factors, base, run, expected, merged_output, error):
    first, core, scale = adapter("taomate", tmp_path / "1", factors)
    second, everything, _ = adapter("raven", tmp_path / "2", factors)
    one = with_adapter(base, first, 0.5)
    both = with_adapter(one, second, 0.25)
    total = {m: (d, u) for m, (d, u) in everything.items()}
    wanted = merged_output(total, lambda m, rank: 0.25 + (0.5 * scale(m, rank) if m in core else 0.0))
    assert error(run(both), wanted) < 1e-5
    assert error(run(one), merged_output(core, lambda m, rank: 0.5 * scale(m, rank))) < 1e-5
    assert error(run(base), expected) < 1e-5, "the first model is used by another branch of the graph"
    assert len({base.identity, one.identity, both.identity, with_adapter(base, first, 0.6).identity}) == 4
    assert [bound.strength for bound in both.adapters] == [0.5, 0.25] and not base.adapters
    untouched = [
        n for n, t in both.model.named_parameters() if t.data_ptr() == dict(base.model.named_parameters())[n].data_ptr()
    ]
    assert "blocks.0.norm1.weight" in untouched and "blocks.0.mlp.fc1.weight" not in untouched


def test_two_adapters_are_rounded_once(tmp_path, factors, native):
    path = write_h3(tmp_path / "m.safetensors", native)[0]
    base = load_h3(path, dtype=torch.bfloat16, device="cpu")
    first, core, _ = adapter("larryvrh", tmp_path / "1", factors)
    both = with_adapter(with_adapter(base, first, 0.5), first, 0.25)
    down, up = core["blocks.0.mlp.fc2"]
    weight = native["blocks.0.mlp.fc2.weight"].bfloat16().float()
    assert torch.equal(
        both.model.blocks[0].mlp.fc2.weight, (weight + 0.5 * (up @ down) + 0.25 * (up @ down)).bfloat16()
    )


def test_tables_follow_the_adapter_and_its_strength(tmp_path, factors, base):
    path, _, _ = adapter("larryvrh", tmp_path, factors)
    plain = base.modulation.tables(TIMES)
    half, full = (with_adapter(base, path, strength).modulation for strength in (0.5, 1.0))
    assert half.tables(TIMES) is half.tables(TIMES)
    assert not torch.equal(half.tables(TIMES).blocks, full.tables(TIMES).blocks)
    assert base.modulation.tables(TIMES) is plain
    core, _, _ = adapter("taomate", tmp_path / "core", factors)
    assert with_adapter(base, core).modulation is base.modulation, "an adapter of the layers alone leaves the tables"


def test_cached_tables_are_kept_apart_by_adapter_and_strength(tmp_path, native, factors, monkeypatch):
    path, _, _ = adapter("raven", tmp_path, factors)
    file, cache = write_h3(tmp_path / "m.safetensors", native)[0], TableCache(tmp_path / "cache")
    seen = {}
    for strength in (None, 0.5, 1.0, 0.5, None):
        model = load_h3(file, cache=cache, **CPU)
        model = model if strength is None else with_adapter(model, path, strength)
        blocks = model.modulation.tables(TIMES).blocks
        assert torch.equal(blocks, seen.setdefault(strength, blocks))
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 3
    assert len({blocks.sum().item() for blocks in seen.values()}) == 3


@pytest.mark.parametrize(
    ("metadata", "beside", "scale"),
    [
        ({"alpha": "2"}, {"lora_alpha": 9}, 2 / 4),
        ({"lora_adapter_metadata": '{"transformer.lora_alpha": 3, "transformer.r": 4}'}, None, 3 / 4),
        ({"ss_network_alpha": "1.0"}, None, 1 / 4),
        ({"rank": "64", "format": "fastvideo-lora-v2"}, None, 1.0),
        (None, {"lora_alpha": 8, "r": 4}, 8 / 4),
        (None, {"lora_alpha": 8, "r": 4, "use_rslora": True}, 8 / 4**0.5),
        (None, None, 1.0),
    ],
)
def test_where_the_scale_comes_from(metadata, beside, scale, tmp_path, native, base):
    down, up = torch.ones(4, 160), torch.ones(96, 4)
    name = "blocks.0.mlp.fc2.lora_{}.weight".format
    path = save(tmp_path / "alone" / "a.safetensors", {name("A"): down, name("B"): up}, metadata)
    if beside:
        (path.parent / "adapter_config.json").write_text(json.dumps(beside))
    change = with_adapter(base, path).model.blocks[0].mlp.fc2.weight - native["blocks.0.mlp.fc2.weight"]
    torch.testing.assert_close(change, torch.full((96, 160), 4 * scale), rtol=1e-5, atol=1e-5)


def test_a_configuration_in_a_folder_of_many_adapters_belongs_to_none(tmp_path, native, base):
    name = "blocks.0.mlp.fc2.lora_{}.weight".format
    pair = {name("A"): torch.ones(4, 160), name("B"): torch.ones(96, 4)}
    path = save(tmp_path / "many" / "a.safetensors", pair)
    save(tmp_path / "many" / "b.safetensors", pair)
    (tmp_path / "many" / "adapter_config.json").write_text('{"lora_alpha": 8}')
    change = with_adapter(base, path).model.blocks[0].mlp.fc2.weight - native["blocks.0.mlp.fc2.weight"]
    torch.testing.assert_close(change, torch.full((96, 160), 4.0), rtol=1e-5, atol=1e-5)
