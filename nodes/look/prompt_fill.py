"""What fills the prompt template: the classes that occur in a clip, and the phrases a person typed."""

from __future__ import annotations

from ..palette import SemanticClip, read_legend
from .prompt import EXAMPLE, Phrases, colour_words

LEAST_SHARE = 0.0002  # of the pixels; what covers less is noise of a compressed clip
REPEATED = ("mood", "opening", "sound_in_shot", "hero_short", "surroundings_short")  # phrases that are not typed


def present_classes(clip: SemanticClip) -> dict[str, str]:
    """Class name -> colour word of the classes that occur in a clip, in palette order; a few frames are looked at."""
    shares = read_legend(clip).shares
    return colour_words(entry for entry in clip.palette.entries if shares[entry.name] >= LEAST_SHARE)


def phrases_from(
    scene: str, atmosphere: str, hero: str, rivals: str, surroundings: str, sound: str, objects: str
) -> Phrases:
    """What was typed, trimmed. Raises ValueError for an empty field the template needs, or a line without 'class = thing'."""
    typed = {"scene": scene, "atmosphere": atmosphere, "hero": hero, "surroundings": surroundings, "sound": sound}
    trimmed = {name: " ".join(text.split()).rstrip(".") for name, text in {**typed, "rivals": rivals}.items()}
    empty = [name for name in typed if not trimmed[name]]
    if empty:
        raise ValueError(
            f"H3 Prompt Builder: {empty[0]!r} is empty; a phrase is needed there. Write one, or put the example back"
        )
    things: dict[str, str] = {}
    for line in objects.splitlines():
        if not line.strip():
            continue
        name, sign, thing = (part.strip() for part in line.partition("="))
        if not (name and sign and thing):
            raise ValueError(
                f"H3 Prompt Builder: the line {line.strip()!r} is not 'class = thing'; write for example 'road = asphalt'"
            )
        things[name] = thing
    same = {name: getattr(EXAMPLE, name) for name in REPEATED}
    example = all(trimmed[name] == getattr(EXAMPLE, name) for name in typed)
    return Phrases(**trimmed, objects=things, **(same if example else {}))
