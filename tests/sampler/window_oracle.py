"""The sparse window as specified, row by row: one masked softmax over the whole window in packed order.

Shares no code with the pack: places of rows, tiles, alignment (on a fine raster of the picture) and choice are worked out here.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

TILE, RASTER = 8, 8  # rows of a tile along a side; raster points per row of the picture


def spread(side: int, tile: int, points: int, grow: float = 0.0) -> Tensor:
    """Which of `points` raster points along an axis lie in a tile of `side` rows, grown by a share of the axis."""
    at = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    first, last = TILE * tile / side, min(TILE * (tile + 1), side) / side
    return (at > first - grow) & (at < last + grow)


class WindowOracle:
    """A `LayerAttention` of the whole window; `model(pack_whole(...), sparse=oracle)`."""

    def __init__(self, plan: Any, window: Any, geometry: Any, keep: float) -> None:
        new, sink, count = len(window.latents), len(window.sink_latents), len(window.window_latents)
        sides = {name: (side[0] // 2, side[1] // 2) for name, side in self.grids(geometry).items()}
        self.tiles: list[tuple[str, int, int, int]] = []
        self.rows: list[Tensor] = []
        taken = torch.zeros(plan.total, dtype=torch.bool)
        for name, (height, width) in sides.items():
            if not plan.segments[name]:
                continue
            for latent in range(count):
                start = plan.segments[name].start + latent * height * width
                frame = torch.arange(start, start + height * width).view(height, width)
                for i in range(0, height, TILE):
                    for j in range(0, width, TILE):
                        self.tiles.append((name, latent, i // TILE, j // TILE))
                        self.rows.append(frame[i : i + TILE, j : j + TILE].flatten())
                        taken[self.rows[-1]] = True
        self.runs = (~taken).nonzero().flatten()
        self.prefix = torch.zeros(plan.total, dtype=torch.bool)
        for rows in plan.prefix:
            self.prefix[rows.start : rows.stop] = True
        self.queries = [n for n, (_, latent, *_) in enumerate(self.tiles) if latent >= sink]
        self.kept = math.ceil(keep / 100 * len(self.tiles))
        self.forced = {
            q: [k for k in range(len(self.tiles)) if self.must(q, k, sides, count - new)] for q in self.queries
        }
        self.seen: list[dict[tuple[int, int], list[int]]] = []  # of every call, the tiles by (head, query)
        self.gap = math.inf  # least difference of scores that decided

    @staticmethod
    def grids(geometry: Any) -> dict[str, tuple[int, int]]:
        return {"reference": geometry.reference, "video": geometry.target}

    def must(self, query: int, key: int, sides: dict[str, tuple[int, int]], first_new: int) -> bool:
        (kind, t, i, j), (other, s, a, b) = self.tiles[query], self.tiles[key]
        if other == "video" and s >= first_new:
            return True
        if kind == other:
            return (abs(i - a) < 2 and abs(j - b) < 2) if t == s else (i, j) == (a, b)
        if t != s:
            return False
        video, given = ((i, j), (a, b)) if kind == "video" else ((a, b), (i, j))
        for axis in (0, 1):
            side, map_side = sides["video"][axis], sides["reference"][axis]
            points = RASTER * math.lcm(side, map_side)
            here = spread(side, video[axis], points, grow=1 / map_side)
            if not (here & spread(map_side, given[axis], points)).any():
                return False
        return True

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None) -> Tensor:
        heads = q.shape[1]
        mask = torch.ones(heads, len(q), len(q), dtype=torch.bool)
        mask[:, self.prefix[:, None] & ~self.prefix[None, :]] = False
        means = {
            name: torch.stack([x[rows].double().mean(0) for rows in self.rows], 1) for name, x in (("q", q), ("k", k))
        }
        seen = {}
        for head in range(heads):
            for query in self.queries:
                scores = means["k"][head] @ means["q"][head, query] * q.shape[-1] ** -0.5
                forced = self.forced[query]
                free = [n for n in scores.argsort(descending=True).tolist() if n not in forced]
                room = max(0, self.kept - len(forced))
                if 0 < room < len(free):
                    self.gap = min(self.gap, float(scores[free[room - 1]] - scores[free[room]]))
                chosen = sorted([*forced, *free[:room]])
                seen[head, query] = chosen
                visible = torch.zeros(len(q), dtype=torch.bool)
                visible[torch.cat([self.runs, *(self.rows[n] for n in chosen)])] = True
                mask[head, self.rows[query]] = visible
        self.seen.append(seen)
        logits = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("hij,jhd->ihd", logits.masked_fill(~mask, -torch.inf).softmax(-1), v)
