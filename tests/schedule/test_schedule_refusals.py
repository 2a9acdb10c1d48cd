"""Values that cannot be planned are refused in words: what arrived, what is needed, what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from streamrender_h3.nodes.schedule import (
    RELEASE,
    RELEASE_GEOMETRY,
    TEACHER,
    Geometry,
    Schedule,
    ScheduleError,
    plan_table,
    positions,
    row_plan,
    tags,
)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sink": -1}, ("sink is -1", "at least 0", "Set sink to")),
        ({"window": -3}, ("window is -3", "at least 0", "Set window to")),
        ({"chunk": 0}, ("chunk is 0", "at least 1", "Set chunk to")),
        ({"bootstrap": 0}, ("bootstrap is 0", "at least 1", "Set bootstrap to")),
        ({"audio_left": -1}, ("audio_left is -1", "at least 0", "29")),
        ({"audio_right": -1}, ("audio_right is -1", "at least 0", "Leave it out")),
        ({"sink": 2.5}, ("sink is 2.5", "whole number", "Set sink to")),
        ({"window": True}, ("window is True", "whole number", "Set window to")),
        ({"chunk": "2"}, ("chunk is '2'", "whole number", "Set chunk to")),
        ({"merged": 1}, ("merged is 1", "True or False", "Leave it out")),
        ({"sink_switch_at": 3}, ("sink_after_switch is None", "needs both", "Set both")),
        ({"sink_after_switch": 1}, ("sink_switch_at is None", "needs both", "Set both")),
        ({"sink_switch_at": 0, "sink_after_switch": 1}, ("sink_switch_at is 0", "at least 1", "Set 1")),
        ({"sink_switch_at": 1, "sink_after_switch": -1}, ("sink_after_switch is -1", "at least 0", "Set 0")),
        ({"sink_switch_at": 3, "sink_after_switch": 3}, ("is 3 but sink is 2", "only shrink", "to 2 or less")),
    ],
)
def test_schedule_values_out_of_range_are_named_with_a_remedy(values, words):
    with pytest.raises(ScheduleError) as refused:
        Schedule(**values)
    for word in words:
        assert word in str(refused.value)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("values", [{"sink": 0}, {"window": 0}, {"window": 0, "chunk": 1}, {"audio_left": 0}])
def test_values_at_the_border_are_accepted(values):
    assert Schedule(**values).window_at(3).latents


def test_bootstrap_defaults_to_window_plus_chunk():
    assert Schedule(4, 5, 2).bootstrap == Schedule(4, 5, 2).bootstrap_units == 7
    assert Schedule(4, 5, 2) == TEACHER


def test_parse_reads_presets_and_four_numbers():
    assert Schedule.parse("release") == RELEASE
    assert Schedule.parse(" Teacher ") == TEACHER
    assert Schedule.parse("2, 2,2,7") == RELEASE
    assert Schedule.parse("0,6,1,7") == Schedule(0, 6, 1, 7)


@pytest.mark.parametrize("text", ["", "fast", "2,2,2", "2,2,2,7,1", "2,2,x,7", "2.0,2,2,7"])
def test_parse_refuses_what_it_cannot_read(text):
    with pytest.raises(ScheduleError, match=r"release, teacher or four whole numbers.* Write for example") as refused:
        Schedule.parse(text)
    assert repr(text) in str(refused.value)


def test_parse_refuses_numbers_out_of_range_by_name():
    with pytest.raises(ScheduleError, match="chunk is 0"):
        Schedule.parse("2,2,0,7")


def test_prefix_bank_needs_a_whole_and_constant_sink():
    assert RELEASE.prefix_bank_allowed and RELEASE.prefix_bank_refusal is None
    assert Schedule(7, 2, 2, 7).prefix_bank_allowed
    too_large = Schedule(8, 2, 2, 7)
    assert not too_large.prefix_bank_allowed
    assert "sink is 8" in too_large.prefix_bank_refusal and "Set sink to 7" in too_large.prefix_bank_refusal
    shrinking = Schedule(2, 2, 2, 7, sink_switch_at=3, sink_after_switch=1)
    assert not shrinking.prefix_bank_allowed
    assert "shrinks from 2 to 1" in shrinking.prefix_bank_refusal


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (((760, 1344), (480, 832), None), ("target size is 1344x760", "multiples of 32", "Set it to 1344x768")),
        (((768, 1344), (490, 832), None), ("reference size is 832x490", "multiples of 32", "Set it to 832x480")),
        (((768, 1344), (480, 832), (32, 64)), ("picture size is 64x32", "at least 64", "Set it to 64x64")),
        (((768, 1350), (480, 832), None), ("target size is 1350x768", "multiples of 32", "Set it to 1344x768")),
    ],
)
def test_geometry_refuses_sizes_that_do_not_patch(sizes, words):
    with pytest.raises(ScheduleError) as refused:
        Geometry.from_sizes(*sizes)
    for word in words:
        assert word in str(refused.value)


def test_geometry_refuses_odd_latent_grids():
    with pytest.raises(ScheduleError, match="target size is 96x80"):
        Geometry((5, 6), (4, 4), None)
    assert Geometry((4, 4), (4, 4), None).picture is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: RELEASE.window_at(-1), "chunk index is -1"),
        (lambda: RELEASE.frames_through(-1), "chunk index is -1"),
        (lambda: RELEASE.chunks_for(0), "frames is 0"),
        (lambda: RELEASE.windows(0), "frames is 0"),  # at once, not when the first window is asked for
        (lambda: RELEASE.coverage(24.0), "frames is 24.0"),
        (lambda: row_plan(RELEASE.window_at(1), RELEASE_GEOMETRY, -1), "text_rows is -1"),
        (lambda: positions(RELEASE.window_at(1), RELEASE_GEOMETRY, -1), "text_rows is -1"),
        (lambda: plan_table(RELEASE, RELEASE_GEOMETRY, 64, 0), "chunks is 0"),
        (
            lambda: tags(row_plan(RELEASE.window_at(1), RELEASE_GEOMETRY, 4), [1] * 5),
            "5 text tags came for 4 text rows",
        ),
        (lambda: tags(row_plan(RELEASE.window_at(1), RELEASE_GEOMETRY, 2), [1, 2]), r"text tags hold \[2\]"),
    ],
)
def test_requests_that_make_no_sense_are_refused(call, words):
    with pytest.raises(ScheduleError, match=words):
        call()


def test_the_room_needs_no_torch():
    code = "import sys, streamrender_h3.nodes.schedule; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
