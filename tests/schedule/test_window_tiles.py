"""Which tiles of a window are forced, by numbers worked out by hand for the released sizes and for small ones."""

from collections import Counter

from streamrender_h3.nodes.schedule import RELEASE, RELEASE_GEOMETRY, Geometry, WindowTile, tile_plan
from streamrender_h3.nodes.schedule.window_tiles import REFERENCE, VIDEO, overlap

THREE_NEW, TWO_NEW = RELEASE.window_at(1), RELEASE.window_at(2)


def seen(plan, query):
    """The tiles that a query is forced to see."""
    return {plan.keys[number] for number in plan.forced[plan.queries.index(query)]}


def test_tiles_of_the_released_window():
    """24 x 42 rows are 3 x 6 tiles, the reference's 15 x 26 are 2 x 4; 3 latents of the sink, 5 that move."""
    plan = tile_plan(THREE_NEW, RELEASE_GEOMETRY)
    moving, keys = Counter(tile.kind for tile in plan.queries), Counter(tile.kind for tile in plan.keys)
    assert moving == {VIDEO: 90, REFERENCE: 40} and keys == {VIDEO: 144, REFERENCE: 64}
    assert plan.keys[:24] == tuple(WindowTile(REFERENCE, t, i, j) for t in range(3) for i in range(2) for j in range(4))
    assert plan.keys[24:78] == tuple(WindowTile(VIDEO, t, i, j) for t in range(3) for i in range(3) for j in range(6))
    assert plan.keys[78:] == plan.queries
    assert [len(window.latents) for window in (THREE_NEW, TWO_NEW)] == [3, 2]


def test_a_video_tile_sees_its_neighbours_its_column_the_aligned_reference_and_all_that_is_new():
    """Rows 8 to 15 of 24 are reference rows 5 to 9 of 15, with one more on each side 4 to 10: both rows of tiles. Columns
    16 to 23 of 42 are 9.9 to 14.9 of 26, with one more 8.9 to 15.9: the second column of tiles."""
    plan = tile_plan(TWO_NEW, RELEASE_GEOMETRY)
    query = WindowTile(VIDEO, 4, 1, 2)
    new = {WindowTile(VIDEO, t, i, j) for t in (6, 7) for i in range(3) for j in range(6)}
    around = {WindowTile(VIDEO, 4, i, j) for i in (0, 1, 2) for j in (1, 2, 3)}
    column = {WindowTile(VIDEO, t, 1, 2) for t in range(8)}
    aligned = {WindowTile(REFERENCE, 4, i, 1) for i in (0, 1)}
    assert seen(plan, query) == new | around | column | aligned
    assert len(seen(plan, query)) == 36 + 9 + 5 + 2


def test_a_corner_that_is_two_columns_wide():
    """Columns 40 and 41 of 42 are 24.8 to 26 of 26, with one more from 23.8: the third and the fourth column of tiles."""
    plan = tile_plan(THREE_NEW, RELEASE_GEOMETRY)
    query = WindowTile(VIDEO, 7, 0, 5)
    assert {tile for tile in seen(plan, query) if tile.kind == REFERENCE} == {
        WindowTile(REFERENCE, 7, 0, 2),
        WindowTile(REFERENCE, 7, 0, 3),
    }
    assert (
        len(seen(plan, query)) == 54 + 5 + 2
    )  # all that is new, its own among it; its column in five older; reference


def test_reference_and_video_see_each_other():
    for window in (THREE_NEW, TWO_NEW):
        plan = tile_plan(window, RELEASE_GEOMETRY)
        for query in plan.queries:
            others = {tile for tile in seen(plan, query) if tile.kind != query.kind and tile in plan.queries}
            new = range(8 - len(window.latents), 8)
            for other in others:
                assert query in seen(plan, other) or (other.kind == VIDEO and other.latent in new)
            assert any(tile.kind != query.kind and tile.latent == query.latent for tile in seen(plan, query))


def test_a_reference_tile_sees_its_kind_like_a_video_tile_does():
    plan = tile_plan(TWO_NEW, RELEASE_GEOMETRY)
    found = {tile for tile in seen(plan, WindowTile(REFERENCE, 5, 0, 0)) if tile.kind == REFERENCE}
    around = {WindowTile(REFERENCE, 5, i, j) for i in (0, 1) for j in (0, 1)}
    assert found == around | {WindowTile(REFERENCE, t, 0, 0) for t in range(8)}


def test_overlap_counts_one_reference_row_more_on_each_side():
    """64 rows over 32: a tile of 8 is 4 reference rows, with one more on each side from 4k - 1 to 4k + 5."""
    assert [[overlap(video, tile, 64, 32) for tile in range(4)] for video in range(4)] == [
        [True, False, False, False],  # rows 0 to 4
        [True, True, False, False],  # 3 to 9
        [True, True, False, False],  # 7 to 13
        [False, True, True, False],  # 11 to 17
    ]
    assert [overlap(video, 1, 16, 16) for video in (0, 1)] == [True, True]  # 0 to 9 and 7 to 16
    assert [overlap(0, tile, 8, 24) for tile in range(3)] == [True, True, True]  # a reference finer than the video


def test_touching_is_not_overlapping():
    """Seven rows are 0 to 7 of 7, so that with one more the rectangle ends where the second tile starts."""
    assert not overlap(0, 1, 16, 14)  # 0 to 7, with one more to 8
    assert overlap(0, 1, 15, 14)


def test_the_forced_share_and_a_branch_without_reference():
    geometry = Geometry(target=(4, 6), reference=(4, 4), picture=None)
    plan = tile_plan(THREE_NEW, geometry)
    assert len(plan.keys) == 16 and len(plan.queries) == 10
    # One tile a latent: video sees video and its reference; reference sees reference, what is new and its own video.
    assert plan.forced_share == (5 * (8 + 1) + 3 * (8 + 3) + 2 * (8 + 3 + 1)) / 160
    alone = tile_plan(THREE_NEW, geometry, reference=False)
    assert {tile.kind for tile in alone.keys} == {VIDEO} and alone.forced_share == 1.0
