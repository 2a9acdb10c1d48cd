"""Fit, fill and stretch: one geometry for the class map, the picture and the video."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from streamrender_h3.nodes.look import prepare_picture
from streamrender_h3.nodes.palette import (
    RACING,
    ClipError,
    Placement,
    clip_from_frames,
    describe,
    place,
    resize_labels,
    shape_of,
)
from streamrender_h3.nodes.palette.mapping import MAPPINGS, place_labels

VIDEO, REFERENCE = (768, 1344), (480, 832)


def whole_numbers(box):
    return box.top, box.left, box.height, box.width


def test_fit_shows_all_and_fill_covers_all():
    four_thirds = place(Fraction(4, 3), shape_of(VIDEO), "fit")
    assert whole_numbers(four_thirds.frame_box(VIDEO)) == (0, 160, 768, 1024)
    assert whole_numbers(four_thirds.source_box((480, 640))) == (0, 0, 480, 640)
    tall = place(Fraction(9, 16), shape_of(VIDEO), "fill")
    assert whole_numbers(tall.frame_box(VIDEO)) == (0, 0, 768, 1344)
    assert whole_numbers(tall.source_box((1920, 1080))) == (651, 0, 617, 1080)
    wide = place(Fraction(64, 27), shape_of(VIDEO), "fit")
    assert wide.frame_box(VIDEO).width == 1344 and wide.frame_box(VIDEO).height == 567
    assert place(Fraction(4, 3), shape_of(VIDEO), "stretch").is_whole


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("size", [(768, 1344), (1080, 1920), (1440, 2560), (384, 672)])
def test_equal_shapes_are_not_touched_by_any_mapping(mapping, size):
    """16:9 is within 2 % of 1344x768."""
    assert place(shape_of(size), shape_of(VIDEO), mapping) == Placement()
    assert describe(Placement()) == ""


def test_an_unknown_mapping_is_named():
    with pytest.raises(ClipError, match=r"'crop'.*fit, fill, stretch"):
        clip_from_frames(np.zeros((1, 64, 64, 3), np.uint8), reference_size=(64, 64), mapping="crop")


def test_the_shipped_geometry_gives_what_it_gave_before(scene):
    frames = RACING.colours[scene(0)][None]
    plain = next(clip_from_frames(frames).reference_frames())
    for mapping in MAPPINGS:
        clip = clip_from_frames(frames, mapping=mapping).in_video(VIDEO)
        assert torch.equal(next(clip.reference_frames()), plain)


@pytest.mark.parametrize("size", [(480, 640), (640, 480), (400, 1000), (97, 131)])
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_map_and_picture_lie_on_the_same_places(size, mapping):
    """A bright box in the picture and the same box in the class map cover the same part of the video."""
    height, width = size
    top, bottom, left, right = (
        int(side * share) for side, share in ((height, 0.3), (height, 0.7), (width, 0.35), (width, 0.6))
    )
    ids = np.full(size, RACING.index("road"), np.uint8)
    ids[top:bottom, left:right] = RACING.index("hero_car")
    picture = np.full((*size, 3), 90, np.uint8)
    picture[top:bottom, left:right] = 250
    clip = clip_from_frames(RACING.colours[ids][None], mapping=mapping).in_video(VIDEO)
    frame = (next(clip.reference_frames()).permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    prepared = prepare_picture(picture, VIDEO, mapping, clip.shape).rgb

    def extent(mask):
        """Top, bottom, left, right of what is set, in shares of the frame."""
        (top, *_, bottom), (left, *_, right) = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        return np.array([top, bottom + 1, left, right + 1]) / np.repeat(mask.shape, 2)

    box_on_map, box_on_picture = extent((frame == (255, 0, 0)).all(-1)), extent(prepared[..., 0] > 170)
    assert np.abs(box_on_map - box_on_picture).max() < 0.008
    bands_on_map, bands_on_picture = extent((frame != 0).any(-1)), extent(prepared[..., 0] > 0)
    assert np.abs(bands_on_map - bands_on_picture).max() < 0.004
    assert (mapping == "fit") == bool((frame == 0).all(-1).any())  # bands are unlabeled, black in the picture


def test_a_picture_of_another_shape_lies_where_the_clip_lies():
    square = np.full((512, 512, 3), 200, np.uint8)
    free = prepare_picture(square, VIDEO, "fit").rgb
    assert (free[:, :250] == 0).all()
    with_clip = prepare_picture(square, VIDEO, "fit", Fraction(16, 9))
    assert (with_clip.rgb > 0).all()
    assert "too wide" in with_clip.note
    assert "bands left and right" in prepare_picture(square, VIDEO, "fit").note
    assert "cut off" in prepare_picture(square, VIDEO, "fill").note


def test_labels_are_gathered_by_the_floor_rule_inside_the_bands():
    ids = np.random.default_rng(0).integers(1, 14, (120, 90), dtype=np.uint8)
    placement = place(shape_of((120, 90)), shape_of(VIDEO), "fit")
    placed = place_labels(ids, REFERENCE, placement, free=0)
    box = placement.frame_box(REFERENCE)
    inside = placed[box.top : box.top + box.height, box.left : box.left + box.width]
    assert np.array_equal(inside, resize_labels(ids, (box.height, box.width)))
    assert not np.delete(placed, np.arange(box.left, box.left + box.width), axis=1).any()
