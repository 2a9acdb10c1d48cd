"""One set of low-rank changes, written as every trainer writes them, gives diffusers' output with the merged weights."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from streamrender_h3.nodes.loader import (
    CheckpointError,
    TableCache,
    bind,
    inspect_file,
    load_h3,
    read_adapter,
    with_adapter,
    write_h3,
)
from streamrender_h3.nodes.loader.load import modulation_of

CPU = {"dtype": torch.float32, "device": "cpu"}
TIMES = (0.0, 1 / 7, 0.4, 0.999)

STACKS = [*(f"blocks.{i}" for i in range(3)), *(f"token_refiner.blocks.{i}" for i in range(2))]
CORE = [f"{stack}.{module}" for stack in STACKS for module in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")]
ADALN = [*(f"blocks.{i}.adaln_proj.linear" for i in range(3)), "final_layer.adaln_proj.linear"]
TIME = ["time_embedder.proj_in", "time_embedder.proj_out"]
BOUNDARY = ["video_patch_proj", "audio_patch_proj", "condition_proj", "final_layer.video_out", "final_layer.audio_out"]

THEIRS = {
    "video_patch_proj": "proj_in",
    "audio_patch_proj": "audio_proj_in",
    "condition_proj": "context_embedder",
    "time_embedder.proj_in": "time_embedder.linear_1",
    "time_embedder.proj_out": "time_embedder.linear_2",
    "final_layer.adaln_proj.linear": "norm_out.linear",
    "final_layer.video_out": "proj_out",
    "final_layer.audio_out": "audio_proj_out",
}


def diffusers_parts(module, up):
    """A native module as diffusers' modules with their rows of `up`, by hand."""
    for ours, theirs in (("token_refiner.blocks", "token_refiner.refiner_blocks"), ("blocks", "transformer_blocks")):
        if module.startswith(ours):
            stack, _, rest = module.removeprefix(ours + ".").partition(".")
            base = f"{theirs}.{stack}."
            if rest == "attn.qkv_proj":
                rows = len(up) // 3
                return [(base + f"attn.to_{part}", up[i * rows : (i + 1) * rows]) for i, part in enumerate("qkv")]
            if rest == "mlp.fc1":
                half = len(up) // 2
                return [(base + "ff.net.0.proj", torch.cat([up[half:], up[:half]]))]
            names = {"attn.out_proj": "attn.to_out.0", "mlp.fc2": "ff.net.2", "adaln_proj.linear": "adaln_proj.linear"}
            return [(base + names[rest], up)]
    return [(THEIRS[module], up)]


@pytest.fixture(scope="session")
def factors(native):
    """Native module -> (A [r, in], B [out, r]) for every linear of the model; ranks differ from module to module."""
    g = torch.Generator().manual_seed(11)
    made = {}
    for number, module in enumerate([*CORE, *ADALN, *TIME, *BOUNDARY]):
        out, width = native[f"{module}.weight"].shape
        rank = 4 + number % 3
        made[module] = (torch.randn(rank, width, generator=g) * 0.2, torch.randn(out, rank, generator=g) * 0.2)
    return made


@pytest.fixture(scope="session")
def merged_output(twin, inputs, run):
    """diffusers' velocities with {module: factor} of (A, B) added to its weights."""

    def merged_output(factors, scale=1.0, also=None):
        model = copy.deepcopy(twin)
        modules = dict(model.named_modules())
        scales = scale if callable(scale) else lambda module, rank: scale
        for module, (down, up) in factors.items():
            for name, rows in diffusers_parts(module, up):
                modules[name].weight += scales(module, len(down)) * rows @ down
        if also:
            also(modules)
        places = torch.arange(23).split([6, 5, 4, 8])
        video, audio = model(
            torch.cat([inputs["before"], inputs["video"]])[None],
            inputs["audio"][None],
            inputs["text"][None],
            torch.tensor(TIMES),
            inputs["time_index"],
            inputs["tags"],
            inputs["positions"],
            torch.cat([places[1], places[3]]),
            places[2],
            places[0],
            return_dict=False,
        )
        return video[0, 5:], audio[0]

    return merged_output


@pytest.fixture
def base(tmp_path, native):
    return load_h3(write_h3(tmp_path / "base" / "m.safetensors", native)[0], **CPU)


def save(path, state, metadata=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path, metadata=metadata)
    return path


def grouped(up):
    """Stacked rows of 4 heads of 32 as [q0 k0 v0 q1 ..]."""
    parts = up.chunk(3)
    return torch.cat([part[32 * head : 32 * head + 32] for head in range(4) for part in parts])


def adapter(layout, folder, factors):
    """Write `factors` as `layout`; returns the file, the modules it holds, and the scale it stands for."""
    path = folder / "adapter" / "a.safetensors"
    pick = lambda modules: {m: factors[m] for m in modules}  # noqa: E731
    native = lambda chosen, a, b: {  # noqa: E731
        key: t for m, (down, up) in chosen.items() for key, t in ((a.format(m), down), (b.format(m), up))
    }
    if layout.startswith("raven"):
        infix = ".default" if "named" in layout else ""
        chosen, text = pick([*CORE, *ADALN, *TIME, *BOUNDARY]), "base_model.model.dit.{}.lora_{}" + infix + ".weight"
        return (
            save(path, native(chosen, text.replace("{}", "{}", 1).replace("_{}", "_A"), text.replace("_{}", "_B"))),
            chosen,
            1.0,
        )
    if layout == "taomate":
        chosen = pick(CORE)
        save(path.with_name("adapter_model.safetensors"), native(chosen, "{}.lora_a", "{}.lora_b"))
        path.with_name("config.json").write_text(json.dumps({"rank": 4, "alpha": 8}))
        return path.with_name("adapter_model.safetensors"), chosen, lambda module, rank: 8 / rank
    if layout == "larryvrh":
        chosen = pick([*CORE, *ADALN])
        return (
            save(path, native(chosen, "diffusion_model.{}.lora_A.weight", "diffusion_model.{}.lora_B.weight")),
            chosen,
            1.0,
        )
    if layout.startswith("lightx2v"):
        prefix = {"bare": "", "peft": "base_model.model.", "comfyui": "diffusion_model.", "diffusers": "transformer."}
        prefix, chosen, state = prefix[layout.split()[1]], pick(CORE), {}
        for module, (down, up) in chosen.items():
            for name, rows in diffusers_parts(module, up):
                state[f"{prefix}{name}.lora_A.weight"], state[f"{prefix}{name}.lora_B.weight"] = down.clone(), rows
        return save(path, state, {"alpha": "2"}), chosen, lambda module, rank: 2 / rank
    if layout == "diffsynth":
        chosen = pick(CORE)
        regrouped = {m: (down, grouped(up) if "qkv" in m else up) for m, (down, up) in chosen.items()}
        return save(path, native(regrouped, "{}.lora_A.default.weight", "{}.lora_B.default.weight")), chosen, 1.0
    if layout == "kohya":
        chosen, state = pick([*CORE, *ADALN]), {}
        for module, (down, up) in chosen.items():
            flat = "lora_unet_" + module.replace(".", "_")
            state |= {
                f"{flat}.lora_down.weight": down,
                f"{flat}.lora_up.weight": up,
                f"{flat}.alpha": torch.tensor(3.0),
            }
        return save(path, state), chosen, lambda module, rank: 3 / rank
    if layout == "comfyui, old diffusers ends":
        chosen, state = pick(CORE), {}
        for module, (down, up) in chosen.items():
            state |= {f"{module}.lora.down.weight": down, f"{module}.lora.up.weight": up}
        return save(path, state), chosen, 1.0
    assert layout == "fastvideo in memory"
    chosen, state = pick(CORE), {}
    for module, (down, up) in chosen.items():
        for name, rows in diffusers_parts(module, up):
            name = (
                name.replace("ff.net.0.proj", "ff.fc_in").replace("ff.net.2", "ff.fc_out").replace("to_out.0", "to_out")
            )
            state[f"{name}.lora_A.weight"], state[f"{name}.lora_B.weight"] = down.clone(), rows
    return save(path, state), chosen, 1.0


LAYOUTS = [
    "raven",
    "raven, named",
    "taomate",
    "larryvrh",
    "lightx2v bare",
    "lightx2v peft",
    "lightx2v comfyui",
    "lightx2v diffusers",
    "diffsynth",
    "kohya",
    "comfyui, old diffusers ends",
    "fastvideo in memory",
]


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


# ------------------------------------------------------------------------------------------- forms that cannot be merged into


@pytest.fixture
def in_form(tmp_path, reduced, native, base):
    """The model in a reduced form of its modulation."""

    def in_form(name):
        state = {n: t.contiguous() for n, t in reduced(name).items()}
        folder = tmp_path / "form"
        folder.mkdir(exist_ok=True)
        save_file(state, folder / "m.safetensors")
        return load_h3(folder / "m.safetensors", **CPU)

    return in_form


def test_adaln_factors_are_folded_into_directions(tmp_path, factors, in_form, run, merged_output, error):
    path, chosen, scale = adapter("larryvrh", tmp_path, factors)
    adapted = with_adapter(in_form("trim, all directions"), path)
    assert adapted.adapters[0].summary.endswith(f"bound {len(chosen)} of {len(chosen)}")
    assert error(run(adapted), merged_output(chosen, scale)) < 1e-5
    adapted = with_adapter(in_form("trim, 16 directions"), path)
    assert error(run(adapted), merged_output(chosen, scale)) < 1e-4


@pytest.mark.parametrize(
    ("form", "layout", "reason"),
    [
        ("baked", "larryvrh", "of the modulation, which is finished tables here"),
        ("baked", "raven", "of the modulation, which is finished tables here"),
        ("curve, fine", "larryvrh", "of full AdaLN projections, which are factors of a curve here"),
        ("curve, four times", "raven", "of the time MLP, which is a curve table here"),
    ],
)
def test_what_cannot_be_folded_is_named(form, layout, reason, tmp_path, factors, in_form, run, merged_output, error):
    path, chosen, scale = adapter(layout, tmp_path, factors)
    if form == "curve, fine":  # 48 coordinates look like a full projection by their shape
        chosen_factors = {m: (torch.cat([d, d], 1) if m in ADALN else d, u) for m, (d, u) in factors.items()}
        path, _, _ = adapter(layout, tmp_path / "wide", chosen_factors)
    adapted = with_adapter(in_form(form), path)
    bound = adapted.adapters[0]
    assert reason in bound.summary and f"bound {bound.count} of {len(chosen)}" in bound.summary
    assert bound.total - bound.count >= (2 if "time MLP" in reason else 4)
    if layout == "larryvrh":
        core = {m: f for m, f in chosen.items() if m in CORE}
        assert error(run(adapted), merged_output(core, scale)) < 1e-5


def test_factors_trained_on_a_pruned_model_fit_one_and_no_other(tmp_path, in_form, base):
    g = torch.Generator().manual_seed(3)
    state = {}
    for module in ADALN:
        rows = 192 if "final" in module else 1728
        state[f"diffusion_model.{module}.lora_A.weight"] = torch.randn(4, 8, generator=g)
        state[f"diffusion_model.{module}.lora_B.weight"] = torch.randn(rows, 4, generator=g)
    path = save(tmp_path / "pruned.safetensors", state)
    curve = in_form("curve, 8 coordinates")
    adapted = with_adapter(curve, path, 0.5)
    assert adapted.adapters[0].summary.endswith("bound 4 of 4")
    down, up = (state[f"diffusion_model.blocks.1.adaln_proj.linear.lora_{end}.weight"] for end in "AB")
    coordinates = torch.eye(8)
    change = adapted.modulation._tensor("blocks.1.adaln_proj.linear.weight") - curve.modulation._tensor(
        "blocks.1.adaln_proj.linear.weight"
    )
    torch.testing.assert_close(change.float(), 0.5 * up @ down @ coordinates, rtol=2e-2, atol=2e-2)  # stored in fp16
    with pytest.raises(CheckpointError, match=r"\[1728, 8\].*Needed: the shape \[1728, 48\]"):
        with_adapter(base, path)


def test_an_adapter_stands_beside_weights_in_codes(tmp_path, native, factors, run, error):
    """y = W x + s B A x with W as the codes say: nothing of a small change is lost to their rounding."""
    file = write_h3(tmp_path / "m.safetensors", native)[0]
    for number, layout in enumerate(("larryvrh", "lightx2v bare")):
        path, chosen, scale = adapter(layout, tmp_path / layout, factors)
        coded = load_h3(file, weights="fp8", **CPU)
        wanted = load_h3(file, **CPU)
        for module, (down, up) in chosen.items():
            if module in CORE:
                layer = coded.model.get_submodule(module)
                weight = layer(torch.eye(down.shape[1])).T.contiguous()  # what the layer multiplies by
                factor = 0.5 * (scale(module, len(down)) if callable(scale) else scale)
                wanted.model.get_submodule(module).weight = torch.nn.Parameter(weight + factor * up @ down)
        wanted = replace(wanted, modulation=with_adapter(coded, path, 0.5).modulation)
        adapted = with_adapter(coded, path, 0.5)
        before = run(coded)
        assert error(run(adapted), run(wanted)) < 1e-5, number
        assert error(run(coded), before) == 0.0 and error(before, run(wanted)) > 1e-2
        twice = with_adapter(adapted, path, -0.5)
        assert error(run(twice), before) < 1e-5, "one adapter taken away again by a second one"


# --------------------------------------------------------------------------------------------------------- what is refused


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
