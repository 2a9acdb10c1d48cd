"""The prompt builder: the classes that occur in a clip, the phrases typed, and what is refused."""

import numpy as np
import pytest
from streamrender_h3.nodes.look import EXAMPLE, EXAMPLE_CLASSES, SECTIONS, build_prompt, prompt_warnings
from streamrender_h3.nodes.look.prompt_fill import phrases_from, present_classes
from streamrender_h3.nodes.palette import RACING, clip_from_frames

TYPED = {name: getattr(EXAMPLE, name) for name in ("scene", "atmosphere", "hero", "rivals", "surroundings", "sound")}
OBJECTS = "\n".join(f"{name} = {thing}" for name, thing in EXAMPLE.objects.items())


def clip_of(*classes, rare=None):
    """A clip of 5 frames in which these classes cover stripes; `rare` covers one pixel."""
    colours = {entry.name: entry.rgb for entry in RACING.entries}
    frame = np.empty((96, 96, 3), np.uint8)
    for index, name in enumerate(classes):
        frame[index * 96 // len(classes) : (index + 1) * 96 // len(classes)] = colours[name]
    if rare:
        frame[0, 0] = colours[rare]
    return clip_from_frames(np.stack([frame] * 5), RACING, (64, 64))


def test_only_classes_that_occur_are_named():
    present = present_classes(clip_of("road", "sky", "hero_car"))
    assert present == {"road": "purple", "sky": "steel blue", "hero_car": "red"}
    prompt = build_prompt(phrases_from(**TYPED, objects=OBJECTS), present)
    assert "purple = wet asphalt" in prompt and "orange" not in prompt
    assert "<Subject 2>" not in prompt  # no other car occurs
    assert prompt_warnings(prompt, present) == []
    assert [name for name in SECTIONS if f"{name}:" in prompt] == list(SECTIONS)


def test_a_single_pixel_is_no_class():
    assert "barrier" not in present_classes(clip_of("road", "sky", rare="barrier"))


def test_the_example_phrases_give_the_example_prompt():
    assert build_prompt(phrases_from(**TYPED, objects=OBJECTS), EXAMPLE_CLASSES) == build_prompt(
        EXAMPLE, EXAMPLE_CLASSES
    )


def test_own_phrases_do_not_bring_the_examples_details_along():
    own = phrases_from(**{**TYPED, "hero": "a green van."}, objects="")
    prompt = build_prompt(own, EXAMPLE_CLASSES)
    assert own.hero == "a green van" and "a green van" in prompt
    assert "silver hatchback" not in prompt and "lodge" not in own.opening


@pytest.mark.parametrize("name", ["scene", "atmosphere", "hero", "surroundings", "sound"])
def test_an_empty_phrase_is_named(name):
    with pytest.raises(ValueError, match=f"'{name}' is empty"):
        phrases_from(**{**TYPED, name: "  "}, objects="")


@pytest.mark.parametrize("line", ["road", "road =", "= asphalt"])
def test_a_line_that_says_nothing_is_shown(line):
    with pytest.raises(ValueError, match="class = thing"):
        phrases_from(**TYPED, objects=line)


def test_rivals_may_be_left_empty():
    assert phrases_from(**{**TYPED, "rivals": ""}, objects="").rivals == ""
