"""Solid shapes of the world as convex polyhedra (lists of planes), and the parts that cars and structures are made of.

Local axes: x right (for structures: away from the road), y up, z forward; cars are in metres, other shapes fill [-1, 1]^3.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .world_classes import BILLBOARD, BUILDING, STANDS

PLANES = 16
Vec = tuple[float, float, float]

# Materials of solid parts
PAINT, CABIN, TYRE, DARK, TRIM, WALL, ROOF, SEATS, CANOPY, BOARD, POST = range(11)

BOX: tuple[tuple[Vec, Vec], ...] = (
    ((1, 0, 0), (1, 0, 0)), ((-1, 0, 0), (-1, 0, 0)), ((0, 1, 0), (0, 1, 0)),
    ((0, -1, 0), (0, -1, 0)), ((0, 0, 1), (0, 0, 1)), ((0, 0, -1), (0, 0, -1)),
)  # fmt: skip
WEDGE = (*BOX, ((-1, 1.1, 0), (-1, -0.72, 0)))  # seating that falls towards the road
GABLE = (
    ((0, -1, 0), (0, -1, 0)), ((0, 0, 1), (0, 0, 1)), ((0, 0, -1), (0, 0, -1)),
    ((2, 1, 0), (0, 1, 0)), ((-2, 1, 0), (0, 1, 0)), ((1, 0, 0), (1, 0, 0)), ((-1, 0, 0), (-1, 0, 0)),
)  # fmt: skip
BODY = (
    ((1, 0.14, 0), (0.93, 0.50, 0)), ((-1, 0.14, 0), (-0.93, 0.50, 0)),
    ((1, -0.25, 0), (0.93, 0.44, 0)), ((-1, -0.25, 0), (-0.93, 0.44, 0)),
    ((0, -1, 0), (0, 0.20, 0)),
    ((0.55, 0.83, 0), (0.86, 0.80, 0)), ((-0.55, 0.83, 0), (-0.86, 0.80, 0)),
    ((0, 1, -0.03), (0, 0.90, -1.4)), ((0, 1, 0.15), (0, 0.87, 0.6)),
    ((0, 0.16, -1), (0, 0.60, -2.16)), ((0, -0.50, -0.86), (0, 0.40, -2.17)), ((0, 0.75, -0.66), (0, 0.84, -2.10)),
    ((0.55, 0, -0.83), (0.80, 0, -2.14)), ((-0.55, 0, -0.83), (-0.80, 0, -2.14)),
    ((0, 0.3, 1), (0, 0.42, 2.22)), ((0, 0.8, 0.6), (0, 0.58, 2.10)),
)  # fmt: skip
GREENHOUSE = (
    ((0, -1, 0), (0, 0.78, 0)),
    ((0, 1, 0.06), (0, 1.25, -0.45)), ((0, 1, -0.10), (0, 1.25, -0.45)),
    ((1, 0.46, 0), (0.78, 0.88, 0)), ((-1, 0.46, 0), (-0.78, 0.88, 0)),
    ((0.6, 0.8, 0), (0.55, 1.225, 0)), ((-0.6, 0.8, 0), (-0.55, 1.225, 0)),
    ((0, 0.83, -0.56), (0, 0.90, -1.62)), ((0, 0.86, 0.50), (0, 0.88, 0.82)),
    ((0.5, 0.35, -0.79), (0.62, 0.95, -1.45)), ((-0.5, 0.35, -0.79), (-0.62, 0.95, -1.45)),
)  # fmt: skip
HATCH = (
    *GREENHOUSE[:7],
    ((0, 0.40, -0.92), (0, 0.90, -2.02)), ((0, 0.86, 0.50), (0, 0.88, 0.82)),
    ((0.5, 0.2, -0.84), (0.62, 0.95, -1.95)), ((-0.5, 0.2, -0.84), (-0.62, 0.95, -1.95)),
)  # fmt: skip
WHEEL = (
    ((1, 0, 0), (1, 0, 0)), ((-1, 0, 0), (-1, 0, 0)),
    *(((0, math.sin(a), math.cos(a)), (0, math.sin(a), math.cos(a))) for a in (2 * math.pi * k / 14 for k in range(14))),
)  # fmt: skip

SHAPES = (BOX, WEDGE, GABLE, BODY, GREENHOUSE, HATCH, WHEEL)
S_BOX, S_WEDGE, S_GABLE, S_BODY, S_GREENHOUSE, S_HATCH, S_WHEEL = range(7)
_UNIT = ((-1.0, -1.0, -1.0), (1.0, 1.0, 1.0))
BOUNDS = (_UNIT, _UNIT, _UNIT, ((-0.96, 0.18, -2.24), (0.96, 0.93, 2.28)), ((-0.86, 0.76, -1.75), (0.86, 1.28, 1.0)),
          ((-0.86, 0.76, -2.12), (0.86, 1.28, 1.0)), _UNIT)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One convex solid of an object: shape, centre and half size in the object's frame, material, class (structures)."""

    shape: int
    centre: Vec
    scale: Vec
    material: int
    label: int = 0


def _wheels() -> tuple[Part, ...]:
    return tuple(
        Part(S_WHEEL, (side * 0.83, 0.335, along), (0.135, 0.335, 0.335), TYRE)
        for along in (-1.38, 1.36)
        for side in (-1, 1)
    )


_COMMON = (
    Part(S_BODY, (0, 0, 0), (1, 1, 1), PAINT),
    *_wheels(),
    Part(S_BOX, (0, 0.25, -2.02), (0.72, 0.10, 0.16), DARK),
    Part(S_BOX, (0.93, 0.93, 0.45), (0.075, 0.05, 0.045), TRIM),
    Part(S_BOX, (-0.93, 0.93, 0.45), (0.075, 0.05, 0.045), TRIM),
)
COUPE = (
    *_COMMON,
    Part(S_GREENHOUSE, (0, 0, 0), (1, 1, 1), CABIN),
    Part(S_BOX, (0, 1.17, -2.00), (0.80, 0.022, 0.17), TRIM),
    Part(S_BOX, (0.50, 1.01, -1.98), (0.025, 0.15, 0.09), DARK),
    Part(S_BOX, (-0.50, 1.01, -1.98), (0.025, 0.15, 0.09), DARK),
)
COMPACT = (
    *_COMMON,
    Part(S_HATCH, (0, 0, 0), (1, 1, 1), CABIN),
    Part(S_BOX, (0, 1.25, -1.90), (0.60, 0.03, 0.20), TRIM),
    Part(S_BOX, (0, 0.18, 2.1), (0.7, 0.04, 0.1), DARK),
    Part(S_BOX, (0, 0.18, -0.2), (0.86, 0.05, 1.1), DARK),
)
CARS = (COUPE, COMPACT)
CAR_PARTS = len(COUPE)

EMPTY = Part(S_BOX, (0, 0, 0), (0, 0, 0), WALL, BUILDING)
STAND = (
    Part(S_WEDGE, (0, 3.0, 0), (5.0, 3.4, 15), SEATS, STANDS),
    Part(S_BOX, (1.3, 9.0, 0), (4.8, 0.22, 15.4), CANOPY, STANDS),
    Part(S_BOX, (5.1, 3.6, 0), (0.25, 5.4, 15), CANOPY, STANDS),
    Part(S_BOX, (-5.2, 0.2, 0), (0.15, 1.5, 15), CANOPY, STANDS),
)
TOWER = (
    Part(S_BOX, (0, 5.5, 0), (6.5, 7.5, 8), WALL, BUILDING),
    Part(S_BOX, (0, 13.2, 0), (6.9, 0.35, 8.4), ROOF, BUILDING),
    Part(S_BOX, (-1.5, 1.0, 11), (4.6, 3.4, 4.5), WALL, BUILDING),
    Part(S_BOX, (1.5, 14.2, -2), (2.2, 0.9, 2.4), ROOF, BUILDING),
)
HOUSE = (
    Part(S_BOX, (0, 1.2, 0), (4.4, 3.6, 6.0), WALL, BUILDING),
    Part(S_GABLE, (0, 6.1, 0), (5.1, 1.4, 6.6), ROOF, BUILDING),
    Part(S_BOX, (1.6, 7.2, 2.2), (0.4, 1.2, 0.4), WALL, BUILDING),
    EMPTY,
)
HOARDING = (
    Part(S_BOX, (0, 4.6, 0), (4.4, 1.6, 0.18), BOARD, BILLBOARD),
    Part(S_BOX, (-2.8, 0.8, 0.25), (0.16, 2.4, 0.16), POST, BILLBOARD),
    Part(S_BOX, (2.8, 0.8, 0.25), (0.16, 2.4, 0.16), POST, BILLBOARD),
    EMPTY,
)
STRUCTURES = (STAND, TOWER, HOUSE, HOARDING)
# Distance of a structure's centre from the asphalt's edge: minimum and spread in metres.
SETBACK = ((11.5, 1.0), (20.0, 14.0), (16.0, 14.0), (9.5, 3.0))
GANTRY = (
    Part(S_BOX, (0, 6.5, 0), (1, 0.95, 0.4), BOARD, BILLBOARD),
    Part(S_BOX, (-1, 2.6, 0), (0.3, 4.9, 0.4), WALL, BUILDING),
    Part(S_BOX, (1, 2.6, 0), (0.3, 4.9, 0.4), WALL, BUILDING),
)


@functools.lru_cache(maxsize=4)
def shape_planes(device: str) -> tuple[Tensor, Tensor]:
    """Planes n.x <= d of every shape [shapes, PLANES, 4] and bounds [shapes, 2, 3]; unused planes are 0.x <= 1."""
    table = torch.zeros(len(SHAPES), PLANES, 4)
    table[..., 3] = 1
    for index, shape in enumerate(SHAPES):
        for row, (normal, point) in enumerate(shape):
            length = math.sqrt(sum(c * c for c in normal))
            unit = [c / length for c in normal]
            table[index, row] = torch.tensor([*unit, sum(a * b for a, b in zip(unit, point, strict=True))])
    return table.to(device), torch.tensor(BOUNDS).to(device)
