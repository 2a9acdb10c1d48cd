"""Materials of the ground and the guard rails: asphalt with markings and tyre marks, kerbs, grass, bare ground, snow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .world_classes import GRASS, ROAD, ROAD_EDGE, TERRAIN
from .world_looks import WorldLook
from .world_scene import EYE, FOCAL
from .world_sky import rgb
from .world_texture import FBM, GRAIN, LEAF, noise, noise_bank
from .world_track import KERB, Section, Strip, smoothstep

LAMP_STEP = 46.0


@dataclass(frozen=True)
class Ground:
    """Ground samples [f]: world position, the road's cross-section there and class."""

    x: Tensor
    z: Tensor
    section: Section
    label: Tensor

    @property
    def u(self) -> Tensor:
        return self.section.u

    @property
    def width(self) -> Tensor:
        return self.section.width

    @property
    def curvature(self) -> Tensor:
        return self.section.curvature

    def __getitem__(self, index: Tensor) -> Ground:
        return Ground(self.x[index], self.z[index], self.section[index], self.label[index])


def ground_at(strip: Strip, x: Tensor, z: Tensor) -> Ground:
    """Classify ground positions."""
    track, section = strip.track, strip.section(x, z)
    u, width, curvature = section.u, section.width, section.curvature
    away = u.abs()
    outside = (-torch.sign(curvature) * torch.sign(u)).clamp_min(0)  # the outer side of a bend
    trap = 9.0 * smoothstep(0.0042, 0.0075, curvature.abs()) * outside
    gravel = away < width + KERB + trap
    (kx, kz, phase), (lx, lz, other) = track.relief[2], track.relief[1]
    patches = torch.sin(kx * x + kz * z + phase + 2.0) + torch.sin(lx * x + lz * z + other)
    far_bare = (away > width + 34) & (patches > 1.75 - 2.4 * track.bare)
    land = torch.where(gravel | far_bare, TERRAIN, GRASS)
    label = torch.where(away < width, ROAD, torch.where(away < width + KERB, ROAD_EDGE, land))
    return Ground(x, z, section, label)


def _line(distance: Tensor, half: float, pixel: Tensor) -> Tensor:
    """Coverage of a painted line of half width `half` at `distance` from its middle, filtered to `pixel`."""
    return ((half - distance.abs()) / pixel.clamp_min(1e-4) + 0.5).clamp(0, 1) * (2 * half / pixel).clamp(0, 1)


def _mix(color: Tensor, other: Tensor, share: Tensor) -> Tensor:
    return torch.lerp(color, other, share[:, None])


def asphalt(look: WorldLook, g: Ground, across: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """Albedo [f, 3] and standing water [f] of the road; `across`, `along` are the pixel's size in metres."""
    bank = noise_bank(str(g.u.device))
    foot = torch.sqrt(across * along)
    grain = noise(bank, GRAIN, g.u / 3.1, g.z / 3.1, foot / 3.1)
    coarse = noise(bank, LEAF, g.u / 9.0, g.z / 9.0, foot / 9.0)
    broad = noise(bank, FBM, g.u / 37.0, g.z / 53.0, foot / 37.0)
    streak = noise(bank, FBM, g.u / 11.0, g.z / 260.0, across / 11.0)
    tone = 0.108 * (1 + 0.05 * grain + 0.05 * coarse + 0.06 * broad + 0.05 * streak)
    line = g.u - 0.65 * torch.tanh(g.curvature * 140)
    rubber = torch.exp(-((line.abs() - 0.85) ** 2) / 0.28) * (0.26 + 0.07 * streak)
    rubber = rubber + 0.10 * torch.exp(-(line**2) / 5.0)
    skid = noise(bank, FBM, g.z / 150.0 + 0.5, g.u / 300.0)
    for offset, lane in ((-0.78, 0.0), (0.78, 0.0), (1.6, 0.37), (3.1, 0.37), (-3.4, 0.71), (-1.9, 0.71)):
        drift = 1.1 * torch.sin(g.z / 31.0 + 9 * lane)
        here = smoothstep(0.5, 1.1, torch.sin(g.z / 23.0 + 40 * lane) + 0.5 * skid)
        rubber = rubber + 0.34 * here * _line(g.u - offset - drift, 0.11, across * 1.4) * (1 + 0.08 * grain).clamp(0, 1)
    seam = noise(bank, FBM, g.u / 300.0, g.z / 19.0) * 0.05
    crack = _line(g.u - 1.9 - seam, 0.02, across) + _line(g.u + 2.2 + seam, 0.02, across)
    tone = tone * (1 - rubber.clamp(0, 0.62)) * (1 - 0.20 * crack.clamp(0, 1))
    dust = smoothstep(1.3, 0.1, g.width - g.u.abs()) * (0.5 + 0.25 * broad)
    color = tone[:, None] * rgb((1.0, 1.0, 1.03), g.u) + dust.clamp(0, 1)[:, None] * rgb((0.030, 0.026, 0.018), g.u)
    wear = (0.85 + 0.08 * coarse + 0.04 * grain).clamp(0.25, 1)
    edge = _line(g.u.abs() - g.width + 0.32, 0.075, across)
    dash = torch.cos(g.z * (2 * math.pi / 10.0))
    dashed = (0.5 + dash / (along * 0.63).clamp_min(0.03) * 0.5).clamp(0, 1)
    dashed = torch.lerp(dashed, torch.full_like(dashed, 0.5), smoothstep(3.0, 8.0, along))
    middle = _line(g.u, 0.065, across) * dashed
    paint = (torch.maximum(edge, middle) * wear).clamp(0, 1)
    color = _mix(color, rgb((0.62, 0.62, 0.59), g.u), paint)
    grid_line = ((g.z > 68) & (g.z < 69.0)).to(torch.float32)
    color = _mix(color, rgb((0.62, 0.62, 0.60), g.u), 0.8 * grid_line * wear)
    puddle = smoothstep(0.1, 0.9, noise(bank, FBM, g.u / 17.0 + 0.3, g.z / 29.0, foot / 17.0) + 0.35 * rubber)
    if look.snow:
        drift = noise(bank, FBM, g.u / 13.0, g.z / 37.0, foot / 13.0)
        cover = smoothstep(1.9, 0.5, g.width - g.u.abs() - 0.5 * drift) * 0.8 + 0.16 * smoothstep(
            0.3, 1.4, drift + coarse * 0.4
        )
        color = _mix(color, rgb((0.72, 0.75, 0.80), g.u), (look.snow * cover * (1 - 0.8 * rubber)).clamp(0, 0.9))
    return color * (1 - 0.50 * look.wet), look.wet * (0.25 + 0.75 * puddle)


def kerb(look: WorldLook, g: Ground, across: Tensor, along: Tensor) -> Tensor:
    """Albedo of the painted edge: red and white blocks in bends, plain concrete with a green band elsewhere."""
    bank = noise_bank(str(g.u.device))
    foot = torch.sqrt(across * along)
    grain = noise(bank, GRAIN, g.u / 2.3, g.z / 2.3, foot / 2.3)
    dirt = noise(bank, FBM, g.u / 9.0, g.z / 14.0, foot / 9.0)
    block = (0.5 + 0.5 * torch.sin(g.z * math.pi / 2.4) / (along * 0.9).clamp_min(0.04)).clamp(0, 1)
    block = torch.lerp(block, torch.full_like(block, 0.5), smoothstep(1.2, 3.2, along))
    striped = _mix(rgb((0.50, 0.035, 0.03), g.u).expand(len(g.u), 3), rgb((0.66, 0.66, 0.64), g.u), block)
    outer = smoothstep(0.40, 0.52, g.u.abs() - g.width)
    plain = _mix(rgb((0.40, 0.40, 0.38), g.u).expand(len(g.u), 3), rgb((0.10, 0.26, 0.12), g.u), 0.8 * outer)
    color = _mix(plain, striped, smoothstep(0.0018, 0.0030, g.curvature.abs()))
    color = color * (0.90 + 0.03 * grain + 0.07 * dirt).clamp(0.3, 1.3)[:, None]
    if look.snow:
        color = _mix(color, rgb((0.74, 0.77, 0.82), g.u), smoothstep(-0.6, 1.0, dirt + 0.1 * grain) * 0.9)
    return color * (1 - 0.35 * look.wet)


def meadow(look: WorldLook, g: Ground, foot: Tensor) -> Tensor:
    """Albedo of grass: tufts, dry patches, mown bands near the road."""
    bank = noise_bank(str(g.u.device))
    blades = noise(bank, GRAIN, g.x / 2.6, g.z / 2.6, foot / 2.6)
    tufts = noise(bank, LEAF, g.x / 12.0, g.z / 12.0, foot / 12.0)
    clumps = noise(bank, LEAF, g.x / 41.0 + 0.3, g.z / 41.0, foot / 41.0)
    broad = noise(bank, FBM, g.x / 160.0, g.z / 160.0, foot / 160.0)
    dry = smoothstep(-0.3, 1.9, broad + 0.25 * clumps)
    color = _mix(rgb((0.060, 0.125, 0.022), g.u).expand(len(g.u), 3), rgb((0.185, 0.170, 0.055), g.u), dry)
    mown = smoothstep(16.0, 8.0, g.u.abs() - g.width) * torch.sign(torch.sin(g.z / 4.6)) * smoothstep(3.0, 1.0, foot)
    shade = (1 + 0.08 * blades + 0.09 * tufts + 0.09 * clumps + 0.08 * mown).clamp(0.25, 2.2)
    color = color * shade[:, None] * rgb(look.grass, g.u)
    if look.snow:
        hollow = smoothstep(1.6, -0.6, tufts + 0.2 * blades + 0.4 * broad)
        white = rgb((0.80, 0.83, 0.88), g.u) * (1 + 0.03 * blades + 0.03 * clumps)[:, None]
        color = _mix(color, white, look.snow * (0.30 + 0.70 * hollow))
    return color * (1 - 0.25 * look.wet)


def bare(look: WorldLook, g: Ground, foot: Tensor) -> Tensor:
    """Albedo of gravel traps and bare slopes."""
    bank = noise_bank(str(g.u.device))
    stones = noise(bank, GRAIN, g.x / 3.7, g.z / 3.7, foot / 3.7)
    lumps = noise(bank, LEAF, g.x / 17.0, g.z / 17.0, foot / 17.0)
    broad = noise(bank, FBM, g.x / 90.0, g.z / 90.0, foot / 90.0)
    far = smoothstep(18, 34, g.u.abs() - g.width)
    sand = _mix(rgb((0.36, 0.30, 0.215), g.u).expand(len(g.u), 3), rgb((0.25, 0.205, 0.135), g.u), far)
    color = sand * (1 + 0.06 * stones + 0.08 * lumps + 0.09 * broad).clamp(0.3, 1.8)[:, None] * rgb(look.ground, g.u)
    if look.snow:
        cover = look.snow * smoothstep(1.2, -0.2, lumps + 0.5 * stones)
        color = _mix(color, rgb((0.80, 0.83, 0.88), g.u).expand(len(g.u), 3), 0.25 + 0.72 * cover)
    return color * (1 - 0.3 * look.wet)


def pixel_size(depth: Tensor, pixel: float) -> tuple[Tensor, Tensor]:
    """Size in metres of a sample on level ground: across and along the view direction."""
    across = depth * pixel / FOCAL
    return across, (across * depth / EYE).clamp_min(across)


def ground_albedo(look: WorldLook, g: Ground, depth: Tensor, pixel: float) -> tuple[Tensor, Tensor]:
    """Albedo [f, 3] and water [f] of ground samples at `depth` metres, seen with a sample pitch of `pixel` frame heights."""
    across, along = pixel_size(depth, pixel)
    foot = torch.sqrt(across * along)
    color = torch.zeros(len(g.u), 3, device=g.u.device)
    water = torch.zeros_like(g.u)

    def part(mask: Tensor) -> tuple[Tensor, Ground]:
        index = torch.nonzero(mask).flatten()
        return index, g[index]

    index, piece = part(g.label == ROAD)
    color[index], water[index] = asphalt(look, piece, across[index], along[index])
    index, piece = part(g.label == ROAD_EDGE)
    color[index] = kerb(look, piece, across[index], along[index])
    water[index] = 0.5 * look.wet
    index, piece = part(g.label == GRASS)
    color[index] = meadow(look, piece, foot[index])
    index, piece = part(g.label == TERRAIN)
    color[index] = bare(look, piece, foot[index])
    return color, water


def rail_albedo(look: WorldLook, g: Ground, height: Tensor) -> tuple[Tensor, Tensor]:
    """Albedo [f, 3] and vertical tilt of the normal [f] of guard rails at `height` metres over the ground."""
    bank = noise_bank(str(g.u.device))
    wave = torch.sin((height - 0.30) * (2 * math.pi / 0.27))
    stain = noise(bank, FBM, g.z / 21.0, height / 6.0)
    steel = rgb((0.40, 0.41, 0.42), g.u) * (1 + 0.10 * stain + 0.12 * wave)[:, None]
    post = _line(torch.remainder(g.z, 4.0) - 2.0, 0.09, torch.full_like(g.z, 0.05))
    below = smoothstep(0.33, 0.27, height)
    color = _mix(steel, rgb((0.055, 0.06, 0.045), g.u), below * (1 - 0.7 * post))
    color = _mix(color, rgb((0.20, 0.20, 0.20), g.u), (1 - below) * post * 0.5)
    banner = ((torch.floor(g.z / 24.0) % 5) < 2) & (height > 0.28)
    panel = rgb(look.brand_color, g.u).expand(len(g.u), 3)
    mark = (torch.remainder(g.z, 6.0) > 2.2) & ((height - 0.56).abs() < 0.09)
    panel = torch.where(mark[:, None], rgb((0.7, 0.7, 0.68), g.u), panel)
    color = torch.where(banner[:, None], panel, color)
    if look.snow:
        color = _mix(color, rgb((0.78, 0.81, 0.86), g.u), look.snow * smoothstep(0.72, 0.78, height))
    return color, torch.where(banner, 0.0 * wave, 0.5 * torch.cos((height - 0.30) * (2 * math.pi / 0.27)))


def lamp_light(look: WorldLook, g: Ground) -> Tensor:
    """Irradiance [f, 3] of the road lamps (posts out of sight above) on ground positions."""
    if not look.lamps:
        return torch.zeros(len(g.u), 3, device=g.u.device)
    phase = torch.remainder(g.z, LAMP_STEP) - LAMP_STEP / 2
    pool = torch.exp(-(phase**2) / 150.0) * torch.exp(-((g.u.abs() - 1.0).clamp_min(0) ** 2) / 130.0)
    return look.lamps * 0.30 * pool[:, None] * rgb((1.0, 0.72, 0.40), g.u)
