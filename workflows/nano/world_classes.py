"""The fourteen classes of the racing palette in file order, with their colours."""

from __future__ import annotations

(UNLABELED, ROAD, ROAD_EDGE, TERRAIN, GRASS, VEGETATION, ROCK, BARRIER, BUILDING, STANDS, BILLBOARD, SKY, HERO_CAR,
 OPPONENT_CAR) = range(14)  # fmt: skip

COLORS: tuple[tuple[int, int, int], ...] = (
    (0, 0, 0), (128, 64, 128), (244, 35, 232), (200, 215, 255), (0, 190, 0), (107, 142, 35), (140, 90, 40),
    (250, 170, 30), (70, 70, 70), (220, 220, 0), (0, 220, 220), (70, 130, 180), (255, 0, 0), (0, 0, 230),
)  # fmt: skip
