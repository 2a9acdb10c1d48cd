"""Adapters on models whose modulation or weights are in a form that they cannot simply be added to."""

from dataclasses import replace

import pytest
import torch
from lora_files import ADALN, CORE, CPU, adapter, save
from safetensors.torch import save_file
from streamrender_h3.nodes.loader import (
    CheckpointError,
    load_h3,
    with_adapter,
    write_h3,
)


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
