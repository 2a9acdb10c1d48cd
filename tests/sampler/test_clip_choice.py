"""Which recipe and which attention a checkpoint gets, and what is warned of."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from streamrender_h3.nodes.codec import load_decoder
from streamrender_h3.nodes.loader import load_h3, write_table_checkpoint
from streamrender_h3.nodes.loader.forms import LOW_RANK
from streamrender_h3.nodes.look import TextLook
from streamrender_h3.nodes.sampler import RenderError
from streamrender_h3.nodes.sampler.clip_attention import decide, layer_numbers
from streamrender_h3.nodes.sampler.clip_choice import choose_recipe
from streamrender_h3.nodes.sampler.clip_network import ladder
from streamrender_h3.nodes.sampler.clip_plan import ClipPlan
from streamrender_h3.nodes.sampler.clip_recipes import BASE_50, FAST_TRIM, FAST_V1, FAST_V2, RECIPES, TURBO_4
from streamrender_h3.nodes.sampler.clip_render import ClipInputs, ClipSettings, render_clip
from streamrender_h3.workflows.nano.weights import TEXT_DIM, write_weights

CPU = {"dtype": torch.float32, "device": "cpu"}


def test_noise_levels_are_those_of_the_recipes():
    video = [round(sigma, 4) for sigma in FAST_V1.grid.video]
    assert video == [0.9999, 0.9728, 0.9231, 0.8] and FAST_V1.grid.steps == 4
    audio = [round(sigma, 4) for sigma in FAST_V2.grid.audio]
    assert audio == [0.9997, 0.9541, 0.8995, 0.8327, 0.75, 0.6429, 0.5, 0.3] and FAST_V2.shifts == (10.0, 3.0)
    assert (BASE_50.steps, RECIPES["base (25 steps)"].steps) == (49, 24)  # the scheduler counts the final 0
    assert {name: recipe.keep for name, recipe in RECIPES.items() if recipe.keep} == {
        FAST_V1.name: 10.0,
        FAST_V2.name: 20.0,
        FAST_TRIM.name: 20.0,
    }
    for recipe in RECIPES.values():
        assert list(recipe.grid.video) == sorted(recipe.grid.video, reverse=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_weights(tmp_path_factory.mktemp("plain"), seed=3).model


def gated(plain, path):
    state = load_file(plain)
    gates = {f"dit.blocks.{i}.attn.to_gate_compress.weight": torch.ones(128, 96) for i in range(3)}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({**state, **gates}, path, {"qkv_layout": "stacked", "streamrender_h3.example": "random"})
    return load_h3(path, **CPU)


def test_a_plain_checkpoint_is_the_base_model(plain):
    choice = choose_recipe(load_h3(plain, **CPU))
    assert choice.recipe is BASE_50 and choice.keep is None


def test_gates_are_fasth3_v2_and_a_name_tells_v1(plain, tmp_path):
    assert choose_recipe(gated(plain, tmp_path / "fasth3_v2.safetensors")).recipe is FAST_V2
    assert choose_recipe(gated(plain, tmp_path / "FastH3-preview.safetensors")).recipe is FAST_V1
    assert choose_recipe(gated(plain, tmp_path / "fasth3_v1.safetensors")).recipe is FAST_V1


@pytest.mark.parametrize("where", ["beside it", "one folder up"])
def test_the_side_file_decides_steps_and_share(plain, tmp_path, where):
    model = gated(plain, tmp_path / "transformer" / "model.safetensors")
    place = tmp_path / "transformer" if where == "beside it" else tmp_path
    side = {"sampling": {"base_positions": [1.0, 0.75, 0.5, 0.25], "shift": 12}, "attention": {"vsa_sparsity": 0.9}}
    (place / "fastvideo_inference.json").write_text(json.dumps(side))
    choice = choose_recipe(model)
    assert (choice.recipe, choice.keep) == (FAST_V1, 10.0)
    (place / "fastvideo_inference.json").write_text(json.dumps({"num_inference_steps": 8, "VSA_sparsity": 0.8}))
    choice = choose_recipe(model)
    assert (choice.recipe, choice.keep) == (FAST_V2, 20.0)
    assert choose_recipe(model, TURBO_4.name).recipe is TURBO_4


def test_a_turbo_adapter_and_finished_tables_decide_too(plain, tmp_path):
    model = load_h3(plain, **CPU)
    for name, steps in (("minimax_h3_ref2v_turbo_4step_v0.1.safetensors", 4), ("h3-8-step-turbo.safetensors", 8)):
        adapter = SimpleNamespace(name=name)
        assert choose_recipe(replace(model, adapters=(adapter,))).recipe.steps == steps
    written = write_table_checkpoint(model.modulation, TURBO_4.grid.h3_times(), tmp_path / "tables.safetensors")
    assert choose_recipe(load_h3(written.path, **CPU)).recipe is TURBO_4


def test_a_pack_of_finished_tables_has_no_clean_time_and_names_its_share(plain, tmp_path):
    """FastH3 packs hold the times of text to video alone, and the sparsity in a tensor."""
    model = load_h3(plain, **CPU)
    times = ladder(FAST_V1.grid, clean=False)
    assert len(times) == len(FAST_V1.grid.h3_times()) - 1 == 8
    tables = model.modulation.tables(times)
    state = {n.removeprefix("dit."): t for n, t in load_file(plain).items() if "adaln" not in n and "time_emb" not in n}
    state |= {f"blocks.{i}.attn.vsa_gate.weight": torch.ones(128, 96) for i in range(3)}
    state |= {f"h3.fasth3.blocks.{i}.adaln": table.flatten(1).contiguous() for i, table in enumerate(tables.blocks)}
    state |= {"h3.fasth3.times": tables.times, "h3.fasth3.final.adaln": tables.final.flatten(1).contiguous()}
    state |= {"h3.fasth3.version": torch.tensor([2]), "h3.fasth3.vsa.sparsity": torch.tensor([0.85])}
    save_file(state, tmp_path / "pack.safetensors", {"streamrender_h3.example": "random"})
    pack = load_h3(tmp_path / "pack.safetensors", **CPU)
    choice = choose_recipe(pack)
    assert (choice.recipe, choice.keep) == (FAST_V1, 15.0) and "finished tables" in choice.reason
    words = TextLook(torch.randn(5, TEXT_DIM), torch.ones(5, dtype=torch.int64), 0, (64, 96))
    codec = load_decoder(plain.parents[1] / "vae_approx" / "taeh3_example.safetensors")
    chunks = list(render_clip(ClipInputs(words, pack, codec), ClipSettings(FAST_V1, ClipPlan.of(5), 1)))
    whole = list(render_clip(ClipInputs(words, model, codec), ClipSettings(FAST_V1, ClipPlan.of(5), 1)))
    torch.testing.assert_close(chunks[0].video, whole[0].video, rtol=1e-5, atol=1e-5)


def test_trim_is_known_by_its_modulation_and_gates():
    tensors = SimpleNamespace(
        form=LOW_RANK,
        checkpoint=SimpleNamespace(headers=[SimpleNamespace(path="/nowhere/x.safetensors")], tensors={}),
    )
    model = SimpleNamespace(
        adapters=(), modulation=SimpleNamespace(tensors=tensors), config=SimpleNamespace(gate_compress=True)
    )
    assert choose_recipe(model).recipe is FAST_TRIM


def test_an_unknown_recipe_is_named(plain):
    with pytest.raises(RenderError, match="recipe is 'FastH3 V9'"):
        choose_recipe(load_h3(plain, **CPU), "FastH3 V9")


GATED = {"gated": True, "rows": 38_710}


@pytest.mark.parametrize(
    ("mode", "recipe", "options", "keep", "warning"),
    [
        ("auto", FAST_V1, GATED, 10.0, None),
        ("auto", FAST_V2, GATED, 20.0, None),
        ("auto", FAST_V2, {**GATED, "trained": 15.0}, 15.0, None),
        ("auto", FAST_V1, {**GATED, "gated": False}, None, None),
        ("auto", BASE_50, {**GATED, "gated": False}, None, None),
        ("auto", FAST_V1, {**GATED, "rows": 9_000}, None, "fewer than vsa_min_rows"),
        (
            "auto",
            FAST_V1,
            {**GATED, "keep": 30.0},
            30.0,
            "trained to attend to 10 % of the video tiles and is rendered with 30 %",
        ),
        ("vsa", FAST_V2, {**GATED, "keep": 20.0}, 20.0, None),
        ("vsa", FAST_V2, {**GATED, "keep": 100.0}, 100.0, "rendered with 100 %"),  # the gates still act
        ("vsa", BASE_50, {"gated": False, "rows": 38_710, "keep": 10.0}, 10.0, "trained with dense attention"),
        ("dense", FAST_V1, GATED, None, "trained to attend to 10 % of the video tiles and is rendered with dense"),
        ("dense", BASE_50, {**GATED, "gated": False}, None, None),
    ],
)
def test_attention_is_what_the_checkpoint_was_trained_for_and_anything_else_is_warned_of(
    mode, recipe, options, keep, warning
):
    decision = decide(mode, recipe, **options)
    assert (decision.sparsity.keep if decision.sparsity else None) == keep
    assert len(decision.warnings) == (warning is not None)
    assert warning is None or warning in decision.warnings[0]


def test_a_share_is_needed_where_nothing_says_one():
    with pytest.raises(RenderError, match="set vsa_keep_percent"):
        decide("vsa", BASE_50, gated=False, rows=38_710)


def test_tiles_of_the_reference_need_one_and_are_warned_of():
    options = {"gated": False, "rows": 54_648, "keep": 10.0}
    decision = decide("vsa_target_ref", BASE_50, reference=True, **options)
    assert decision.sparsity.target_ref and any("no checkpoint was trained" in words for words in decision.warnings)
    assert not decide("vsa", BASE_50, reference=True, **options).sparsity.target_ref
    with pytest.raises(RenderError, match="no reference video to tile; connect 'clip', or choose 'vsa'"):
        decide("vsa_target_ref", BASE_50, **options)
    with pytest.raises(RenderError, match=r"attention_mode is 'vsa_target_ref'.*set vsa_keep_percent"):
        decide("vsa_target_ref", BASE_50, reference=True, gated=False, rows=54_648)


def test_layers_are_read_from_a_list():
    assert layer_numbers("", 50) == frozenset()
    assert layer_numbers("0, 1, 48-49", 50) == {0, 1, 48, 49}
    for wrong in ("50", "3-1", "x", "-1"):
        with pytest.raises(RenderError, match="from 0 to 49"):
            layer_numbers(wrong, 50)
