"""Video Sparse Attention gives the numbers of FastVideo's own functions, on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from streamrender_h3.kernels import block_sparse, pair_sparse, tile_means
from streamrender_h3.kernels.block_sparse import Lists, seen_tiles
from streamrender_h3.kernels.dense_attention import choose_dense
from streamrender_h3.kernels.sparse_attention import REFERENCE, choose_tiles, spans, vsa
from streamrender_h3.kernels.tile_lists import coarse_scores
from streamrender_h3.kernels.tiles import Tiles

HERE = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((HERE / "vsa_tiny.json").read_text())
TENSORS = load_file(HERE / "vsa_tiny.safetensors")
CASES = {case["name"]: case for case in GOLDEN["tensors"]}
VARIANTS = [(case["name"], variant) for case in GOLDEN["tensors"] for variant in case["variants"]]
LIMIT = 5e-6
CPU = torch.device("cpu")
DENSE = choose_dense(CPU, torch.float32, 32, "sdpa")


def tiles_of(name: str) -> Tiles:
    case = CASES[name]
    return Tiles.of([*case["prefix"], tuple(case["grid"])], tuple(case["tile"]))


def in_tile_order(tiles: Tiles, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [TENSORS[name][tiles.order].to(dtype) for name in ("q", "k", "v")]


def ids(value):
    return value["key"] if isinstance(value, dict) else None


@pytest.mark.parametrize("name", CASES)
def test_means_scores_and_compression_are_those_of_fastvideo(name):
    tiles = tiles_of(name)
    q, k, v = (tile_means.reference(x, spans(tiles)) for x in in_tile_order(tiles))
    for made, key in ((q, "q_pool"), (k, "k_pool"), (v, "v_pool")):
        torch.testing.assert_close(made, TENSORS[f"{name}.{key}"], rtol=0, atol=1e-6)
    scores = coarse_scores(q, k)
    torch.testing.assert_close(scores, TENSORS[f"{name}.scores"], rtol=0, atol=LIMIT)
    torch.testing.assert_close(scores.softmax(-1) @ v, TENSORS[f"{name}.comp"], rtol=0, atol=LIMIT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=ids)
def test_chosen_tiles_are_those_of_fastvideo(name, variant, dtype):
    tiles = tiles_of(name)
    kept = tiles.budget(variant["sparsity"])
    assert kept == variant["k_vid"]
    if kept == tiles.n_video:
        return
    chosen = choose_tiles(REFERENCE, *in_tile_order(tiles, dtype), tiles, kept, variant["mode"])
    expected = TENSORS[f"{variant['key']}.mask"].bool()
    assert torch.equal(seen_tiles(chosen.lists, tiles.n_tiles), expected[:, tiles.n_prefix :])
    assert expected[:, : tiles.n_prefix].all()


@pytest.mark.parametrize("joined", [True, False], ids=["prefix joined", "prefix listed"])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(("name", "variant"), [pair for pair in VARIANTS if pair[1]["has_output"]], ids=ids)
def test_output_is_that_of_fastvideo(name, variant, gated, joined):
    tiles = tiles_of(name)
    dense = DENSE if joined else replace(DENSE, run_lse=None)
    gate = TENSORS["gate"][tiles.order] if gated else None
    made = vsa(
        *in_tile_order(tiles), tiles, variant["sparsity"], steps=REFERENCE, dense=dense, gate=gate, mode=variant["mode"]
    )
    expected = TENSORS[variant["key"] + (".out_gated" if gated else ".out")]
    torch.testing.assert_close(made[tiles.inverse], expected, rtol=0, atol=LIMIT)


def refused(name: str) -> None:
    tiles = tiles_of("a")
    q, k, v = in_tile_order(tiles)
    lists = Lists(3, torch.zeros(2, 15, 1, dtype=torch.int32), torch.zeros(2, 15, dtype=torch.int32))
    where = (spans(tiles), spans(tiles), lists)
    calls = {
        "channels apart": lambda: block_sparse.launch(q, k[..., ::2], v[..., ::2], *where, torch.empty_like(q)),
        "two layouts": lambda: block_sparse.launch(
            q, k.transpose(0, 1).contiguous().transpose(0, 1), v, *where, q.clone()
        ),
        "columns of out": lambda: block_sparse.launch(q, k, v, *where, torch.empty(2, 300, 32).transpose(0, 1)),
        "rows of means": lambda: tile_means.launch(q[:, ::2], spans(tiles)),
        "pairs that see tiles always": lambda: pair_sparse.launch(q, k, v, *where, torch.empty_like(q)),
    }
    calls[name]()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("channels apart", r"k .* has strides .* call \.contiguous\(\)"),
        ("two layouts", r"k and v have strides .* needs the same; call \.contiguous\(\) on them first"),
        ("columns of out", "out .* has strides .* make it contiguous"),
        ("rows of means", r"x .* needs the heads of a row contiguous"),
        ("pairs that see tiles always", "3 tiles seen always .* use block_sparse"),
    ],
)
def test_a_kernel_refuses_what_it_would_misread(name, message):
    with pytest.raises(ValueError, match=message):
        refused(name)
