"""The command `bench sparse` on the CPU, with a tiny network and a plain stand-in for FastVideo's kernel, which needs a GPU."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from streamrender_h3 import cli
from streamrender_h3.nodes.bench import model, sparse
from streamrender_h3.nodes.model import H3Config

TINY = H3Config(hidden=96, layers=3, refiner_layers=1, heads=2, head_dim=32, ffn=160, text_dim=80, freq_dim=256,
                time_hidden=96, time_dim=48, rope_freqs=4)  # fmt: skip
TILE = 64


def masked(q, k, v, listed, counts, sizes):
    """FastVideo's arguments: padded tiles [1, heads, slots, d], key tiles of every query tile, rows of every tile."""
    heads, tiles = counts.shape[1:]
    seen = torch.zeros(heads, tiles, tiles, dtype=torch.bool)
    for head in range(heads):
        for tile in range(tiles):
            seen[head, tile, listed[0, head, tile, : counts[0, head, tile]].long()] = True
    live = (torch.arange(TILE) < sizes[:, None]).flatten()
    mask = seen.repeat_interleave(TILE, 1).repeat_interleave(TILE, 2) & live
    return (torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[None]),)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(model.PRESETS, "example", model.Preset(TINY, (128, 160), 24))
    yield
    model.release_weights()


def run(capsys) -> dict:
    args = cli.parser("bench").parse_args(["bench", "sparse", "--preset", "example", "--device", "cpu", "--json"])
    assert args.run(args) == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    return report


def test_one_layer_is_measured_dense_sparse_and_by_fastvideo_over_the_same_tiles(capsys, monkeypatch):
    monkeypatch.setattr(sparse, "peer", lambda: SimpleNamespace(triton_block_sparse_attn_forward=masked))
    report = run(capsys)
    kinds = ("attention", "with the choice of tiles", "attention by FastVideo")
    assert [row["name"] for row in report["rows"]] == [
        "dense, sdpa", *(f"keep {keep} %, {kind}" for keep in (10, 20) for kind in kinds)
    ]  # fmt: skip
    facts, rows = report["facts"], {row["name"]: row for row in report["rows"]}
    for keep in ("keep 10 %", "keep 20 %"):
        assert facts[f"{keep}: they differ by"] < 1e-5
        wanted = rows[f"{keep}, attention by FastVideo"]["ms"] / rows[f"{keep}, attention"]["ms"]
        assert facts[f"{keep}: FastVideo / this"] == pytest.approx(wanted, rel=1e-3)


def test_without_fastvideo_it_says_how_to_get_it(capsys):
    report = run(capsys)
    assert len(report["rows"]) == 5
    assert report["facts"]["keep 10 %: FastVideo's kernel"] == "pip install fastvideo-kernel to compare"
