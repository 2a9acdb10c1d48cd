# ruff: noqa: E501 (the prompt's lines are as long as they are)
"""The six-section text (subject definitions, summary, retention, description, sound, music) for a drive in a look."""

from __future__ import annotations

import torch

from . import world_classes as classes
from .world_looks import WorldLook
from .world_render import render
from .world_scene import car_kinds
from .world_track import FPS, Track

COLOR_WORDS = {
    classes.ROAD: "purple", classes.ROAD_EDGE: "magenta", classes.TERRAIN: "pale blue", classes.GRASS: "green",
    classes.VEGETATION: "olive", classes.ROCK: "brown", classes.BARRIER: "orange", classes.BUILDING: "dark grey",
    classes.STANDS: "yellow", classes.BILLBOARD: "cyan", classes.SKY: "steel blue", classes.HERO_CAR: "red",
    classes.OPPONENT_CAR: "blue",
}  # fmt: skip


def present_classes(track: Track, frames: range | None = None, device: torch.device | str = "cpu") -> tuple[int, ...]:
    """Classes that cover at least one pixel in a thousand of some frame of a drive (default: its first five seconds)."""
    ids, _ = render(track, None, list(frames or range(0, 5 * FPS, 12)), (96, 168), device)
    share = torch.stack([(ids == label).float().flatten(1).mean(1).amax() for label in range(14)])
    return tuple(label for label in COLOR_WORDS if share[label] > 1e-3)


def _one(paint: str) -> str:
    return f"{'an' if paint[0] in 'aeiou' else 'a'} {paint}"


def prompt_for(track: Track, look: WorldLook, frames: range | None = None, device: torch.device | str = "cpu") -> str:
    """The prompt of a drive; only classes that occur in `frames` are named, found out on `device`."""
    snow, wet, lamps = look.snow > 0, look.wet > 0.5, look.lamps > 0
    forest = "fir trees" if track.conifers > 0.5 else "broad leafy trees and bushes"
    objects = {
        classes.ROAD: look.surface,
        classes.ROAD_EDGE: "kerbs and painted edges",
        classes.TERRAIN: "snowy slopes and far mountains" if snow else "gravel, bare slopes and far mountains",
        classes.GRASS: "snow-covered verges" if snow else "grass verges and meadows",
        classes.VEGETATION: forest + (" under snow" if snow else ""),
        classes.ROCK: "boulders",
        classes.BARRIER: f"steel guard rails with {look.brand} banners",
        classes.BUILDING: "plastered houses" + (" with lit windows" if lamps else ""),
        classes.STANDS: f"grandstands full of people with {look.brand} edges",
        classes.BILLBOARD: ("glowing " if lamps else "") + f"{look.brand} advertising boards and gates over the road",
        classes.SKY: "sky",
        classes.HERO_CAR: "the player's car",
        classes.OPPONENT_CAR: "all other cars",
    }
    present = present_classes(track, frames, device)
    key = "; ".join(f"{COLOR_WORDS[label]} = {objects[label]}" for label in present)
    hero, *rivals = look.paints
    bodies = ["coupe" if kind == 0 else "hatchback" for kind, _ in car_kinds(track.seed)]
    player = f"{_one(hero)} coupe with two {look.stripe} stripes, a {look.stripe} rear wing and red tail lamps"
    field = f"all of them {rivals[0]}: " + ", ".join(f"{_one(body)}" for body in bodies[1:])
    sides = [objects[label] for label in present if label in
             (classes.GRASS, classes.VEGETATION, classes.BARRIER, classes.STANDS, classes.BUILDING, classes.BILLBOARD)]  # fmt: skip
    land = f"{look.surface}, white edge lines and a dashed middle line, " + ", ".join(sides)
    tires = "Tires hiss on the wet road" if wet else "Tires hum on the road"
    return f"""subject_definitions:
<Picture 1> is the opening frame of the target video, a photoreal version of the first frame of <Video 1>. It decides how everything looks: framing at the start, body paint, road surface, weather, light and color mood.
<Video 1> is a class-color map of the drive. It decides where everything is: the run of the road, the shape, place and motion of each car, and the path of the following camera, frame for frame. Color key: {key}. The key colors only name classes and must not show up in the target video.
<Subject 1> is the player's car in the lower middle of the frame. The red area of <Video 1> gives its shape, place and motion; <Picture 1> gives its look: {player}.
<Subject 2> is the group of other cars. The blue areas of <Video 1> give their shape, place and motion; <Picture 1> gives their look: {field}.
<Subject 3> is the road and the land around it. <Video 1> gives the layout; <Picture 1> gives the look: {land}.

summary:
[keyframe completion + reference generation] A photoreal drive, {look.scene}, watched from a camera that trails <Subject 1>. The first frame is <Picture 1>, which sets the look of <Subject 1>, <Subject 2> and <Subject 3>; <Video 1> sets the road, the motion of all cars and the camera path.

retention_analysis:
<Picture 1> ([Shot 1] first frame): fully_preserved - the clip opens on this exact image and keeps its paint, light and color mood.
<Video 1> (road layout, car motion and camera path): fully_preserved - layout and motion match it on every frame; real materials take the place of the key colors.
<Subject 1> (appears in [Shot 1]): fully_preserved - the {hero} coupe with {look.stripe} stripes and wing.
<Subject 2> (appears in [Shot 1]): fully_preserved - each other car keeps its paint and moves like its blue area in <Video 1>.
<Subject 3> (appears in [Shot 1]): fully_preserved - road, markings and land look as in <Picture 1>.

detailed_description:
The target video looks like footage from a modern racing game at its highest settings: {look.light}; {look.surface}, fine detail near and far. There is no interface, caption or flat color anywhere.
[Shot 1] A single unbroken shot from behind and a little above <Subject 1>; the camera moves only as in <Video 1>. The shot begins from <Picture 1>: <Subject 1> sits low in the frame and <Subject 2> is around it on the road of <Subject 3>. From there the road, the cars and the camera go on as <Video 1> shows, while colors, surfaces and light stay as in <Picture 1>. Cars overtake and are overtaken; nobody speaks.

overall_soundscape:
The engine of <Subject 1> rises and falls through the gears; other engines come near and drop away. {tires}. {look.sound}. No voices.

non_diegetic_music:
N/A"""
