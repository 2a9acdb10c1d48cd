"""The prompt builder keeps the six-section template; warnings name what leaves it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import pytest
from streamrender_h3.nodes.look import (
    EXAMPLE,
    EXAMPLE_CLASSES,
    RACING_COLOURS,
    SECTIONS,
    build_prompt,
    colour_words,
    prompt_warnings,
)
from streamrender_h3.nodes.look.prompt import split_sections

PROMPT = build_prompt(EXAMPLE, EXAMPLE_CLASSES)


def test_example_prompt_is_the_shipped_text() -> None:
    assert len(PROMPT) == 3423
    assert hashlib.sha256(PROMPT.encode()).hexdigest().startswith("71aab304620ab3eb")


def test_prompt_has_the_six_sections_in_order_separated_by_one_empty_line() -> None:
    assert tuple(split_sections(PROMPT)) == SECTIONS
    blocks = PROMPT.split("\n\n")
    assert [block.split("\n")[0] for block in blocks] == [f"{name}:" for name in SECTIONS]
    assert PROMPT.strip() == PROMPT
    assert blocks[-1] == "non_diegetic_music:\nN/A"


def test_color_key_names_exactly_the_classes_present() -> None:
    present = {"road": "purple", "sky": "steel blue", "hero_car": "red"}
    definitions = split_sections(build_prompt(EXAMPLE, present))["subject_definitions"]
    key = definitions.split("Color key: ")[1].split(". The key")[0]
    assert key == "purple = wet asphalt; steel blue = evening sky; red = the player's car"


def test_rivals_are_left_out_when_no_rival_occurs() -> None:
    lonely = build_prompt(replace(EXAMPLE, rivals="never said"), {"road": "purple", "hero_car": "red"})
    assert "<Subject 2>" not in lonely and "never said" not in lonely
    assert prompt_warnings(lonely, {"road": "purple", "hero_car": "red"}) == []


def test_a_class_without_a_phrase_is_described_by_its_name() -> None:
    assert "yellow = stands" in build_prompt(EXAMPLE, {"stands": "yellow"})


@dataclass(frozen=True)
class Entry:
    name: str
    words: str


def test_colour_words_come_from_the_racing_palette_or_the_class_itself() -> None:
    entries = [
        Entry("unlabeled", "black"),
        Entry("road", "purple asphalt road"),
        Entry("canal", "teal water"),
        Entry("x", ""),
    ]
    assert colour_words(entries) == {"road": "purple", "canal": "teal water"}
    assert list(RACING_COLOURS)[:2] == ["road", "road_edge"]


def test_the_built_prompt_has_no_warning() -> None:
    assert prompt_warnings(PROMPT, EXAMPLE_CLASSES) == []


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("a car on a road", "no section subject_definitions:"),
        (PROMPT + "\n", "blank space"),
        (PROMPT.replace("<Video 1>", "the video"), "never says <Video 1>"),
        (PROMPT.replace("<Picture 1>", "the picture"), "never says <Picture 1>"),
        (PROMPT.replace("turns right", "turns right as in <Picture 2>"), "<Picture 2>"),
        (PROMPT.replace("turns right", "turns right before <Subject 4>"), "<Subject 4> has no line"),
        (PROMPT.replace("[keyframe completion + reference generation] ", ""), "task tag"),
        (PROMPT.replace("keyframe completion", "magic"), "task tag"),
        (PROMPT.replace("fully_preserved - the silver", "kept - the silver"), "known marker"),
        (PROMPT.replace("olive = pine trees; ", ""), "vegetation (olive)"),
    ],
)
def test_each_departure_from_the_template_is_named(prompt: str, says: str) -> None:
    warnings = prompt_warnings(prompt, EXAMPLE_CLASSES)
    assert any(says in warning for warning in warnings), warnings


def test_sections_in_another_order_are_named() -> None:
    blocks = PROMPT.split("\n\n")
    swapped = "\n\n".join([blocks[1], blocks[0], *blocks[2:]])
    assert any("in the order" in warning for warning in prompt_warnings(swapped))
