"""The tiles of a packed sequence are those of FastVideo, and lie one after another without padding."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from streamrender_h3.kernels.tiles import Tiles, kept_tiles

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "vsa_tiny.json").read_text())
WINDOW = (1500, (3, 15, 26), 30, (3, 24, 42))  # text, reference video, audio, target video


def plan(case: dict) -> Tiles:
    return Tiles.of([*case["prefix"], tuple(case["grid"])], tuple(case["tile"]))


def digest(numbers: torch.Tensor) -> str:
    return hashlib.sha256(numbers.int().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("case", GOLDEN["geometry"], ids=lambda case: f"{case['prefix']} {case['grid']} {case['tile']}")
def test_tiles_are_those_of_fastvideo(case):
    tiles = plan(case)
    source, slot = tiles.padded()
    assert (tiles.rows, tiles.slots, tiles.n_prefix, tiles.n_video) == tuple(
        case[name] for name in ("rows", "slots", "n_prefix", "n_video")
    )
    assert tiles.sizes.tolist() == case["sizes"]
    assert digest(source) == case["src_sha256"] and digest(slot) == case["inverse_sha256"]
    if "src" in case:
        assert source.tolist() == case["src"] and slot.tolist() == case["inverse"]


@pytest.mark.parametrize("budget", GOLDEN["budget"], ids=lambda budget: str(budget["sparsity"]))
def test_budget_is_that_of_fastvideo(budget):
    assert [kept_tiles(budget["sparsity"], tiles) for tiles in budget["V"]] == budget["k"]


@pytest.mark.parametrize("tile", [(4, 4, 4), (1, 8, 8), (4, 8, 8)], ids=str)
def test_rows_of_a_tile_follow_one_another_and_runs_come_first(tile):
    tiles = Tiles.of(WINDOW, tile)
    assert tiles.prefix_rows == 1530 and tiles.starts[tiles.n_prefix] == 1530
    assert torch.equal(tiles.starts[1:], tiles.starts[:-1] + tiles.sizes[:-1])
    assert torch.equal(tiles.order[tiles.inverse], torch.arange(tiles.rows))
    assert torch.equal(tiles.order[:1500], torch.arange(1500))
    assert torch.equal(tiles.order[1500:1530], torch.arange(1500 + 1170, 1530 + 1170))


def test_a_second_grid_has_tiles_of_its_own():
    tiles = Tiles.of(WINDOW, (1, 8, 8))
    assert tiles.n_video == 3 * (2 * 4) + 3 * (3 * 6)  # as in section 1.4 of the specification: 8 and 18 per latent
    first_reference = tiles.order[tiles.starts[tiles.n_prefix] :][:64].reshape(8, 8)
    assert first_reference[1, 0] - first_reference[0, 0] == 26
    last = tiles.order[tiles.starts[-1] :].reshape(8, 2)
    assert last[-1, -1] == tiles.rows - 1 and last[1, 0] - last[0, 0] == 42


def test_a_tile_without_extent_is_refused():
    with pytest.raises(ValueError, match=r"a tile of \(4, 0, 4\) holds nothing"):
        Tiles.of([5], (4, 0, 4))


def test_a_plan_moves_as_a_whole():
    moved = Tiles.of(WINDOW, (1, 8, 8)).to("meta")
    assert {x.device.type for x in (moved.order, moved.inverse, moved.starts, moved.sizes, moved.of_row)} == {"meta"}
