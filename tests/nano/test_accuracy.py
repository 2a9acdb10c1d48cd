"""The comparison of number formats, on tiny random weights: exact forms agree, quantised ones are told apart."""

import pytest
import torch
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.sampler import Conditions
from streamrender_h3.nodes.schedule import Geometry
from streamrender_h3.workflows.nano import accuracy
from streamrender_h3.workflows.nano.weights import write_weights

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def latents(tmp_path_factory):
    """name -> (latents, predictions of chunk 1) of every variant of the CPU."""
    file = write_weights(tmp_path_factory.mktemp("weights"), seed=4).model
    random = torch.Generator().manual_seed(1)
    tags, made = torch.tensor([1, 1, 0, 0, 0, 0, 0, 1, 1, 1]), {}
    maps = torch.randn(24, 17, 4, 4, generator=random)
    for variant in [*accuracy.variants(CPU), accuracy.Variant("weights in fp8", weights="fp8")]:
        model = load_h3(file, dtype=torch.float32, device=CPU, weights=variant.weights)
        text = torch.randn(len(tags), model.config.text_dim, generator=torch.Generator().manual_seed(2))
        picture = torch.randn(24, 1, 4, 6, generator=torch.Generator().manual_seed(3))
        conditions = Conditions(text, tags, 7, picture, Geometry(target=(4, 6), reference=(4, 4), picture=(4, 6)))
        made[variant.name] = accuracy.rendered(variant, model, conditions, maps, CPU, 3)
    return made


def test_a_bank_in_any_exact_form_is_the_recomputed_window(latents):
    exact, steps = latents["float32, plain modules"]
    assert len(steps) == 2 and exact.shape[1] == 9 + 3 + 2
    for name in ("float32, recomputed without a bank", "float32, sandwich"):
        assert accuracy.relative(latents[name][0], exact) < 1e-5
        assert all(accuracy.relative(a, b) < 1e-5 for a, b in zip(latents[name][1], steps, strict=True))


@pytest.mark.parametrize("name", ["float32, bank in fp8", "weights in fp8"])
def test_quantised_forms_differ_a_little(latents, name):
    assert 1e-5 < accuracy.relative(latents[name][0], latents["float32, plain modules"][0]) < 0.1
