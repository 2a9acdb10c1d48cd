"""The probe of sparse attention in a clip: layers whose chosen tiles miss the attention become dense, the others stay sparse."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import vsa_reference
from streamrender_h3.kernels.sparse_attention import choose_tiles
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.sampler.clip_attention import RowSegments, Sparsity
from streamrender_h3.nodes.sampler.clip_plan import ClipShape
from streamrender_h3.nodes.sampler.clip_probe import LEAST_RECALL, AutoDense
from streamrender_h3.nodes.sampler.clip_sparse import SparseClip
from streamrender_h3.workflows.nano.weights import write_weights
from test_clip_sparse import LIMIT, error, latents, network_of
from test_independent_recompute import sensitive

CPU = torch.device("cpu")
SHAPE = ClipShape.of(22, (320, 448), (160, 288))
SEGMENTS = RowSegments.of(SHAPE, 70)
MISSES, HOLDS = 0, 1  # layers


def prepared(target_ref, keep=40.0):
    attention = SparseClip(Sparsity(keep, target_ref=target_ref), torch.float32, 32, AutoDense(2, 2))
    return attention, attention.prepare(SEGMENTS, CPU)


def holding(tiles, random):
    """Every query looks along the mean of the tile of its own number."""
    small = [0.01 * torch.randn(tiles.rows, 2, 32, generator=random) for _ in range(2)]
    direction = torch.nn.functional.normalize(torch.randn(tiles.n_tiles, 2, 32, generator=random), dim=-1)
    return small[0] + 300 * direction[tiles.of_row.long()], small[1] + direction[tiles.of_row.long()]


def missing(tiles, random):
    """Strong keys that cancel in the mean of their tile, the last one, and that queries of either sign look along."""
    q, k = (0.01 * torch.randn(tiles.rows, 2, 32, generator=random) for _ in range(2))
    start, size = int(tiles.starts[-1]), int(tiles.sizes[-1]) // 2 * 2
    k[start : start + size, :, 0] += torch.tensor([30.0, -30.0]).repeat(size // 2)[:, None]
    q[:, :, 0] += torch.tensor([3.0, -3.0]).repeat(tiles.rows)[: tiles.rows, None]
    k[:, :, 1] += (tiles.of_row != tiles.n_tiles - 1)[:, None] * 0.5
    q[:, :, 1] += 0.5
    return q, k


@pytest.mark.parametrize("target_ref", [False, True])
def test_a_layer_whose_tiles_miss_the_attention_is_dense_and_one_whose_tiles_hold_it_is_not(target_ref):
    attention, ready = prepared(target_ref)
    tiles, random = ready.tiles, torch.Generator().manual_seed(2)
    v = torch.randn(tiles.rows, 2, 32, generator=random)
    plain = SparseClip(Sparsity(40.0, target_ref=target_ref), torch.float32, 32).prepare(SEGMENTS, CPU)
    for layer, (q, k) in ((MISSES, missing(tiles, random)), (HOLDS, holding(tiles, random))):
        dense = torch.einsum("hij,jhd->ihd", (torch.einsum("ihd,jhd->hij", q, k) * 32**-0.5).softmax(-1), v)
        without = plain.run(0, layer, q, k, v, None)
        for step in (0, 1):
            found = ready.run(step, layer, q, k, v, None)
            torch.testing.assert_close(found, dense if layer == MISSES else without, rtol=1e-5, atol=1e-5)
        if layer == MISSES:
            assert float((without - dense).abs().max()) > 0.1
    (told,) = attention.found()["attention_recall"]
    assert told["dense_layers"] == [MISSES] and told["step"] == 0
    low, high = told["layers"]
    assert low["recall"] < 0.5 < 0.95 < low["ceiling"] and high["recall"] > 0.9


@pytest.mark.parametrize("target_ref", [False, True])
def test_the_figures_are_those_of_an_exact_computation(target_ref):
    attention, ready = prepared(target_ref, keep=30.0)
    tiles, random = ready.tiles, torch.Generator().manual_seed(3)
    q, k = (2 * torch.randn(tiles.rows, 2, 32, generator=random) for _ in range(2))
    ready.run(0, 5, q, k, k, None)
    told = attention.found()["attention_recall"][0]["layers"][0]
    kept = tiles.budget(0.7)
    lists = choose_tiles(ready.choice.steps, q, k, None, tiles, kept, forced=ready.forced).lists
    held, best = [], []
    for head, rows in enumerate(ready.probe.rows.tolist()):
        weights = (q[rows, head].double() @ k[:, head].double().T * 32**-0.5).softmax(-1)
        shares = [torch.stack([part.sum() for part in row.split(tiles.sizes.tolist())]) for row in weights]
        held.append(0.0)
        best.append(0.0)
        for row, share in zip(rows, shares, strict=True):
            query = int(tiles.of_row[row]) - tiles.n_prefix
            chosen = lists.listed[head, query, : lists.count[head, query]].long()
            prefix = share[: tiles.n_prefix].sum()
            held[head] += float(prefix + share[chosen].sum()) / len(rows)
            best[head] += float(
                prefix + share[tiles.n_prefix :].sort(descending=True).values[: len(chosen)].sum()
            ) / len(rows)
    worst = min(range(2), key=held.__getitem__)
    assert told["layer"] == 5 and told["worst_head"] == worst
    for name, exact in (
        ("recall", sum(held) / 2),
        ("ceiling", sum(best) / 2),
        ("worst_recall", held[worst]),
        ("worst_ceiling", best[worst]),
    ):
        assert told[name] == pytest.approx(exact, abs=6e-5)  # the report has four digits


@pytest.mark.parametrize("target_ref", [False, True])
def test_in_a_model_the_vetoed_layers_are_as_if_named_dense(tmp_path, target_ref):
    path = sensitive(write_weights(tmp_path / "weights", seed=8).model, tmp_path / "plain.safetensors")
    model, given = load_h3(path, dtype=torch.float32, device="cpu"), latents(SHAPE)
    options = {"dense_first_steps": 1, "target_ref": target_ref}
    probed = SparseClip(Sparsity(5.0, **options), torch.float32, 32, AutoDense(4, 3))
    assert "attention_recall" not in probed.facts()
    network = network_of(model, SHAPE, probed)
    network(given, 0)
    assert probed.found()["attention_recall"][0]["layers"] == []  # a dense step measures nothing
    found = [network(given, step) for step in (1, 2)]
    (told,) = probed.found()["attention_recall"]
    assert told["step"] == 1 and [layer["layer"] for layer in told["layers"]] == [0, 1, 2]
    assert told["dense_layers"] == [x["layer"] for x in told["layers"] if x["recall"] < LEAST_RECALL]
    named = Sparsity(5.0, dense_layers=frozenset(told["dense_layers"]), **options)
    wanted = network_of(model, SHAPE, SparseClip(named, torch.float32, 32))
    for step, made in zip((1, 2), found, strict=True):
        assert error(made, wanted(given, step)) <= LIMIT
    if len(told["dense_layers"]) == 3:
        assert error(found[0], network_of(model, SHAPE, vsa_reference.TileOrdered(0.0))(given, 1)) <= LIMIT
