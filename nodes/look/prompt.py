"""The six-section Ref2VA prompt: one template with slots for phrases, and warnings for texts that leave the template.

The picture owns the look, the semantic video owns layout and motion, and the text must say so: the model was trained on
texts of this kind (specification: conditioning 2.1). A session has one prompt and one shot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

SECTIONS = (
    "subject_definitions",
    "summary",
    "retention_analysis",
    "detailed_description",
    "overall_soundscape",
    "non_diegetic_music",
)
TASK_TAG = "[keyframe completion + reference generation]"
TASKS = (
    "keyframe completion",
    "reference generation",
    "video editing",
    "video continuation",
    "audio reuse",
    "audio reference",
)
RETENTION = (
    "fully_preserved",
    "partially_preserved",
    "attribute_transfer",
    "weak_reference",
    "fully_copy",
    "partially_copy",
    "reference",
)
HERO_CLASS = "hero_car"
RIVAL_CLASS = "opponent_car"
UNLABELLED = "unlabeled"
RACING_COLOURS: Mapping[str, str] = {
    "road": "purple",
    "road_edge": "magenta",
    "terrain": "pale blue",
    "grass": "green",
    "vegetation": "olive",
    "rock": "brown",
    "barrier": "orange",
    "building": "dark grey",
    "stands": "yellow",
    "billboard": "cyan",
    "sky": "steel blue",
    HERO_CLASS: "red",
    RIVAL_CLASS: "blue",
}
"""Colour words of the racing palette in palette order; a class without a word is not described."""


@dataclass(frozen=True)
class Phrases:
    """What the artist says about one drive. Phrases are lower-case fragments without a final full stop.

    ``objects`` maps a class name to the concrete thing it is here ("wet asphalt"); a class without an entry is
    described by its own name. The ``*_short`` phrases repeat a look in a few words; left empty, the long phrase is
    repeated.
    """

    scene: str
    atmosphere: str
    hero: str
    surroundings: str
    sound: str
    rivals: str = ""
    mood: str = "light"
    opening: str = "the road of <Subject 3> runs on ahead"
    sound_in_shot: str = "the engine rises and falls"
    hero_short: str = ""
    surroundings_short: str = ""
    objects: Mapping[str, str] = field(default_factory=dict)


EXAMPLE = Phrases(
    scene="A photoreal drive on a wet mountain road at dusk",
    atmosphere=(
        "real reflections in the wet road, cool blue dusk, warm light from windows, a little mist, "
        "fine detail near and far"
    ),
    mood="dusk light",
    hero='a silver rally hatchback with a black roof, a tall rear wing and the number "12" on the tailgate',
    hero_short="the silver hatchback with black roof, wing and number 12",
    rivals="a yellow coupe and a dark green sedan",
    surroundings=(
        "dark wet asphalt with puddles, white edge lines, steel rails, pines dusted with snow, "
        "a timber lodge with lit windows"
    ),
    surroundings_short="wet asphalt, edge lines, rails, pines and lodge",
    opening="the wet road of <Subject 3> turns right past the lodge",
    sound_in_shot="the engine rises and falls and water hisses under the tires",
    sound=(
        "The turbo engine of <Subject 1> pulls through the gears and pops when it slows; other engines come near and "
        "drop away. Tires hiss, wind pushes over the roof, thunder rolls far off"
    ),
    objects={
        "road": "wet asphalt",
        "road_edge": "painted road edges",
        "grass": "grass strips",
        "vegetation": "pine trees",
        "barrier": "steel guard rails",
        "building": "a timber lodge",
        "billboard": "advertising boards",
        "sky": "evening sky",
    },
)
"""The pack's own example drive; with ``EXAMPLE_CLASSES`` it gives the shipped example prompt."""

EXAMPLE_CLASSES: Mapping[str, str] = {
    name: word for name, word in RACING_COLOURS.items() if name not in ("terrain", "rock", "stands")
}


class NamedClass(Protocol):
    """What the prompt needs of a palette class: its name and its words."""

    @property
    def name(self) -> str: ...
    @property
    def words(self) -> str: ...


def colour_words(classes: Iterable[NamedClass]) -> dict[str, str]:
    """Class name -> colour word for the classes that occur, in the order given.

    A class of the racing palette gets its colour word; another one its own words; one without words is not described.
    """
    words = {entry.name: RACING_COLOURS.get(entry.name, entry.words) for entry in classes if entry.name != UNLABELLED}
    return {name: word for name, word in words.items() if word}


def build_prompt(phrases: Phrases, present: Mapping[str, str] = RACING_COLOURS) -> str:
    """The prompt for one drive, from phrases and the classes that occur in the clip.

    ``present`` maps the name of every class that occurs to its colour word, in palette order. The rivals' lines are
    left out when no rival class occurs. Returns one string with real line feeds and no trailing one.
    """
    rivals = RIVAL_CLASS in present
    actors = {HERO_CLASS: "the player's car", RIVAL_CLASS: "all other cars", **phrases.objects}
    key = "; ".join(f"{word} = {actors.get(name, name.replace('_', ' '))}" for name, word in present.items())
    all_subjects = "<Subject 1>, <Subject 2> and <Subject 3>" if rivals else "<Subject 1> and <Subject 3>"
    cars = "all cars" if rivals else "the car"
    each_car = "each car" if rivals else "the car"
    red, blue = present.get(HERO_CLASS, "red"), present.get(RIVAL_CLASS, "blue")
    ahead = "<Subject 2> is a few lengths ahead, and " if rivals else ""

    subjects = [
        "<Picture 1> is the opening frame of the target video, a photoreal version of the first frame of <Video 1>. "
        "It decides how everything looks: framing at the start, body paint, road surface, weather, light and color "
        "mood.",
        "<Video 1> is a class-color map of the drive. It decides where everything is: the run of the road, the shape, "
        f"place and motion of {each_car}, and the path of the following camera, frame for frame. Color key: {key}. "
        "The key colors only name classes and must not show up in the target video.",
        "<Subject 1> is the player's car in the lower middle of the frame. "
        f"The {red} area of <Video 1> gives its shape, place and motion; <Picture 1> gives its look: {phrases.hero}.",
    ]
    kept = [
        "<Picture 1> ([Shot 1] first frame): fully_preserved - the clip opens on this exact image and keeps its paint, "
        f"{phrases.mood} and color mood.",
        "<Video 1> (road layout, car motion and camera path): fully_preserved - layout and motion match it on every "
        "frame; real materials take the place of the key colors.",
        f"<Subject 1> (appears in [Shot 1]): fully_preserved - {phrases.hero_short or phrases.hero}.",
    ]
    if rivals:
        subjects.append(
            f"<Subject 2> is the group of other cars. The {blue} areas of <Video 1> give their shape, place and "
            f"motion; <Picture 1> gives their look: {phrases.rivals or 'as painted there'}."
        )
        kept.append(
            "<Subject 2> (appears in [Shot 1]): fully_preserved - each other car keeps its paint and moves like its "
            f"{blue} area in <Video 1>."
        )
    subjects.append(
        "<Subject 3> is the road and the land around it. <Video 1> gives the layout; "
        f"<Picture 1> gives the look: {phrases.surroundings}."
    )
    kept.append(
        "<Subject 3> (appears in [Shot 1]): fully_preserved - "
        f"{phrases.surroundings_short or phrases.surroundings} look as in <Picture 1>."
    )
    bodies = (
        "\n".join(subjects),
        f"{TASK_TAG} {phrases.scene}, watched from a camera that trails <Subject 1>. The first frame is <Picture 1>, "
        f"which sets the look of {all_subjects}; <Video 1> sets the road, the motion of {cars} and the camera path.",
        "\n".join(kept),
        "The target video looks like footage from a modern racing game at its highest settings: "
        f"{phrases.atmosphere}. There is no interface, caption or flat color anywhere.\n"
        "[Shot 1] A single unbroken shot from behind and a little above <Subject 1>; the camera moves only as in "
        f"<Video 1>. The shot begins from <Picture 1>: <Subject 1> sits low in the frame, {ahead}{phrases.opening}. "
        f"From there the road, {'the cars' if rivals else 'the car'} and the camera go on as <Video 1> shows, while "
        "colors, surfaces and light stay as in <Picture 1>. "
        f"{phrases.sound_in_shot[:1].upper()}{phrases.sound_in_shot[1:]}; nobody speaks.",
        f"{phrases.sound}. No voices.",
        "N/A",
    )
    return "\n\n".join(f"{name}:\n{body}" for name, body in zip(SECTIONS, bodies, strict=True))


def split_sections(prompt: str) -> dict[str, str]:
    """Section heading -> body, in the order found. Text before the first heading is not returned."""
    pattern = re.compile(rf"^({'|'.join(SECTIONS)}):[ \t]*$", re.MULTILINE)
    found = list(pattern.finditer(prompt))
    ends = [match.start() for match in found[1:]] + [len(prompt)]
    return {match[1]: prompt[match.end() : end].strip() for match, end in zip(found, ends, strict=False)}


def prompt_warnings(prompt: str, present: Mapping[str, str] | None = None) -> list[str]:
    """Where a prompt leaves the template the model was trained on; an empty list when it does not.

    Warnings only: any text renders. With ``present`` (class name -> colour word) the colour key is checked as well.
    """
    warnings: list[str] = []
    sections = split_sections(prompt)
    missing = [name for name in SECTIONS if name not in sections]
    if missing:
        warnings.append(
            f"the prompt has no section {', '.join(name + ':' for name in missing)}; the model knows the order "
            f"{', '.join(SECTIONS)}. Start from the built-in template."
        )
    elif tuple(sections) != SECTIONS:
        warnings.append(f"the sections come as {', '.join(sections)}; put them in the order {', '.join(SECTIONS)}.")
    if prompt != prompt.strip():
        warnings.append("the prompt begins or ends with blank space, which becomes tokens of its own; remove it.")
    for label, owns in (("<Picture 1>", "the look"), ("<Video 1>", "the layout and the motion")):
        if label not in prompt:
            warnings.append(f"the prompt never says {label}; write which properties {label} decides ({owns}).")
    extra = sorted(set(re.findall(r"<(?:Picture|Video) (?!1>)\d+>|<Audio \d+>", prompt)))
    if extra:
        warnings.append(
            f"the prompt speaks of {', '.join(extra)}, but one picture and one video are given; rename them."
        )
    defined = set(re.findall(r"^(<Subject \d+>)", sections.get("subject_definitions", ""), re.MULTILINE))
    loose = sorted(set(re.findall(r"<Subject \d+>", prompt)) - defined)
    if sections and loose:
        warnings.append(f"{', '.join(loose)} has no line in subject_definitions:; say what it is there.")
    summary = sections.get("summary", "")
    tags = re.match(r"\[([^\]]+)\]", summary)
    if summary and (tags is None or any(task.strip() not in TASKS for task in tags[1].split("+"))):
        warnings.append(f"summary: does not begin with a task tag; begin it with {TASK_TAG}.")
    for line in sections.get("retention_analysis", "").splitlines():
        marker = re.search(r"\):\s*([a-z_]+)", line)
        if line.strip() and (marker is None or marker[1] not in RETENTION):
            warnings.append(
                f"retention_analysis: line {line[:40]!r} has no known marker; use one of {', '.join(RETENTION)}."
            )
    if present is not None:
        definitions = sections.get("subject_definitions", prompt)
        unnamed = [f"{name} ({word})" for name, word in present.items() if f"{word} = " not in definitions]
        if unnamed:
            warnings.append(
                f"the color key does not explain {', '.join(unnamed)}, which occurs in the clip; "
                "add 'color = object' for each after 'Color key:'."
            )
    return warnings
