"""Looks that change on the way: where they begin, what cannot follow what, and that the report says it is an extrapolation."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from streamrender_h3.nodes.look import Look
from streamrender_h3.nodes.sampler import LookSequence, RenderError, add_change
from streamrender_h3.nodes.sampler.looks import BEYOND, look_facts, look_plan
from streamrender_h3.nodes.schedule import RELEASE

sys.path.insert(0, str(Path(__file__).parent))
from small_render import look_of

FIRST, SECOND, THIRD = (look_of(seed, 96) for seed in range(3))


def test_a_sequence_is_its_own_first_look():
    looks = add_change(FIRST, SECOND, 2.0)
    assert isinstance(looks, Look) and looks.text is FIRST.text and looks.size == FIRST.size
    assert list(looks.looks)[1] is SECOND
    assert replace(looks, prompt="x").changes == looks.changes  # kept through what others do with a look


@pytest.mark.parametrize(("seconds", "chunk"), [(0.1, 1), (1.25, 1), (1.4, 1), (1.6, 2), (2.0, 3), (4.8, 11)])
def test_a_look_begins_at_the_nearest_chunk_border(seconds, chunk):
    """Chunks of the released schedule begin at frames 0, 30, 39, 47, 56 ... 115."""
    plan = look_plan(add_change(FIRST, SECOND, seconds), RELEASE, 124)
    assert list(plan) == [0, chunk] and plan[chunk] is SECOND


def test_a_change_after_the_end_never_comes():
    plan = look_plan(add_change(FIRST, SECOND, 6.0), RELEASE, 124)
    assert list(plan) == [0] and look_facts(plan, RELEASE) == {}


def test_changes_chain_and_are_told():
    looks = add_change(add_change(FIRST, SECOND, 2.0), THIRD, 3.0)
    plan = look_plan(looks, RELEASE, 124)
    assert [plan[k] for k in sorted(plan)] == [looks, SECOND, THIRD]
    facts = look_facts(plan, RELEASE)
    assert [entry["frame"] for entry in facts["look_changes"]] == [47, 73] and facts["look_changes_note"] == BEYOND


def test_what_cannot_follow_is_refused():
    with pytest.raises(RenderError, match="times must rise along the chain"):
        add_change(add_change(FIRST, SECOND, 2.0), THIRD, 2.0)
    with pytest.raises(RenderError, match="start is 0 s; a change needs a time after 0"):
        add_change(FIRST, SECOND, 0)
    with pytest.raises(RenderError, match="connect the sequence to 'previous'"):
        add_change(FIRST, add_change(SECOND, THIRD, 1.0), 2.0)
    small = replace(SECOND, rgb=torch.zeros(64, 64, 3, dtype=torch.uint8))
    with pytest.raises(RenderError, match="the new look is 64x64 and the one before it 96x64; one video has one size"):
        add_change(FIRST, small, 2.0)
    with pytest.raises(RenderError, match="two looks begin at chunk 3"):
        look_plan(add_change(add_change(FIRST, SECOND, 1.9), THIRD, 2.0), RELEASE, 124)
    assert isinstance(add_change(FIRST, SECOND, 1.0), LookSequence)
