"""Visibility: which surface every sample of the frame sees, at what depth.

The land is a height field, drawn per column with a running horizon (so hills hide what is behind them); guard rails are
crossings of a column with the rail's line; solids and cards are lists of fragments (sample, object) resolved by depth.
Depth is measured along the camera's forward axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .world_cards import card_shape
from .world_models import PLANES, S_BOX, shape_planes
from .world_scene import FOCAL, Camera, Cards, Parts, Scene
from .world_track import RAIL_OFFSET, Strip

SAMPLES = 208  # depths at which the land is probed
NEAR, FAR = 2.2, 950.0
RAIL_HEIGHT = 0.82
SKY_HIT, LAND_HIT, RAIL_HIT, PART_HIT, CARD_HIT = range(5)


@dataclass(frozen=True)
class Grid:
    """Sample positions of a batch of frames: rows x columns, in frame heights from the top left.

    Samples lie in the middle of their pixels, or `shift` pixels away from it in both directions.
    """

    frames: int
    rows: int
    columns: int
    pixel: float  # sample pitch in frame heights
    aspect: float  # frame width over height
    shift: float = 0.0

    def row_at(self, index: Tensor) -> Tensor:
        return (index.to(torch.float32) + 0.5 + self.shift) * self.pixel

    def column_at(self, index: Tensor) -> Tensor:
        return self.row_at(index)

    def tangent_at(self, index: Tensor) -> Tensor:
        """Horizontal tangent of the view ray through a column."""
        return (self.column_at(index) - 0.5 * self.aspect) / FOCAL


@dataclass
class Visible:
    """Per sample [frames * rows * columns]: hit kind (uint8), depth in metres, index of the winning fragment."""

    grid: Grid
    kind: Tensor
    depth: Tensor
    winner: Tensor
    part: PartFragments
    card: CardFragments


@dataclass(frozen=True)
class PartFragments:
    sample: Tensor  # [f] int64
    item: Tensor  # [f] index into frames * parts
    plane: Tensor  # [f] which plane was hit
    depth: Tensor  # [f]


@dataclass(frozen=True)
class CardFragments:
    sample: Tensor
    item: Tensor  # [f] index into frames * cards
    across: Tensor  # [f] position on the card in card heights, from its axis
    up: Tensor  # [f] position from the base in card heights
    normal: Tensor  # [f, 3] in view axes (right, up, towards the camera)
    depth: Tensor


def split(grid: Grid, sample: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Frame, row and column of flat sample numbers."""
    column = sample % grid.columns
    rest = torch.div(sample, grid.columns, rounding_mode="floor")
    return torch.div(rest, grid.rows, rounding_mode="floor"), rest % grid.rows, column


def rays(camera: Camera, grid: Grid, sample: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Frame number and direction (x, y, z) per unit of depth, of the rays through flat sample numbers."""
    frame, row, column = split(grid, sample)
    k = grid.tangent_at(column)
    fx, fz = camera.forward_x[frame], camera.forward_z[frame]
    down = (grid.row_at(row) - camera.horizon[frame]) / FOCAL
    return frame, fx + k * fz, -down, fz - k * fx


def _land(strip: Strip, camera: Camera, grid: Grid) -> tuple[Tensor, Tensor]:
    """Kind and depth [frames, rows, columns] of land and rails."""
    device = camera.x.device
    depth = NEAR * (FAR / NEAR) ** torch.linspace(0, 1, SAMPLES, device=device)
    k = grid.tangent_at(torch.arange(grid.columns, device=device))[None, :, None]
    fx, fz = camera.forward_x[:, None, None], camera.forward_z[:, None, None]
    x = camera.x[:, None, None] + depth * (fx + k * fz)  # [frames, columns, SAMPLES]
    z = camera.z[:, None, None] + depth * (fz - k * fx)
    section = strip.section(x, z)
    u = section.u
    height = strip.track.land(x, z, section)
    eye = camera.y[:, None, None]
    horizon = camera.horizon[:, None, None]
    screen = horizon + FOCAL * (eye - height) / depth
    profile = torch.cummin(screen, -1).values
    rows = grid.row_at(torch.arange(grid.rows, device=device))
    wanted = rows.expand(grid.frames, grid.columns, grid.rows).contiguous()
    index = torch.searchsorted(-profile, -wanted, right=False)  # first probe at or above the row
    seen = index < SAMPLES
    j = index.clamp(1, SAMPLES - 1)
    h1, h0 = height.gather(-1, j), height.gather(-1, j - 1)
    d1, d0 = depth[j], depth[j - 1]
    slope = (h1 - h0) / (d1 - d0)
    fall = (rows - horizon) / FOCAL
    hit = (eye - h0 + d0 * slope) / (fall + slope)
    hit = torch.minimum(torch.maximum(torch.nan_to_num(hit, nan=FAR), torch.where(index == 0, 0.5, d0)), d1)
    found = torch.where(seen, hit, torch.inf)
    kind = torch.where(seen, LAND_HIT, SKY_HIT).to(torch.uint8)
    width = section.width + RAIL_OFFSET
    for side in (-1, 1):
        offset = side * u - width
        cross = (offset[..., 1:] * offset[..., :-1] < 0) & strip.track.rail(z[..., 1:], side)
        for _ in range(2):
            first = cross.to(torch.uint8).argmax(-1, keepdim=True)
            exists = cross.gather(-1, first)
            a, b = offset.gather(-1, first), offset.gather(-1, first + 1)
            t = a / (a - b)
            at = torch.lerp(depth[first], depth[first + 1], t)
            base = torch.lerp(height.gather(-1, first), height.gather(-1, first + 1), t)
            top = horizon + FOCAL * (eye - base - RAIL_HEIGHT) / at
            bottom = horizon + FOCAL * (eye - base) / at
            inside = exists & (wanted >= top) & (wanted < bottom) & (at < found)
            found = torch.where(inside, at, found)
            kind = torch.where(inside, RAIL_HIT, kind)
            cross = cross.scatter(-1, first, False)
    return kind.transpose(1, 2).contiguous(), found.transpose(1, 2).contiguous()


def fragments(grid: Grid, frame: Tensor, left: Tensor, right: Tensor, top: Tensor, bottom: Tensor,
              keep: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(sample, item) of every sample inside screen boxes [items], given in frame heights; `keep` drops boxes."""

    def edge(value: Tensor, limit: int) -> Tensor:
        return torch.floor(value / grid.pixel).clamp(0, limit).to(torch.int64)

    x0, x1 = edge(left, grid.columns), edge(right + grid.pixel, grid.columns)
    y0, y1 = edge(top, grid.rows), edge(bottom + grid.pixel, grid.rows)
    wide = (x1 - x0).clamp_min(0)
    count = torch.where(keep, wide * (y1 - y0).clamp_min(0), 0)
    item = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    start = torch.cumsum(count, 0) - count
    local = torch.arange(len(item), device=count.device) - start[item]
    span = wide[item]
    row = y0[item] + torch.div(local, span, rounding_mode="floor")
    sample = (frame[item] * grid.rows + row) * grid.columns + x0[item] + local % span
    return sample, item


def frame_of(count: int, items: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device).repeat_interleave(items)


def project(camera: Camera, grid: Grid, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Screen column and row (frame heights) and depth of world points [frames, ..., 3]; points behind are pushed to 0.5 m."""
    shape = (-1, *([1] * (point.dim() - 2)))
    dx, dz = point[..., 0] - camera.x.view(shape), point[..., 2] - camera.z.view(shape)
    fx, fz = camera.forward_x.view(shape), camera.forward_z.view(shape)
    depth = dx * fx + dz * fz
    safe = depth.clamp_min(0.5)
    column = 0.5 * grid.aspect + FOCAL * (dx * fz - dz * fx) / safe
    row = camera.horizon.view(shape) + FOCAL * (camera.y.view(shape) - point[..., 1]) / safe
    return column, row, depth


def _solve_parts(camera: Camera, grid: Grid, parts: Parts, nearest: Tensor) -> PartFragments:
    _, bounds = shape_planes(str(camera.x.device))
    n, m = parts.shape.shape
    low, high = bounds[parts.shape, 0], bounds[parts.shape, 1]  # [n, m, 3]
    pick = torch.tensor([[i & 1, (i >> 1) & 1, (i >> 2) & 1] for i in range(8)], device=low.device, dtype=low.dtype)
    corner = (low[:, :, None] + (high - low)[:, :, None] * pick) * parts.scale[:, :, None]  # [n, m, 8, 3]
    corner = parts.centre[:, :, None] + torch.einsum("nmkc,nmcx->nmkx", corner, parts.axes)
    column, row, depth = project(camera, grid, corner)
    keep = (depth.amax(-1) > 1.0) & (parts.scale.abs().amin(-1) > 1e-3)
    frame = frame_of(n, m, low.device)
    sample, item = fragments(grid, frame, column.amin(-1).flatten(), column.amax(-1).flatten(),
                             row.amin(-1).flatten(), row.amax(-1).flatten(), keep.flatten())  # fmt: skip
    near = depth.amin(-1).flatten()[item]
    front = near < nearest[sample]
    sample, item = sample[front], item[front]
    box = parts.shape.flatten()[item] == S_BOX
    found = []
    for mask, solve in ((box, _enter_box), (~box, _enter_planes)):
        index = torch.nonzero(mask).flatten()
        some, which = sample[index], item[index]
        origin, direction = part_ray(camera, grid, parts, some, which)
        hit, enter, plane = solve(origin, direction, parts.shape.flatten()[which])
        hit = hit & (enter > 0.05) & (enter < nearest[some])
        found.append((some[hit], which[hit], plane[hit], enter[hit]))
    return PartFragments(*(torch.cat(pair) for pair in zip(*found, strict=True)))


def _enter_box(origin: Tensor, direction: Tensor, shape: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hit, depth and plane (order of models.BOX) of rays with the box [-1, 1]^3."""
    safe = torch.where(direction.abs() < 1e-9, 1e-9, direction)
    near, far = (-torch.sign(safe) - origin) / safe, (torch.sign(safe) - origin) / safe
    enter, axis = near.max(-1)
    leave = far.amin(-1)
    positive = safe.gather(-1, axis[:, None])[:, 0] > 0  # travelling towards +axis enters through the minus face
    return enter < leave, enter, 2 * axis + positive


def _enter_planes(origin: Tensor, direction: Tensor, shape: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hit, depth and plane of rays with convex shapes given by planes."""
    planes, _ = shape_planes(str(origin.device))
    enter = torch.full_like(origin[:, 0], 0.05)
    leave = torch.full_like(enter, torch.inf)
    plane_hit = torch.zeros_like(shape)
    ox, oy, oz = (c.contiguous() for c in origin.unbind(-1))
    dx, dy, dz = (c.contiguous() for c in direction.unbind(-1))
    for index in range(PLANES):
        a, b, c, d = (column[shape] for column in planes[:, index].T.contiguous())
        speed = a * dx + b * dy + c * dz
        gap = d - (a * ox + b * oy + c * oz)
        t = gap / torch.where(speed == 0, 1e-12, speed)
        later = (speed < 0) & (t > enter)
        plane_hit = torch.where(later, index, plane_hit)
        enter = torch.where(later, t, enter)
        leave = torch.where(speed > 0, torch.minimum(leave, t), torch.where((speed == 0) & (gap < 0), -1.0, leave))
    return (enter < leave) & (enter > 0.05), enter, plane_hit


def part_ray(camera: Camera, grid: Grid, parts: Parts, sample: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    """Ray origin and direction in a part's own unit frame [f, 3]; the ray parameter is depth."""
    frame, dx, dy, dz = rays(camera, grid, sample)
    axes = parts.axes.reshape(-1, 3, 3)[item]
    scale = parts.scale.reshape(-1, 3)[item]
    eye = torch.stack((camera.x, camera.y, camera.z), -1)[frame] - parts.centre.reshape(-1, 3)[item]
    origin = torch.einsum("fcx,fx->fc", axes, eye) / scale
    direction = torch.einsum("fcx,fx->fc", axes, torch.stack((dx, dy, dz), -1)) / scale
    return origin, direction


def _solve_cards(camera: Camera, grid: Grid, cards: Cards, nearest: Tensor) -> CardFragments:
    n, m = cards.x.shape
    column, row, depth = project(camera, grid, torch.stack((cards.x, cards.y, cards.z), -1))
    tall = FOCAL * cards.height / depth.clamp_min(0.5)
    half = 0.5 * tall * cards.aspect
    keep = (depth > 3.0) & (tall > 0.5 * grid.pixel)
    sample, item = fragments(grid, frame_of(n, m, column.device), (column - half).flatten(), (column + half).flatten(),
                             (row - tall).flatten(), row.flatten(), keep.flatten())  # fmt: skip
    at = depth.flatten()[item]
    front = at < nearest[sample]
    sample, item, at = sample[front], item[front], at[front]
    _, pixel_row, pixel_column = split(grid, sample)
    size = tall.flatten()[item]
    across = (grid.column_at(pixel_column) - column.flatten()[item]) / size
    up = (row.flatten()[item] - grid.row_at(pixel_row)) / size
    inside, normal = card_shape(
        cards.kind.flatten()[item], cards.identity.flatten()[item], across, up, grid.pixel / size
    )
    inside = inside & (up >= 0)
    return CardFragments(sample[inside], item[inside], across[inside], up[inside], normal[inside], at[inside])


def _resolve(nearest: Tensor, winner: Tensor, kind: Tensor, sample: Tensor, depth: Tensor, mark: int) -> None:
    """Depth test in place; among equal depths the lowest fragment number wins, so that results are repeatable."""
    nearest.scatter_reduce_(0, sample, depth, "amin")
    first = depth == nearest[sample]
    index = torch.nonzero(first).flatten()
    target = sample[index]
    winner[target] = torch.iinfo(torch.int64).max
    winner.scatter_reduce_(0, target, index, "amin")
    kind[target] = mark


def visibility(strip: Strip, seen: Scene, grid: Grid) -> Visible:
    """Resolve a scene on a sample grid."""
    land_kind, land_depth = _land(strip, seen.camera, grid)
    kind, nearest = land_kind.flatten(), land_depth.flatten()
    winner = torch.zeros_like(kind, dtype=torch.int64)
    part = _solve_parts(seen.camera, grid, seen.parts, nearest)
    _resolve(nearest, winner, kind, part.sample, part.depth, PART_HIT)
    card = _solve_cards(seen.camera, grid, seen.cards, nearest)
    _resolve(nearest, winner, kind, card.sample, card.depth, CARD_HIT)
    return Visible(grid, kind, nearest, winner, part, card)
