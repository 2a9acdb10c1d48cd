"""Materials of solids and cards: car bodies with glass and lamps, walls, crowds, boards, foliage, rocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import world_models as models
from .world_looks import STRIPES, WorldLook
from .world_scene import CONIFER, ROCK_CARD
from .world_sky import rgb
from .world_texture import FBM, GRAIN, LEAF, noise, noise_bank
from .world_track import smoothstep


@dataclass(frozen=True)
class Surface:
    """What a light needs to know [f]: albedo [f, 3], mirror strength, highlight power, own light [f, 3], softness of the
    light (0 hard, 1 foliage-like wrap)."""

    albedo: Tensor
    mirror: Tensor
    gloss: Tensor
    glow: Tensor
    wrap: Tensor


def _put(color: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    return torch.where(mask[:, None], value, color)


def _random(owner: Tensor, scale: float) -> Tensor:
    return torch.frac(owner.to(torch.float32).abs() * scale + 0.137)


def car_surface(look: WorldLook, material: Tensor, owner: Tensor, p: Tensor, normal: Tensor) -> Surface:
    """Cars; `p` [f, 3] and `normal` [f, 3] are in the car's frame in metres (x right, y up, z forward)."""
    x, y, z = p.unbind(-1)
    ax = x.abs()
    paints = torch.tensor(look.paint_colors, device=x.device)
    paint = paints[owner]
    hero = owner == 0
    black, white = rgb((0.016, 0.017, 0.019), x), rgb((0.74, 0.74, 0.72), x)
    body, cabin = material == models.PAINT, material == models.CABIN
    back, side = normal[:, 2] < -0.6, normal[:, 0].abs() > 0.7
    albedo = paint.clone()
    stripe = hero & (ax < 0.34) & (ax > 0.07) & (body | cabin) & ~side
    albedo = _put(albedo, stripe, rgb(STRIPES[look.stripe], x))
    band = ~hero & (owner % 2 == 0) & body & side & ((y - 0.50).abs() < 0.08)
    albedo = _put(albedo, band, white)
    mirror = torch.full_like(x, 0.055)
    gloss = torch.full_like(x, 180.0)
    # glass: inset fields of the greenhouse
    rear = cabin & (normal[:, 2] < -0.35) & (ax < 0.70 - 0.45 * (y - 0.9)) & (y > 0.90) & (y < 1.22)
    front = cabin & (normal[:, 2] > 0.3) & (ax < 0.72 - 0.45 * (y - 0.9))
    pillar = (z + 0.42).abs() < 0.05
    window = cabin & side & (y > 0.93) & (y < 1.19) & ~pillar & (z > -1.25) & (z < 0.55 - 1.3 * (y - 0.93))
    glass = rear | front | window
    albedo = _put(albedo, glass, rgb((0.012, 0.014, 0.017), x))
    mirror = torch.where(glass, 0.09, mirror)
    # wheel arches, sills, lower bumper
    arch = torch.minimum(torch.hypot(z + 1.38, y - 0.33), torch.hypot(z - 1.36, y - 0.33)) < 0.41
    dark = body & ((side & arch) | (y < 0.27) | (back & (y < 0.40) & (ax < 0.62)))
    albedo = _put(albedo, dark, black)
    groove = body & back & (((ax - 0.60).abs() < 0.008) & (y > 0.62) | ((y - 0.62).abs() < 0.006))
    albedo = _put(albedo, groove, 0.4 * paint)
    plate = body & back & (ax < 0.24) & ((y - 0.50).abs() < 0.055)
    albedo = _put(albedo, plate, white)
    # lamps
    lamp = body & (normal[:, 2] < -0.35) & (ax > 0.38) & (ax < 0.84) & (y > 0.655) & (y < 0.775)
    bar = body & back & (ax <= 0.38) & (y > 0.705) & (y < 0.735)
    core = lamp & ((y - 0.715).abs() < 0.032) & (ax > 0.46) & (ax < 0.80)
    red = rgb((0.30, 0.006, 0.006), x)
    albedo = _put(albedo, lamp | bar, red)
    lit = 0.20 + 1.1 * look.lamps
    glow = torch.zeros_like(p)
    glow = _put(glow, lamp, lit * rgb((0.55, 0.012, 0.01), x))
    glow = _put(glow, bar, lit * rgb((0.8, 0.02, 0.016), x))
    glow = _put(glow, core, lit * rgb((1.9, 0.09, 0.05), x))
    head = body & (normal[:, 2] > 0.35) & (ax > 0.5) & (ax < 0.85) & (y > 0.5) & (y < 0.66)
    glow = _put(glow, head, (0.3 + 2.5 * look.lamps) * rgb((1.0, 0.95, 0.85), x))
    # other parts
    tyre, trim = material == models.TYRE, material == models.TRIM
    albedo = _put(albedo, tyre | (material == models.DARK), rgb((0.014, 0.014, 0.015), x))
    hub = torch.minimum(torch.hypot(z + 1.38, y - 0.335), torch.hypot(z - 1.36, y - 0.335))
    spoke = torch.sin(7 * torch.atan2(y - 0.335, torch.where(z < 0, z + 1.38, z - 1.36))) > -0.2
    rim = tyre & side & (hub < 0.23) & (spoke | (hub < 0.06) | (hub > 0.20))
    albedo = _put(albedo, rim, rgb((0.32, 0.32, 0.33), x))
    albedo = _put(albedo, trim, torch.where(hero[:, None], rgb(STRIPES[look.stripe], x) * 0.9, 0.8 * paint))
    exhaust = (material == models.DARK) & (normal[:, 2] < -0.6) & ((torch.hypot(ax - 0.42, y - 0.25)) < 0.055)
    albedo = _put(albedo, exhaust, rgb((0.30, 0.29, 0.28), x))
    rough = tyre | dark | (material == models.DARK)
    mirror = torch.where(rough, 0.012, torch.where(lamp | bar, 0.05, mirror))
    gloss = torch.where(rough, 12.0, gloss)
    under = smoothstep(0.05, 0.5, y).clamp_min(0.25)
    return Surface(albedo * under[:, None], mirror, gloss, glow, torch.zeros_like(x))


def structure_surface(
    look: WorldLook, material: Tensor, owner: Tensor, p: Tensor, normal: Tensor, foot: Tensor
) -> Surface:
    """Walls, roofs, stands and boards; `p`, `normal` in the structure's frame, `foot` the pixel's size in metres."""
    bank = noise_bank(str(p.device))
    x, y, z = p.unbind(-1)
    r0, r1 = _random(owner, 0.618), _random(owner, 0.3717)
    along = torch.where(normal[:, 0].abs() > 0.6, z, x)
    top = normal[:, 1] > 0.7
    stain = noise(bank, FBM, along / 23.0 + r0, y / 23.0, foot / 23.0)
    fine = noise(bank, GRAIN, along / 4.0, y / 4.0, foot / 4.0)
    plaster = torch.stack((0.50 + 0.08 * r0, 0.46 + 0.06 * r0 - 0.02 * r1, 0.38 + 0.04 * r1), -1)
    albedo = plaster * (1 + 0.05 * stain + 0.02 * fine)[:, None]
    glow = torch.zeros_like(p)
    mirror = torch.full_like(x, 0.02)
    wall = material == models.WALL
    cell_x, cell_y = torch.remainder(along + 100, 3.0) - 1.5, torch.remainder(y + 0.3, 3.1) - 1.55
    soft = foot.clamp_min(0.03)
    pane = ((0.85 - cell_x.abs()) / soft + 0.5).clamp(0, 1) * ((0.80 - cell_y.abs()) / soft + 0.5).clamp(0, 1)
    pane = pane * (wall & ~top & (y > 0.4))
    pane = torch.lerp(pane, 0.27 * (pane.new_ones(()) * (wall & ~top)), smoothstep(0.8, 2.5, foot))
    number = torch.floor((along + 100) / 3.0) * 0.7548 + torch.floor((y + 0.3) / 3.1) * 0.5698 + r0
    lit = (torch.frac(number * 7.31) < 0.7).to(torch.float32) * look.lamps
    albedo = torch.lerp(albedo, rgb((0.03, 0.04, 0.05), x).expand_as(albedo), pane[:, None])
    mirror = torch.lerp(mirror, torch.full_like(x, 0.12), pane)
    glow = glow + (pane * lit)[:, None] * rgb((0.85, 0.52, 0.22), x)
    roof = material == models.ROOF
    tile = 1 + 0.14 * torch.sin(y * 21.0) * smoothstep(0.3, 0.05, foot) + 0.10 * stain
    tiles = rgb((0.24, 0.075, 0.045), x).expand(len(x), 3)
    albedo = _put(albedo, roof, tiles * tile[:, None])
    seats = material == models.SEATS
    row, seat = torch.floor(x / 0.62), torch.floor(z / 0.55)
    person = torch.frac(torch.sin(row * 12.9898 + seat * 78.233 + r0 * 17) * 4375.85)
    tint = torch.frac(person * 57.31)
    crowd = torch.stack((0.13 + 0.34 * torch.frac(tint * 3.1), 0.12 + 0.27 * torch.frac(tint * 5.7),
                         0.12 + 0.29 * torch.frac(tint * 9.3)), -1)  # fmt: skip
    brand = rgb(look.brand_color, x).expand(len(x), 3)
    sloped = seats & (normal[:, 1] > 0.4)
    speckle = torch.where((person < 0.74)[:, None], crowd, brand)
    speckle = speckle * (0.75 + 0.35 * torch.frac(x / 0.62))[:, None]
    mean = 0.74 * rgb((0.28, 0.24, 0.25), x) + 0.26 * brand
    blend = 0.72 + 0.28 * smoothstep(0.10, 0.8, foot)
    speckle = torch.lerp(speckle, mean * (1 + 0.12 * fine)[:, None], blend[:, None])
    aisle = sloped & (torch.remainder(z, 7.5) < 0.7)
    albedo = _put(albedo, seats, rgb((0.42, 0.42, 0.41), x) * (1 + 0.06 * stain)[:, None])
    albedo = _put(albedo, sloped, speckle)
    albedo = _put(albedo, aisle, rgb((0.40, 0.40, 0.39), x))
    canopy = material == models.CANOPY
    panel = torch.where(
        (torch.remainder(z, 5.0) < 0.18)[:, None], rgb((0.30, 0.31, 0.33), x), rgb((0.58, 0.59, 0.61), x)
    )
    fascia = canopy & (normal[:, 0].abs() > 0.6) & (y > 5)
    albedo = _put(albedo, canopy, panel * (1 + 0.05 * stain)[:, None])
    albedo = _put(albedo, fascia, brand)
    board = material == models.BOARD
    face = board & (normal[:, 2].abs() > 0.6)
    albedo = _put(albedo, board, rgb((0.20, 0.20, 0.21), x))
    middle = torch.where(y > 5.4, 6.5, 4.6)
    disc = torch.hypot(torch.remainder(x + 1.6, 3.2) - 1.6, y - middle) < 0.62
    line = (y - middle).abs() < 0.16
    mark = (disc | line).to(torch.float32)
    mark = torch.lerp(mark, torch.full_like(mark, 0.35), smoothstep(0.25, 1.2, foot))
    art = torch.lerp(brand, rgb((0.78, 0.78, 0.75), x).expand_as(brand), mark[:, None])
    albedo = _put(albedo, face, art)
    glow = _put(glow, face, art * (0.85 * look.lamps))
    albedo = _put(albedo, material == models.POST, rgb((0.16, 0.16, 0.17), x))
    ground = smoothstep(-0.3, 1.6, y).clamp_min(0.45)
    if look.snow:
        cover = look.snow * smoothstep(0.55, 0.8, normal[:, 1]) * (1 - 0.55 * sloped)
        albedo = torch.lerp(albedo, rgb((0.80, 0.83, 0.88), x).expand_as(albedo), cover[:, None])
    gloss = torch.full_like(x, 30.0)
    return Surface(albedo * ground[:, None], mirror, gloss, glow, torch.zeros_like(x))


def card_surface(look: WorldLook, kind: Tensor, identity: Tensor, across: Tensor, up: Tensor, height: Tensor,
                 normal: Tensor, foot: Tensor) -> Surface:  # fmt: skip
    """Trees, bushes, rocks; position on the card in card heights, `foot` the pixel's size in card heights."""
    bank = noise_bank(str(up.device))
    u, v = across + identity * 5.3, up + identity * 9.1
    leaves = noise(bank, LEAF, u * 0.9, v * 0.9, foot * 0.9)
    fine = noise(bank, GRAIN, u * 0.8, v * 0.8, foot * 0.8)
    broad = noise(bank, FBM, u * 0.5, v * 0.5, foot * 0.5)
    rock, conifer = kind == ROCK_CARD, kind == CONIFER
    warm = torch.frac(identity * 23.7)[:, None]
    green = torch.lerp(rgb((0.040, 0.090, 0.016), up), rgb((0.120, 0.140, 0.024), up), warm)
    green = _put(green, conifer, torch.lerp(rgb((0.018, 0.055, 0.022), up), rgb((0.040, 0.080, 0.022), up), warm))
    green = green * rgb(look.grass, up)
    depth = (0.62 + 0.55 * up).clamp(0.5, 1.15) * (1 + 0.18 * leaves + 0.05 * fine + 0.10 * broad).clamp(0.2, 2.2)
    trunk = (kind == 0) & (up < 0.36) & (across.abs() < 0.05) | conifer & (up < 0.09) & (across.abs() < 0.025)
    albedo = _put(green * depth[:, None], trunk, rgb((0.075, 0.052, 0.035), up) * (1 + 0.2 * fine)[:, None])
    stone = (
        rgb((0.23, 0.215, 0.195), up) * rgb(look.ground, up) * (1 + 0.05 * fine + 0.09 * leaves + 0.12 * broad)[:, None]
    )
    albedo = _put(albedo, rock, stone * (0.6 + 0.6 * up).clamp(0.6, 1.1)[:, None])
    if look.snow:
        lift = normal[:, 1] + 0.35 * leaves + 0.15 * fine
        cover = look.snow * smoothstep(0.15, 0.75, lift) * torch.where(conifer, 0.75, torch.where(rock, 0.95, 0.6))
        albedo = torch.lerp(albedo, rgb((0.78, 0.81, 0.86), up).expand_as(albedo), cover[:, None] * (~trunk)[:, None])
    wrap = torch.where(rock, 0.15, 0.55)
    zero = torch.zeros_like(up)
    return Surface(albedo * (1 - 0.2 * look.wet), zero + 0.01, zero + 8.0, torch.zeros_like(albedo), wrap)
