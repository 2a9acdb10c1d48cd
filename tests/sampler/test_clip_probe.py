"""The recall probe of whole clips: layers whose chosen tiles hold too little of the attention are dense, the others stay sparse."""

import torch
from streamrender_h3.kernels.dense_attention import choose_dense
from streamrender_h3.nodes.sampler.clip_attention import RowSegments, Sparsity
from streamrender_h3.nodes.sampler.clip_probe import LEAST_RECALL, AutoDense
from streamrender_h3.nodes.sampler.clip_sparse import SparseClip

HEADS, WIDTH, LAYERS = 2, 32, 3
SEGMENTS = RowSegments((6,), (8, 8, 8))  # six rows of text, eight tiles of 64
KEEP = 25.0  # two of eight tiles
CPU = torch.device("cpu")
PLAIN, HIDDEN = 0, 1  # layers


def prepared(auto_dense=True, **changes):
    probe = AutoDense(HEADS, LAYERS) if auto_dense else None
    clip = SparseClip(Sparsity(KEEP, **changes), torch.float32, WIDTH, probe)
    return clip, clip.prepare(SEGMENTS, CPU)


def rows(tiles, layer):
    """q, k and v in tile order. Every tile asks for the keys of the next one; the hidden layer's keys point both ways, so that
    the means of their tiles tell nothing."""
    generator = torch.Generator().manual_seed(layer)
    directions = torch.nn.functional.normalize(torch.randn(tiles.n_tiles, HEADS, WIDTH, generator=generator), dim=-1)
    of_row = tiles.of_row.long()
    q, k = (40 * directions[(of_row + 1) % tiles.n_tiles]), 3 * directions[of_row]
    if layer == HIDDEN:
        sign = torch.where(torch.arange(tiles.rows) % 2 == 0, 1.0, -1.0)[:, None, None]
        k = torch.where(of_row[:, None, None] >= tiles.n_prefix, sign * k, k)
    return q, k, torch.randn(tiles.rows, HEADS, WIDTH, generator=generator)


def dense(q, k, v):
    return choose_dense(CPU, torch.float32, WIDTH, "sdpa").run(q, k, v)


def test_a_layer_whose_tiles_miss_the_attention_is_dense_at_once_and_from_then_on():
    _, sparse = prepared()
    for step in (0, 1):
        q, k, v = rows(sparse.tiles, HIDDEN)
        torch.testing.assert_close(sparse.run(step, HIDDEN, q, k, v, None), dense(q, k, v))
    without = prepared(auto_dense=False)[1].run(0, HIDDEN, q, k, v, None)
    assert (without - dense(q, k, v)).abs().max() > 0.1  # what the veto is for
    assert sparse.probe.vetoed == [HIDDEN] and sparse.probe.found[HIDDEN].recall < LEAST_RECALL


def test_a_layer_whose_tiles_hold_the_attention_stays_sparse():
    _, sparse = prepared()
    q, k, v = rows(sparse.tiles, PLAIN)
    made = sparse.run(0, PLAIN, q, k, v, None)
    torch.testing.assert_close(made, prepared(auto_dense=False)[1].run(0, PLAIN, q, k, v, None))
    found = sparse.probe.found[PLAIN]
    assert sparse.probe.vetoed == [] and LEAST_RECALL < found.recall <= found.ceiling <= 1.0 + 1e-6


def test_the_report_has_every_layer_once_with_the_share_its_tiles_really_hold():
    clip, sparse = prepared()
    for step in (0, 1):
        for layer in range(LAYERS):
            sparse.run(step, layer, *rows(sparse.tiles, layer), None)
    (found,) = clip.found()["attention_recall"]
    assert [one["layer"] for one in found["layers"]] == [0, 1, 2] and found["dense_layers"] == [HIDDEN]
    assert found["step"] == 0 and found["rows"] == SEGMENTS.rows
    assert clip.facts()["auto_dense"]["least_recall"] == LEAST_RECALL
    tiles, (q, k, v) = sparse.tiles, rows(sparse.tiles, HIDDEN)
    lists = sparse.choose(q, k, v, None).lists
    weights = torch.einsum("qhd,khd->hqk", q, k).mul(WIDTH**-0.5).softmax(-1)
    held = []
    for head in range(HEADS):
        for row in range(tiles.prefix_rows, tiles.rows):
            listed = lists.listed[head, int(tiles.of_row[row]) - tiles.n_prefix]
            seen = tiles.of_row < tiles.n_prefix
            seen |= torch.isin(tiles.of_row, listed)
            held.append(weights[head, row, seen].sum())
    exact = torch.stack(held).mean().item()
    assert abs(found["layers"][HIDDEN]["recall"] - exact) < 0.08  # of 128 rows a head instead of all 512


def test_steps_and_layers_that_are_dense_anyhow_are_not_probed():
    _, sparse = prepared(dense_first_steps=1, dense_layers=frozenset({2}))
    for layer in (0, 2):
        sparse.run(0, layer, *rows(sparse.tiles, layer), None)
    sparse.run(1, 2, *rows(sparse.tiles, 2), None)
    assert sparse.probe.found == {}
    sparse.run(1, 0, *rows(sparse.tiles, 0), None)
    assert list(sparse.probe.found) == [0] and sparse.probe.step == 1


def test_without_it_nothing_is_measured():
    clip, sparse = prepared(auto_dense=False)
    sparse.run(0, HIDDEN, *rows(sparse.tiles, HIDDEN), None)
    assert sparse.probe is None and clip.found() == {} and "auto_dense" not in clip.facts()
