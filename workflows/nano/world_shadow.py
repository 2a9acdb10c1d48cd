"""Shadows on the ground: solids and cards projected along the sun, and the darkness under cars."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .world_looks import WorldLook
from .world_raster import Grid, fragments, frame_of, project
from .world_scene import BUSH, CONIFER, ROCK_CARD, Scene
from .world_texture import LEAF, noise, noise_bank
from .world_track import smoothstep

REACH = 110.0  # metres ahead within which cards throw shadows
LONGEST = 4.5  # shadow length over height


def ground_shadow(look: WorldLook, seen: Scene, grid: Grid, on_ground: Tensor, x: Tensor, y: Tensor, z: Tensor,
                  depth: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sun visibility and ambient visibility in [0, 1] of every sample [frames * rows * columns].

    `on_ground` marks samples that receive (land and rails); x, y, z are their world positions, `depth` their depths.
    """
    sun = torch.ones_like(depth)
    ambient = torch.ones_like(depth)
    sx, sy, sz = look.sun_direction
    flat = math.hypot(sx, sz)
    length = min(LONGEST, flat / max(sy, 1e-3))
    away_x, away_z = -sx / flat * length, -sz / flat * length  # shadow offset per metre of height
    _boxes(seen, grid, on_ground, (x, y, z), (away_x, away_z), sun, ambient)
    if max(look.sun) > 0.2:
        _cards(seen, grid, on_ground, (x, y, z), depth, (away_x, away_z), length, sun)
    return sun, ambient


def _boxes(seen: Scene, grid: Grid, on_ground: Tensor, at: tuple[Tensor, Tensor, Tensor],
           away: tuple[float, float], sun: Tensor, ambient: Tensor) -> None:  # fmt: skip
    c = seen.casters
    n, m = c.x.shape
    cos, sin = torch.cos(c.heading), torch.sin(c.heading)
    corners = []
    for a in (-1, 1):
        for b in (-1, 1):
            wide, far = a * (c.across + 1.0), b * (c.along + 1.0)
            px, pz = c.x + wide * cos + far * sin, c.z - wide * sin + far * cos
            for tip in (0.0, 1.0):
                for lift in (-0.5, 0.5):
                    corners.append(torch.stack((px + tip * c.height * away[0], c.y + lift * (1 + 0.04 * c.height),
                                                pz + tip * c.height * away[1]), -1))  # fmt: skip
    column, row, far_depth = project(seen.camera, grid, torch.stack(corners, 2))
    keep = (far_depth.amax(-1) > 2.0) & (c.across > 1e-3) & (far_depth.amin(-1) < 260)
    sample, item = fragments(grid, frame_of(n, m, column.device), column.amin(-1).flatten(), column.amax(-1).flatten(),
                             row.amin(-1).flatten(), row.amax(-1).flatten(), keep.flatten())  # fmt: skip
    good = on_ground[sample]
    sample, item = sample[good], item[good]
    fields = [f.flatten()[item] for f in (c.x, c.y, c.z, cos, sin, c.across, c.along, c.height, c.contact)]
    cx, cy, cz, cosine, sine, across, along, height, contact = fields
    rise = at[1][sample] - cy
    dx, dz = at[0][sample] - cx, at[2][sample] - cz
    near_u, near_v = dx * cosine - dz * sine, dx * sine + dz * cosine
    outside = torch.hypot((near_u.abs() - across + 0.25).clamp_min(0), (near_v.abs() - along + 0.25).clamp_min(0))
    dark = contact * smoothstep(0.75, 0.0, outside)
    ambient.scatter_reduce_(0, sample, 1 - dark, "amin")
    base_u, base_v = (
        near_u - rise * (away[0] * cosine - away[1] * sine),
        near_v - rise * (away[0] * sine + away[1] * cosine),
    )
    step_u, step_v = -(away[0] * cosine - away[1] * sine) * height, -(away[0] * sine + away[1] * cosine) * height
    step_u = torch.where(step_u.abs() < 1e-4, 1e-4, step_u)
    step_v = torch.where(step_v.abs() < 1e-4, 1e-4, step_v)
    u0, u1 = (-across - base_u) / step_u, (across - base_u) / step_u
    v0, v1 = (-along - base_v) / step_v, (along - base_v) / step_v
    enter = torch.maximum(torch.minimum(u0, u1), torch.minimum(v0, v1)).clamp_min(0)
    leave = torch.minimum(torch.maximum(u0, u1), torch.maximum(v0, v1)).clamp_max(1)
    metres = (leave - enter) * torch.hypot(step_u, step_v).clamp_min(0.3)
    soft = 0.06 + 0.05 * enter * height
    shade = (metres / (2 * soft)).clamp(0, 1) * (height > 0)
    sun.scatter_reduce_(0, sample, 1 - shade, "amin")


def _cards(seen: Scene, grid: Grid, on_ground: Tensor, at: tuple[Tensor, Tensor, Tensor], depth: Tensor,
           away: tuple[float, float], length: float, sun: Tensor) -> None:  # fmt: skip
    c = seen.cards
    n, m = c.x.shape
    half = 0.5 * c.height * c.aspect
    corners = []
    for tip in (0.0, 1.0):
        for toward in (-1, 1):
            for other in (-1, 1):
                for lift in (-0.06, 0.10):
                    corners.append(torch.stack((c.x + tip * c.height * away[0] + toward * half, c.y + lift * c.height,
                                                c.z + tip * c.height * away[1] + other * half), -1))  # fmt: skip
    column, row, far_depth = project(seen.camera, grid, torch.stack(corners, 2))
    keep = (far_depth.amax(-1) > 2.0) & (c.height > 0.3) & (far_depth.amin(-1) < REACH)
    sample, item = fragments(grid, frame_of(n, m, column.device), column.amin(-1).flatten(), column.amax(-1).flatten(),
                             row.amin(-1).flatten(), row.amax(-1).flatten(), keep.flatten())  # fmt: skip
    good = on_ground[sample]
    sample, item = sample[good], item[good]
    cx, cy, cz, height, kind, identity = (f.flatten()[item] for f in (c.x, c.y, c.z, c.height, c.kind, c.identity))
    rise = at[1][sample] - cy
    dx, dz = at[0][sample] - cx - rise * away[0], at[2][sample] - cz - rise * away[1]
    ux, uz = away[0] / max(length, 1e-3), away[1] / max(length, 1e-3)
    up = (dx * ux + dz * uz) / (max(length, 0.15) * height)
    side = (dx * uz - dz * ux).abs() / height
    bank = noise_bank(str(up.device))
    foot = grid.pixel * depth[sample] * 0.2
    leaves = noise(bank, LEAF, at[0][sample] * 0.11 + identity, at[2][sample] * 0.11, foot)
    crown = torch.where(kind == BUSH, 0.45, torch.where(kind == ROCK_CARD, 0.3, 0.60))
    radius = torch.where(kind == BUSH, 0.5, torch.where(kind == ROCK_CARD, 0.42, 0.34))
    blob = 1 - torch.hypot(side, up - crown) / radius
    cone = (0.25 * (1 - up) - side) * 2.2 * (up > 0.02)
    trunk = (0.03 - side) * 12 * ((up > 0) & (up < 0.6))
    body = torch.where(kind == CONIFER, cone, blob) + 0.09 * leaves
    shade = torch.maximum(smoothstep(0.0, 0.16, body) * (0.80 + 0.08 * leaves).clamp(0, 1), trunk.clamp(0, 0.8))
    fade = smoothstep(REACH, 0.75 * REACH, depth[sample])
    sun.scatter_reduce_(0, sample, 1 - shade * fade, "amin")
