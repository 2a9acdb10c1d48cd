"""Sparse attention with gates in a whole clip: our network against diffusers' with the specification's attention in it."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))
import vsa_reference
from clip_oracle import layout, velocities
from recompute_network import Network, diffusers_state
from streamrender_h3.kernels.dense_attention import choose_dense
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.model import Form
from streamrender_h3.nodes.sampler.clip_attention import RowSegments, Sparsity
from streamrender_h3.nodes.sampler.clip_network import ClipLatents, ClipNetwork, ClipText
from streamrender_h3.nodes.sampler.clip_plan import ClipShape, latents_of, sound_of
from streamrender_h3.nodes.sampler.clip_recipes import FAST_V1
from streamrender_h3.nodes.sampler.clip_sparse import SparseClip
from streamrender_h3.workflows.nano.weights import TEXT_DIM, write_weights
from test_independent_recompute import sensitive

FRAMES, SIZE, MAP_SIZE = 39, (160, 224), (96, 128)  # 12 latents of 5 x 7 rows: clipped tiles on every side
LIMIT = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sparse")


@pytest.fixture(scope="module")
def plain(folder):
    return sensitive(write_weights(folder / "weights", seed=8).model, folder / "plain.safetensors")


@pytest.fixture(scope="module")
def gates():
    generator = torch.Generator().manual_seed(4)
    return [0.3 * torch.randn(128, 96, generator=generator) for _ in range(3)]


@pytest.fixture(scope="module")
def fast(folder, plain, gates):
    """A FastH3-style file: diffusers' names with gates."""
    state = diffusers_state(load_file(plain))
    state |= {f"transformer_blocks.{i}.attn.to_gate_compress.weight": gate for i, gate in enumerate(gates)}
    path = folder / "fast.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return load_h3(path, dtype=torch.float32, device="cpu")


def latents(shape, seed=5):
    g = torch.Generator().manual_seed(seed)
    count = latents_of(shape.frames)
    return ClipLatents(
        video=torch.randn(24, count, *shape.target, generator=g),
        audio=torch.randn(2, 32, sound_of(shape.frames), generator=g),
        picture=torch.randn(24, 1, *shape.picture, generator=g) if shape.picture else None,
        reference=torch.randn(24, count, *shape.reference, generator=g) if shape.reference else None,
    )


def network_of(model, shape, attention=None):
    g = torch.Generator().manual_seed(9)
    text = ClipText(torch.randn(70, TEXT_DIM, generator=g), (torch.arange(70) > 3).long())
    tables = model.modulation.tables(FAST_V1.grid.h3_times())
    return ClipNetwork(model.model, tables, text, shape, FAST_V1.grid, attention=attention)


def error(found, wanted):
    pairs = zip(found, wanted, strict=True)
    return max(float(((a - b).norm() / b.norm()).detach()) for a, b in pairs)


SHAPES = {"T2VA": ClipShape.of(FRAMES, SIZE), "Ref2VA": ClipShape.of(FRAMES, SIZE, MAP_SIZE)}


@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("sparsity", [0.5, 0.8])
def test_a_forward_equals_diffusers_with_the_attention_of_the_specification(plain, fast, gates, mode, sparsity):
    shape, step = SHAPES[mode], 1
    given = latents(shape)
    attention = vsa_reference.TileOrdered(sparsity)
    network = network_of(fast, shape, attention)
    found = network(given, step)
    assert attention.calls == [(step, layer, True) for layer in range(3)]

    theirs = Network(plain)
    parts = shape.segments(70)
    runs = [len(rows) for name, rows in parts.items() if name != "video" and rows]
    grid = (latents_of(FRAMES), SIZE[0] // 32, SIZE[1] // 32)
    cut, prefix = vsa_reference.tiles(runs, grid, (4, 4, 4))
    assert len(cut) - prefix == 3 * 2 * 2
    for block, gate in zip(theirs.model.transformer_blocks, gates, strict=True):
        block.attn.set_processor(vsa_reference.VsaProcessor(gate, cut, prefix, sparsity))
    sigmas = FAST_V1.grid.video[step], FAST_V1.grid.audio[step]
    times = [1 - torch.tensor(sigma, dtype=torch.float32) for sigma in sigmas]
    text = network.text
    v, a = velocities(theirs, text.text, text.tags, given.video, given.audio, times, given.picture, given.reference)
    wanted = given.video + sigmas[0] * v, given.audio + sigmas[1] * a
    assert error(found, wanted) <= LIMIT
    assert error(network_of(fast, shape)(given, step), wanted) > 1e-3  # dense and without gates


@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("keep", [20.0, 50.0, 100.0])
def test_the_packs_kernels_give_the_same(fast, mode, keep):
    """Their definitions, on the CPU; dense steps and layers keep every tile and the gates."""
    shape, given = SHAPES[mode], latents(SHAPES[mode])
    packs = SparseClip(Sparsity(keep, dense_first_steps=1, dense_layers=frozenset({1})), torch.float32, 32)
    found = network_of(fast, shape, packs)
    assert error(found(given, 0), network_of(fast, shape, vsa_reference.TileOrdered(0.0))(given, 0)) <= LIMIT
    wanted = vsa_reference.TileOrdered(1 - keep / 100, dense_layers=(1,))
    assert error(found(given, 1), network_of(fast, shape, wanted)(given, 1)) <= LIMIT
    assert packs.facts()["dense_layers"] == [1] and packs.working_bytes(RowSegments.of(shape, 70), 4, 32, 4) > 10**5


def test_positions_and_tags_are_diffusers_own():
    for shape in SHAPES.values():
        given, tags = latents(shape), torch.tensor([1] * 5 + [0] * 4 + [1] * 3)
        positions, token_tags, *_ = layout(tags, given.video, sound_of(FRAMES), given.picture, given.reference)
        torch.testing.assert_close(torch.tensor(shape.positions(12), dtype=torch.float64), positions, rtol=0, atol=1e-9)
        assert shape.tags(tags.tolist()) == token_tags.tolist()


@pytest.mark.parametrize("mode", SHAPES)
def test_nothing_left_out_and_no_gate_is_dense_attention(plain, mode):
    model, shape = load_h3(plain, dtype=torch.float32, device="cpu"), SHAPES[mode]
    given, attention = latents(shape), vsa_reference.TileOrdered(0.0)
    found = network_of(model, shape, attention)(given, 0)
    assert attention.calls[0] == (0, 0, False)
    assert error(found, network_of(model, shape)(given, 0)) <= LIMIT


def test_gates_that_are_all_zero_are_no_gates(folder, plain, fast):
    state = load_file(plain)
    zeros = {f"dit.blocks.{i}.attn.to_gate_compress.weight": torch.zeros(128, 96) for i in range(3)}
    save_file({**state, **zeros}, folder / "zero.safetensors", {"qkv_layout": "stacked"})
    given, shape = latents(SHAPES["T2VA"]), SHAPES["T2VA"]
    results = []
    for path in (folder / "zero.safetensors", plain):
        model, attention = load_h3(path, dtype=torch.float32, device="cpu"), vsa_reference.TileOrdered(0.5)
        results.append(network_of(model, shape, attention)(given, 0))
        assert not any(gated for *_, gated in attention.calls)
    assert error(*results) <= LIMIT
    assert error(network_of(fast, shape, vsa_reference.TileOrdered(0.5))(given, 0), results[0]) > 1e-3


def test_dense_steps_ask_the_attention_for_nothing(fast):
    shape, attention = SHAPES["T2VA"], vsa_reference.TileOrdered(0.5, dense_steps=1)
    network, given = network_of(fast, shape, attention), latents(SHAPES["T2VA"])
    dense = network_of(fast, shape)
    assert error(network(given, 0), dense(given, 0)) <= LIMIT  # in tile order all the same
    assert not attention.calls
    assert error(network(given, 1), dense(given, 1)) > 1e-3
    assert [step for step, *_ in attention.calls] == [1] * 3


@pytest.mark.parametrize("mode", SHAPES)
def test_the_fast_form_gives_order_and_gates_the_same(fast, mode):
    """The form with kernels, here their references on the CPU, with dense and with sparse attention."""
    form = Form(choose_dense(torch.device("cpu"), torch.float32, 32), frozenset())
    given, shape = latents(SHAPES[mode]), SHAPES[mode]
    for attention in (None, vsa_reference.TileOrdered(0.5)):
        slow = network_of(fast, shape, attention)
        quick = replace(network_of(fast, shape, attention), form=form)
        assert error(quick(given, 2), slow(given, 2)) <= LIMIT
