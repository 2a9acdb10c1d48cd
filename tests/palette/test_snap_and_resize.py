"""Snapping colours to classes and the floor rule of the label resize."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from streamrender_h3.nodes.palette import RACING, ClipError, check_reference_size, floor_indices, resize_labels, snap


def test_exact_palette_colours_snap_to_themselves_bit_for_bit(scene):
    ids = scene(7)
    assert set(np.unique(ids)) == set(range(14))
    snapped, doubtful = snap(RACING.colours[ids], RACING)
    assert np.array_equal(snapped, ids)
    assert not doubtful.any()


def test_pixels_within_the_radius_take_their_class_and_others_are_doubtful():
    rng = np.random.default_rng(0)
    rgb = rng.integers(0, 256, (64, 96, 3), dtype=np.uint8)
    ids, doubtful = snap(rgb, RACING)
    distance = np.sqrt(((rgb[..., None, :].astype(float) - RACING.colours) ** 2).sum(-1))
    assert np.array_equal(doubtful, distance.min(-1) > 30)
    assert np.array_equal(ids[~doubtful], distance.argmin(-1)[~doubtful])


def test_a_blend_takes_the_majority_of_its_sure_neighbours_not_a_third_class():
    road, grass, building = RACING.index("road"), RACING.index("grass"), RACING.index("building")
    ids = np.full((8, 8), road)
    ids[:, 4:] = grass
    rgb = RACING.colours[ids]
    rgb[:, 3] = (70, 100, 65)  # a purple-green blend whose nearest class is dark grey
    distance = np.sqrt(((RACING.colours.astype(float) - rgb[0, 3]) ** 2).sum(-1))
    assert distance.argmin() == building
    assert distance.min() > 30
    snapped, doubtful = snap(rgb, RACING)
    assert doubtful[:, 3].all()
    assert doubtful.sum() == 8
    assert set(np.unique(snapped)) == {road, grass}


def test_a_doubtful_pixel_without_sure_neighbours_takes_the_nearest_class():
    rgb = np.full((5, 5, 3), (70, 100, 65), dtype=np.uint8)
    snapped, doubtful = snap(rgb, RACING)
    assert doubtful.all()
    assert (snapped == RACING.index("building")).all()


@pytest.mark.parametrize(
    ("source", "target"), [((768, 1344), (480, 832)), ((97, 131), (64, 96)), ((64, 64), (480, 832))]
)
def test_resize_equals_torch_nearest(source, target):
    frame = np.random.default_rng(1).integers(0, 14, source, dtype=np.uint8)
    expected = torch.nn.functional.interpolate(torch.from_numpy(frame)[None, None].float(), size=target, mode="nearest")
    assert np.array_equal(resize_labels(frame, target), expected[0, 0].numpy())


def test_floor_rule_differs_from_pixel_centres_in_most_columns():
    centres = ((np.arange(832) + 0.5) * 1344 / 832).astype(int)
    assert (floor_indices(1344, 832) != centres).mean() == pytest.approx(0.77, abs=0.01)


@pytest.mark.parametrize(
    ("size", "nearest"), [((480, 833), "832x480"), ((32, 64), "64x64"), ((481, 850), "864x480"), ((10, 10), "64x64")]
)
def test_bad_reference_sizes_name_the_value_and_the_nearest_valid_one(size, nearest):
    with pytest.raises(ClipError) as error:
        check_reference_size(size)
    assert f"{size[1]}x{size[0]}" in str(error.value)
    assert nearest in str(error.value)
