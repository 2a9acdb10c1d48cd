"""A procedural driving world, drawn twice from one geometry: class ids of the racing palette and a shaded picture."""

from __future__ import annotations

from .world_classes import COLORS
from .world_looks import LOOKS, WorldLook
from .world_prompt import prompt_for
from .world_render import render
from .world_track import FPS, Track

__all__ = ["COLORS", "FPS", "LOOKS", "Track", "WorldLook", "prompt_for", "render"]
