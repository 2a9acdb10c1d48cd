"""The probe of sparse attention: shares of the true attention, never above what whole tiles can hold."""

from __future__ import annotations

import torch
from streamrender_h3.kernels.recall import recall, sampled_rows, tile_mass
from streamrender_h3.kernels.sparse_attention import REFERENCE
from streamrender_h3.kernels.tiles import Tiles

TILES = Tiles.of([70, 5, (5, 5, 9)], (4, 4, 4))
RANDOM = torch.Generator().manual_seed(0)
Q, K = (torch.randn(TILES.rows, 2, 32, generator=RANDOM) for _ in range(2))
ROWS = sampled_rows(TILES, 2)


def test_mass_of_tiles_is_that_of_their_rows():
    rows = torch.tensor([0, 80, 299])
    mass = tile_mass(Q[:, 0], K[:, 0], TILES, rows)
    torch.testing.assert_close(mass.sum(-1), torch.ones(3))
    weight = (Q[80, 0] @ K[:, 0].t() * 32**-0.5).softmax(-1)
    torch.testing.assert_close(mass[1, 3], weight[75:139].sum())


def test_every_tile_holds_everything_and_few_hold_less_than_the_best():
    whole = recall(Q, K, TILES, 0.0, ROWS, steps=REFERENCE)
    torch.testing.assert_close(whole.chosen, torch.ones(2))
    few = recall(Q, K, TILES, 0.8, ROWS, steps=REFERENCE)
    assert (few.chosen < few.ceiling).all() and (few.ceiling < 1).all() and (few.chosen > 0.2).all()


def test_tiles_that_queries_point_at_are_found():
    """Every query looks along the mean of the tile of its own number, which a ranking by means cannot miss."""
    towards = torch.nn.functional.one_hot(TILES.of_row.long(), 32)[:, None].expand(-1, 2, -1) * 60.0
    found = recall(0.01 * Q + towards, 0.01 * K + towards / 30, TILES, 0.9, ROWS, steps=REFERENCE)
    assert (found.chosen > 0.99).all()
