"""The driving world: deterministic, one geometry for map and picture, every look different, prompts complete."""

from __future__ import annotations

import pytest
import torch
from streamrender_h3.workflows.nano.world import COLORS, LOOKS, Track, WorldLook, prompt_for, render
from streamrender_h3.workflows.nano.world_scene import chase_camera
from streamrender_h3.workflows.nano.world_track import Strip, hash01

SIZE = (64, 112)
ROAD, SKY, HERO, OPPONENT = 1, 11, 12, 13


@pytest.fixture(scope="module")
def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    ids, picture = render(Track.from_seed(3), WorldLook.named("clear noon", 3), [0, 24], SIZE)
    assert picture is not None
    return ids, picture


def test_frames_have_the_promised_shapes_and_types(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    ids, picture = drawn
    assert ids.shape == (2, *SIZE) and ids.dtype == torch.uint8 and int(ids.max()) < len(COLORS)
    assert picture.shape == (2, 3, *SIZE) and picture.dtype == torch.uint8


def test_a_seed_gives_the_same_frame_whatever_shares_its_batch(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    ids, picture = render(Track.from_seed(3), WorldLook.named("clear noon", 3), range(24, 25), SIZE)
    assert picture is not None
    assert torch.equal(ids[0], drawn[0][1])
    assert torch.equal(picture[0], drawn[1][1])


def test_ids_do_not_depend_on_the_look_and_need_none(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    ids, picture = render(Track.from_seed(3), None, [0], SIZE)
    assert picture is None and torch.equal(ids[0], drawn[0][0])


def test_other_seeds_give_other_tracks() -> None:
    first, _ = render(Track.from_seed(3), None, [0], SIZE)
    second, _ = render(Track.from_seed(4), None, [0], SIZE)
    assert (first != second).float().mean() > 0.1


@pytest.mark.parametrize("seed", range(4))
def test_the_player_drives_in_the_lower_middle_on_the_road_in_every_frame(seed: int) -> None:
    ids, _ = render(Track.from_seed(seed), None, list(range(0, 720, 90)), SIZE)
    for image in ids:
        rows, columns = torch.nonzero(image == HERO, as_tuple=True)
        assert 100 < len(rows) < 0.12 * image.numel()
        assert SIZE[0] * 0.45 < rows.float().mean() < SIZE[0] * 0.85
        assert abs(columns.float().mean() - SIZE[1] / 2) < SIZE[1] * 0.12
        below = int(rows.max()) + 1
        if below < SIZE[0]:
            assert image[below, int(columns.float().mean())] == ROAD
        assert (image == SKY).float().mean() > 0.05
        assert not (image == 0).any()


def test_rivals_overtake_and_are_overtaken() -> None:
    track = Track.from_seed(5)
    motion = track.motion(torch.arange(0, 60, 0.25))
    gap = motion.z[:, 1:] - motion.z[:, :1]
    crossings = (torch.sign(gap[1:]) != torch.sign(gap[:-1])).sum(0)
    assert (crossings > 2).sum() >= 2
    beside = gap.abs() < 4.6
    apart = (motion.u[:, 1:] - motion.u[:, :1]).abs()
    assert apart[beside].min() > 1.9


@pytest.mark.parametrize("seed", range(6))
def test_the_camera_moves_smoothly(seed: int) -> None:
    track = Track.from_seed(seed)
    time = torch.arange(0, 10, 1 / 24)
    camera = chase_camera(track, time, track.motion(time))
    turn = torch.atan2(camera.forward_x, camera.forward_z).diff()
    assert turn.abs().max() < 0.03 and turn.diff().abs().max() < 0.002
    assert camera.horizon.diff().abs().max() < 0.01
    above = camera.y - track.road_height(camera.z)
    assert above.min() > 1.8 and above.max() < 3.0


def test_the_tabulated_road_is_the_exact_road() -> None:
    track = Track.from_seed(2)
    z = torch.linspace(10, 900, 500)
    x = track.centre(z) + 7.0
    fast, exact = Strip(track, 1000.0, torch.device("cpu")).section(x, z), track.section(x, z)
    for name in ("u", "bend", "width", "height"):
        torch.testing.assert_close(getattr(fast, name), getattr(exact, name), atol=3e-3, rtol=0)


def test_the_ground_under_the_camera_ray_is_found_exactly() -> None:
    """A level pixel row on a flat straight road lies at depth = focal * eye / row, so the solver has no bias."""
    from streamrender_h3.workflows.nano import world_raster as raster
    from streamrender_h3.workflows.nano.world_scene import FOCAL, Camera

    track = Track.from_seed(1)
    flat = Track(**{**track.__dict__, "bends": (), "hills": (), "relief_height": 0.0})
    zero = torch.zeros(1)
    camera = Camera(zero, zero + 2.0, zero, zero, zero + 1.0, zero + 0.4)
    grid = raster.Grid(1, 64, 16, 1 / 64, 0.25)
    kind, depth = raster._land(Strip(flat, 1200.0, torch.device("cpu")), camera, grid)
    row = 50
    assert kind[0, row, 8] == raster.LAND_HIT
    assert depth[0, row, 8].item() == pytest.approx(FOCAL * 2.0 / ((row + 0.5) / 64 - 0.4), rel=1e-4)


def test_map_and_picture_share_their_geometry() -> None:
    """The hero's pixels and only they change when its paint changes on a sunless dry day, but for the corners that its
    outermost pixels share with their neighbours."""
    track, look = Track.from_seed(6), WorldLook.named("overcast", 6)
    other = WorldLook(
        **{**look.__dict__, "paints": ("yellow" if look.paints[0] != "yellow" else "crimson", *look.paints[1:])}
    )
    ids, first = render(track, look, [40], SIZE, dtype=torch.float32)
    _, second = render(track, other, [40], SIZE, dtype=torch.float32)
    assert first is not None and second is not None
    changed = (first - second).abs().amax(1) > 1e-4
    hero = ids == HERO
    touched = torch.nn.functional.max_pool2d(hero.float(), 3, stride=1, padding=1) > 0
    assert not (changed & ~touched).any()
    assert (changed & hero).sum() > 0.3 * hero.sum()


def test_there_are_at_least_twelve_looks_and_they_differ() -> None:
    assert len(LOOKS) >= 12
    means = []
    for name in LOOKS:
        _, picture = render(Track.from_seed(8), WorldLook.named(name, 8), [10], (32, 56), dtype=torch.float32)
        assert picture is not None and torch.isfinite(picture).all()
        means.append(torch.cat((picture[0, :, :12].mean((1, 2)), picture[0, :, 20:].mean((1, 2)))))
    spread = torch.cdist(torch.stack(means), torch.stack(means)) + torch.eye(len(means))
    assert spread.min() > 0.02


def test_an_unknown_look_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match=r"'disco' is unknown.*clear noon"):
        WorldLook.named("disco", 0)


def test_a_frame_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        render(Track.from_seed(0), None, [0], (8, 8))


def test_the_prompt_has_six_sections_and_names_only_present_classes() -> None:
    track, look = Track.from_seed(3), WorldLook.named("snow", 3)
    text = prompt_for(track, look)
    headings = [block.split("\n")[0] for block in text.split("\n\n")]
    assert headings == ["subject_definitions:", "summary:", "retention_analysis:", "detailed_description:",
                        "overall_soundscape:", "non_diegetic_music:"]  # fmt: skip
    assert text.endswith("N/A")
    assert "red = the player's car" in text and "purple = " in text and look.paints[0] in text
    from streamrender_h3.workflows.nano.world_prompt import COLOR_WORDS, present_classes

    present = present_classes(track)
    for label, word in COLOR_WORDS.items():
        assert (f" {word} = " in text) == (label in present), word


def test_hash_is_uniform_and_independent_of_the_neighbour() -> None:
    value = hash01(7, torch.arange(20000), 3)
    assert abs(value.mean() - 0.5) < 0.01 and abs(value.std() - 12**-0.5) < 0.01
    assert abs(torch.corrcoef(torch.stack((value[1:], value[:-1])))[0, 1]) < 0.03
