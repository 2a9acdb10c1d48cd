"""Windows of the causal ViT decoder: sizes, membership, local coordinates and ring rows."""

import pytest
import torch
from streamrender_h3.nodes.codec.windows import Windows, partition

GRIDS = [(48, 84), (30, 52), (45, 80), (34, 60)]


@pytest.mark.parametrize(
    ("length", "plain", "shifted"),
    [
        (48, [16, 16, 16], [8, 16, 16, 8]),
        (84, [16] * 5 + [4], [8, 16, 16, 16, 16, 12]),
        (30, [16, 14], [8, 16, 6]),
        (52, [16, 16, 16, 4], [8, 16, 16, 12]),
        (45, [16, 16, 13], [8, 16, 16, 5]),
        (80, [16] * 5, [8, 16, 16, 16, 16, 8]),
        (34, [16, 16, 2], [8, 16, 10]),
        (60, [16, 16, 16, 12], [8, 16, 16, 16, 4]),
        (8, [8], [8]),
        (1, [1], [1]),
    ],
)
def test_axes_are_cut_at_the_borders(length, plain, shifted):
    assert [len(part) for part in partition(length, 16, 0)] == plain
    assert [len(part) for part in partition(length, 16, 8)] == shifted


@pytest.mark.parametrize(("grid", "counts"), list(zip(GRIDS, [(18, 24), (8, 12), (15, 24), (12, 15)], strict=True)))
def test_window_counts_and_ring_rows(grid, counts):
    for shift, count in zip((0, 8), counts, strict=True):
        windows = Windows(grid, 16, shift, 5)
        assert len(windows.members) == sum(group.windows for group in windows.groups) == count
        assert windows.rows == 6 * grid[0] * grid[1] + 5 * count


def test_the_full_size_ring_has_the_published_rows():
    plain, shifted = (Windows((48, 84), 16, shift, 5) for shift in (0, 8))
    assert (plain.rows, shifted.rows) == (24_282, 24_312)
    assert (len(plain.groups), len(shifted.groups)) == (2, 5)  # 8x16 and 16x8 windows share a group


@pytest.mark.parametrize(("grid", "window"), [*((grid, 16) for grid in GRIDS), ((5, 7), 4), ((1, 1), 16)])
@pytest.mark.parametrize("shifted", [False, True])
def test_every_token_is_in_the_window_of_its_coordinates(grid, window, shifted):
    shift = window // 2 if shifted else 0
    windows = Windows(grid, window, shift, 5)
    order = windows.order(2)
    tokens = grid[0] * grid[1]
    assert torch.equal(order[torch.argsort(order)], torch.arange(2 * tokens))
    for member in windows.members:
        y, x = member // grid[1], member % grid[1]
        assert len({(int(a), int(b)) for a, b in zip((y + shift) // window, (x + shift) // window, strict=True)}) == 1
    y, x = windows.local_ids(order)
    raster = order % tokens
    assert torch.equal(y, (raster // grid[1] + shift) % window)
    assert torch.equal(x, (raster % grid[1] + shift) % window)


def test_cut_windows_keep_the_coordinates_of_the_uncut_one():
    windows = Windows((20, 16), 16, 8, 5)
    y, _ = windows.local_ids(windows.order(1))
    rows = {tuple(part.unique().tolist()) for part in y.split([len(m) for m in windows.members])}
    assert rows == {tuple(range(8, 16)), tuple(range(12))}  # rows 0..7 and rows 8..19 of the picture


@pytest.mark.parametrize("shift", [0, 2])
def test_ring_rows_are_used_once_and_fill_from_the_front_of_each_segment(shift):
    windows = Windows((5, 7), 4, shift, 5)
    rows = torch.cat((windows.suffix_rows(), *(windows.slot_rows((slot,)) for slot in range(6))))
    assert torch.equal(rows.sort().values, torch.arange(windows.rows))
    for base, member in zip(windows.bases, windows.members, strict=True):
        for used in (1, 2, 3, 6):
            mine = windows.slot_rows(tuple(range(used)))
            end = base + 5 + 6 * len(member)
            mine = mine[(mine >= base) & (mine < end)].sort().values
            assert torch.equal(mine, torch.arange(base + 5, base + 5 + used * len(member)))


def test_a_global_query_counts_every_token_and_suffix_once():
    windows = Windows((5, 7), 4, 2, 5)
    for used in range(1, 7):
        assert int((~windows.hidden_rows(used)).sum()) == used * 35 + 5
