"""Palettes: the built-in one, users' files, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from streamrender_h3.nodes.palette import RACING, PaletteError, load_palette

RELEASED = {
    "unlabeled": (0, 0, 0),
    "road": (128, 64, 128),
    "road_edge": (244, 35, 232),
    "terrain": (200, 215, 255),
    "grass": (0, 190, 0),
    "vegetation": (107, 142, 35),
    "rock": (140, 90, 40),
    "barrier": (250, 170, 30),
    "building": (70, 70, 70),
    "stands": (220, 220, 0),
    "billboard": (0, 220, 220),
    "sky": (70, 130, 180),
    "hero_car": (255, 0, 0),
    "opponent_car": (0, 0, 230),
}


def test_racing_palette_is_the_released_one_in_order():
    assert {entry.name: entry.rgb for entry in RACING.entries} == RELEASED
    assert RACING.names == tuple(RELEASED)
    assert all(entry.words for entry in RACING.entries)
    assert np.allclose(RACING.radii, 30)


def test_user_palette_loads_from_a_plain_object_and_from_the_versioned_form(tmp_path):
    plain = tmp_path / "mine.json"
    plain.write_text(json.dumps({"wall": [10, 20, 30], "floor": "#C0FFEE"}))
    palette = load_palette(plain)
    assert (palette.name, palette.names) == ("mine", ("wall", "floor"))
    assert palette.entries[1].rgb == (0xC0, 0xFF, 0xEE)
    versioned = tmp_path / "v.json"
    rows = [{"name": "a", "rgb": [0, 0, 0], "words": "void"}, {"name": "b", "rgb": [20, 0, 0]}]
    versioned.write_text(
        json.dumps({"format": "streamrender-h3-palette", "version": 1, "name": "two", "classes": rows})
    )
    two = load_palette(str(versioned))
    assert (two.name, two.entries[0].words) == ("two", "void")
    assert two.radii.tolist() == [10, 10]  # half of the way to the neighbour


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"a": [1, 2, 3], "b": [1, 2, 3]}, ["'a'", "'b'", "the same colour"]),
        ({"a": [1, 2, 3], "b": [1, 2, 9], "c": [99, 99, 99]}, ["'a'", "'b'", "nearly"]),
        ({"a": [1, 2, 300], "b": [1, 2, 9]}, ["'a'", "[1, 2, 300]"]),
        ({"a": [1, 2, 3]}, ["1 classes"]),
        ([1, 2], ["object is needed"]),
        ({"version": 9, "classes": []}, ["version 9"]),
        ({"classes": [{"name": "a", "rgb": [0, 0, 0]}, {"name": "a", "rgb": [255, 0, 0]}]}, ["'a' 2 times"]),
    ],
)
def test_bad_palettes_are_refused_by_name(tmp_path, content, named):
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(content))
    with pytest.raises(PaletteError) as error:
        load_palette(file)
    for text in ["bad.json", *named]:
        assert text in str(error.value)


def test_unknown_palette_and_broken_json_are_named(tmp_path):
    with pytest.raises(PaletteError, match=r"'nosuch' was not found.*racing"):
        load_palette("nosuch")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(PaletteError, match=r"broken\.json"):
        load_palette(broken)
