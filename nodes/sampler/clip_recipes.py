"""Recipes of whole-clip sampling: the noise levels that each published checkpoint was made for, and its attention.

A recipe is a row of base positions in (0, 1]; `sigma = s*u / (1 + (s-1)*u)` with the shift s of picture or sound gives the
noise levels. FastH3's positions are those of its side file, turbo adapters take a trailing grid, the base model the
`linspace(1, 0, N)` of its scheduler, whose N points make N - 1 calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from .grids import TimeGrid

BASE_SHIFTS = (12.0, 3.0)  # of MiniMax-H3, picture and sound
TILE = (4, 4, 4)  # rows of the video along time, height and width that sparse attention takes or leaves together


@dataclass(frozen=True)
class Recipe:
    """`positions` descend from near 1; the final 0 is implied. `keep` is the share of video tiles in percent that the
    checkpoint was trained to attend to; None for dense attention."""

    name: str
    positions: tuple[float, ...]
    shifts: tuple[float, float] = BASE_SHIFTS
    keep: float | None = None

    @property
    def steps(self) -> int:
        """Calls of the model per clip (and guidance branch)."""
        return len(self.positions)

    @property
    def grid(self) -> TimeGrid:
        """Noise levels of picture and sound."""
        video, audio = (tuple(s * u / (1.0 + (s - 1.0) * u) for u in self.positions) for s in self.shifts)
        return TimeGrid(video, audio)


def trailing(steps: int) -> tuple[float, ...]:
    """1, 1 - 1/steps, ..., 1/steps."""
    return tuple(1.0 - step / steps for step in range(steps))


_FAST = (0.999, 0.874, 0.749, 0.624, 0.5, 0.375, 0.25, 0.125)
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("FastH3 V1 (4 steps)", _FAST[::2], keep=10.0),
        Recipe("FastH3 V2 (8 steps)", _FAST, (10.0, 3.0), keep=20.0),
        Recipe("FastH3 Trim (8 steps)", _FAST, (10.0, 3.0), keep=20.0),
        Recipe("turbo LoRA (4 steps)", trailing(4)),
        Recipe("turbo LoRA (6 steps)", trailing(6)),
        Recipe("turbo LoRA (8 steps)", trailing(8)),
        Recipe("base (25 steps)", trailing(24)),
        Recipe("base (50 steps)", trailing(49)),
    )
}
FAST_V1, FAST_V2, FAST_TRIM, TURBO_4, TURBO_6, TURBO_8, BASE_25, BASE_50 = RECIPES.values()
