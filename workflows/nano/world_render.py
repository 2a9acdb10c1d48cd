"""Frames of the world: class ids at pixel centres and shaded pictures of the same geometry."""

from __future__ import annotations

import torch
from torch import Tensor

from .world_classes import BARRIER, ROCK, SKY, TERRAIN, VEGETATION
from .world_ground import ground_albedo, ground_at, lamp_light, rail_albedo
from .world_looks import WorldLook
from .world_models import shape_planes
from .world_raster import CARD_HIT, LAND_HIT, PART_HIT, RAIL_HIT, SKY_HIT, Grid, Visible, part_ray, rays, visibility
from .world_scene import FOCAL, ROCK_CARD, Scene, scene
from .world_shadow import ground_shadow
from .world_sky import haze_color, mountains, rgb, ridge_cover, sky, sky_gradient, toward_sun, unit
from .world_surfaces import Surface, car_surface, card_surface, structure_surface
from .world_texture import GRAIN, noise, noise_bank
from .world_track import FPS, Strip, Track, smoothstep

Size = tuple[int, int]


def _index(mask: Tensor) -> Tensor:
    return torch.nonzero(mask).flatten()


def class_ids(strip: Strip, seen: Scene, visible: Visible) -> Tensor:
    """Class of every sample, uint8 [frames, rows, columns]."""
    grid, camera = visible.grid, seen.camera
    out = torch.full_like(visible.kind, SKY)
    at = _index(visible.kind == SKY_HIT)
    _, dx, dy, dz = rays(camera, grid, at)
    far, near = ridge_cover(strip.track, *unit(dx, dy, dz))
    out[at] = torch.where((far > 0) | (near > 0), TERRAIN, SKY).to(torch.uint8)
    at = _index(visible.kind == LAND_HIT)
    frame, dx, _, dz = rays(camera, grid, at)
    depth = visible.depth[at]
    out[at] = ground_at(strip, camera.x[frame] + depth * dx, camera.z[frame] + depth * dz).label.to(torch.uint8)
    out[visible.kind == RAIL_HIT] = BARRIER
    at = _index(visible.kind == PART_HIT)
    out[at] = seen.parts.label.flatten()[visible.part.item[visible.winner[at]]].to(torch.uint8)
    at = _index(visible.kind == CARD_HIT)
    rock = seen.cards.kind.flatten()[visible.card.item[visible.winner[at]]] == ROCK_CARD
    out[at] = torch.where(rock, ROCK, VEGETATION).to(torch.uint8)
    return out.view(grid.frames, grid.rows, grid.columns)


def _lit(look: WorldLook, surface: Surface, normal: Tensor, view: Tensor, sun_seen: Tensor, open_sky: Tensor,
         lamps: Tensor) -> Tensor:  # fmt: skip
    """Radiance [f, 3] of surfaces with unit `normal`, seen along unit `view` (away from the eye)."""
    facing = toward_sun(look, *normal.unbind(-1))
    direct = ((facing + surface.wrap) / (1 + surface.wrap)).clamp(0, 1) * sun_seen
    up = 0.5 + 0.5 * normal[:, 1]
    dome = torch.lerp(
        0.42 * rgb(look.horizon, up), 0.62 * rgb(look.zenith, up) + 0.38 * rgb(look.horizon, up), up[:, None]
    )
    bounce = (1 - up)[:, None] * rgb(look.sun, up) * rgb((0.10, 0.09, 0.065), up)
    light = rgb(look.sun, up) * direct[:, None] + (look.ambient * dome + bounce) * open_sky[:, None] + lamps
    color = surface.albedo * light + surface.glow
    dot = (view * normal).sum(-1)
    mirror_ray = view - 2 * dot[:, None] * normal
    fresnel = surface.mirror + (1 - surface.mirror) * (1 + dot).clamp(0, 1) ** 5 * (surface.mirror > 0.03) * 0.55
    shine = toward_sun(look, *mirror_ray.unbind(-1)).clamp_min(0) ** surface.gloss
    env = sky_gradient(look, *mirror_ray.unbind(-1)) * smoothstep(-0.12, 0.06, mirror_ray[:, 1])[:, None]
    env = env + (0.25 * lamps + 0.10 * rgb(look.horizon, up)) * (mirror_ray[:, 1:2] < 0)
    spark = rgb(look.sun, up) * (shine * sun_seen * (surface.mirror * 14).clamp(0, 1.2))[:, None]
    return color + fresnel[:, None] * env * open_sky[:, None] + spark


def _lamps_at(strip: Strip, look: WorldLook, x: Tensor, z: Tensor) -> Tensor:
    if not look.lamps:
        return torch.zeros(len(x), 3, device=x.device)
    return lamp_light(look, ground_at(strip, x, z))


def _shade_parts(strip: Strip, look: WorldLook, seen: Scene, visible: Visible, at: Tensor) -> Tensor:
    parts, camera, grid = seen.parts, seen.camera, visible.grid
    fragment = visible.winner[at]
    item, plane = visible.part.item[fragment], visible.part.plane[fragment]
    depth = visible.depth[at]
    origin, direction = part_ray(camera, grid, parts, at, item)
    scale = parts.scale.reshape(-1, 3)[item]
    spot = origin + depth[:, None] * direction
    planes, _ = shape_planes(str(depth.device))
    normal = planes[parts.shape.flatten()[item], plane, :3] / scale
    normal = normal / normal.norm(dim=-1, keepdim=True)
    p = spot * scale + parts.offset.reshape(-1, 3)[item]
    owner, material = parts.owner.flatten()[item], parts.material.flatten()[item]
    frame, dx, dy, dz = rays(camera, grid, at)
    view = torch.stack(unit(dx, dy, dz), -1)
    axes = parts.axes.reshape(-1, 3, 3)[item]
    car = owner >= 0
    bulge = torch.stack((p[:, 0] * 0.55, (p[:, 1] - 0.62) * 0.9, p[:, 2] * 0.16), -1) * (material < 2)[:, None]
    smooth = torch.where(car[:, None], normal + bulge * 0.55, normal)
    smooth = smooth / smooth.norm(dim=-1, keepdim=True)
    world = torch.einsum("fcx,fc->fx", axes, smooth)
    foot = depth * grid.pixel / FOCAL
    color = torch.zeros(len(at), 3, device=depth.device)
    ones = torch.ones_like(depth)
    x, z = camera.x[frame] + depth * dx, camera.z[frame] + depth * dz
    lamps = _lamps_at(strip, look, x, z)
    for mask, build in ((car, car_surface), (~car, structure_surface)):
        pick = _index(mask)
        if build is car_surface:
            surface = car_surface(look, material[pick], owner[pick], p[pick], normal[pick])
        else:
            surface = structure_surface(look, material[pick], owner[pick], p[pick], normal[pick], foot[pick])
        color[pick] = _lit(look, surface, world[pick], view[pick], ones[pick], ones[pick], lamps[pick])
    return color


def _shade_cards(strip: Strip, look: WorldLook, seen: Scene, visible: Visible, at: Tensor) -> Tensor:
    cards, camera, grid = seen.cards, seen.camera, visible.grid
    fragment = visible.winner[at]
    card = visible.card
    item, normal = card.item[fragment], card.normal[fragment]
    frame, dx, dy, dz = rays(camera, grid, at)
    fx, fz = camera.forward_x[frame], camera.forward_z[frame]
    right, up, toward = normal.unbind(-1)
    world = torch.stack((right * fz - toward * fx, up, -right * fx - toward * fz), -1)
    height = cards.height.flatten()[item]
    depth = visible.depth[at]
    foot = depth * grid.pixel / FOCAL / height
    surface = card_surface(look, cards.kind.flatten()[item], cards.identity.flatten()[item], card.across[fragment],
                           card.up[fragment], height, normal, foot)  # fmt: skip
    view = torch.stack(unit(dx, dy, dz), -1)
    lamps = _lamps_at(strip, look, cards.x.flatten()[item], cards.z.flatten()[item])
    open_sky = (0.45 + 0.65 * card.up[fragment]).clamp(0, 1)
    return _lit(look, surface, world, view, torch.ones_like(depth), open_sky, lamps)


def _headlamps(look: WorldLook, seen: Scene, frame: Tensor, x: Tensor, z: Tensor) -> Tensor:
    """Light of head and tail lamps on ground positions [f, 3]."""
    light = torch.zeros(len(x), 3, device=x.device)
    c = seen.casters
    for car in range(seen.motion.z.shape[1]):
        cx, cz, heading = c.x[frame, car], c.z[frame, car], c.heading[frame, car]
        dx, dz = x - cx, z - cz
        cos, sin = torch.cos(heading), torch.sin(heading)
        side, ahead = dx * cos - dz * sin, dx * sin + dz * cos - 2.2
        reach = ahead.clamp_min(0.01)
        beam = torch.exp(-((side / (0.8 + 0.20 * reach)) ** 2)) * torch.exp(-(((reach - 9) / 16) ** 2)) * (ahead > 0)
        light = light + (beam * 0.85 * look.lamps)[:, None] * rgb((1.0, 0.90, 0.70), x)
        behind = (-ahead - 4.3).clamp_min(0)
        red = torch.exp(-(side**2) / 1.6) * torch.exp(-behind / 1.7) * (ahead < -4.3)
        light = light + (red * 0.30 * look.lamps)[:, None] * rgb((1.0, 0.04, 0.02), x)
    return light


def _rise(strip: Strip, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Slope of the land towards x and towards z."""
    reach = 0.7

    def at(px: Tensor, pz: Tensor) -> Tensor:
        return strip.track.land(px, pz, strip.section(px, pz))

    base = at(x, z)
    return (at(x + reach, z) - base) / reach, (at(x, z + reach) - base) / reach


def _shade_ground(strip: Strip, look: WorldLook, seen: Scene, visible: Visible, color: Tensor) -> None:
    """Fill land and rail samples of `color` [samples, 3]; the road may mirror what is already in `color`."""
    camera, grid = seen.camera, visible.grid
    on_ground = (visible.kind == LAND_HIT) | (visible.kind == RAIL_HIT)
    every = torch.arange(len(visible.kind), device=color.device)
    frame, dx, dy, dz = rays(camera, grid, every)
    depth = visible.depth
    finite = torch.where(on_ground, depth, 1.0)
    x, y, z = camera.x[frame] + finite * dx, camera.y[frame] + finite * dy, camera.z[frame] + finite * dz
    sun_seen, open_sky = ground_shadow(look, seen, grid, on_ground, x, y, z, depth)
    at = _index(on_ground)
    x, y, z, depth, frame = x[at], y[at], z[at], depth[at], frame[at]
    view = torch.stack(unit(dx[at], dy[at], dz[at]), -1)
    g = ground_at(strip, x, z)
    albedo, water = ground_albedo(look, g, depth, grid.pixel)
    base, (east, north) = strip.track.land(x, z, g.section), _rise(strip, x, z)
    normal = torch.stack((-east, torch.ones_like(east), -north), -1)
    rail = visible.kind[at] == RAIL_HIT
    pick = _index(rail)
    piece = g[pick]
    rail_color, tilt = rail_albedo(look, piece, (y - base)[pick])
    albedo[pick], water[pick] = rail_color, 0.0
    heading = torch.atan(piece.section.bend)
    inward = -torch.sign(piece.u)
    normal[pick] = torch.stack((inward * torch.cos(heading), tilt, -inward * torch.sin(heading)), -1)
    normal = normal / normal.norm(dim=-1, keepdim=True)
    lamps = lamp_light(look, g)
    if look.lamps:
        lamps = lamps + _headlamps(look, seen, frame, x, z) * (~rail)[:, None]
    zero = torch.zeros_like(depth)
    mirror = torch.where(rail, 0.04, zero + 0.005)
    surface = Surface(albedo, mirror, zero + 25.0, torch.zeros_like(albedo), zero + 0.1)
    shaded = _lit(look, surface, normal, view, sun_seen[at], open_sky[at], lamps)
    if look.wet:
        ripple = noise(noise_bank(str(x.device)), GRAIN, x / 5.0, z / 9.0, depth * depth * grid.pixel / 25.0)
        reflection = _reflection(look, visible, color, at, frame, view, camera.horizon, ripple)
        grazing = 0.03 + 0.60 * (1 - (view * normal).sum(-1).abs()).clamp(0, 1) ** 4
        strength = (water * grazing * 1.3).clamp(0, 0.8) * open_sky[at]
        shaded = torch.lerp(shaded, reflection, strength[:, None])
    color[at] = shaded


def _reflection(look: WorldLook, visible: Visible, color: Tensor, at: Tensor, frame: Tensor, view: Tensor,
                horizon: Tensor, ripple: Tensor) -> Tensor:  # fmt: skip
    """What a wet level road mirrors: objects found at the mirrored row for a ladder of distances, else the sky.

    `ripple` [f] disturbs the water by a share of the drop below the horizon; far things fade into the sky.
    """
    grid = visible.grid
    plane = grid.rows * grid.columns
    local = at % plane
    row, column = torch.div(local, grid.columns, rounding_mode="floor"), local % grid.columns
    depth = visible.depth[at]
    level = horizon[frame]
    drop = grid.row_at(row) - level  # FOCAL * eye height / depth
    above = sky_gradient(look, view[:, 0], view[:, 1].abs(), view[:, 2])
    out = above
    wave = 0.045 * ripple * drop
    found = torch.zeros_like(depth, dtype=torch.bool)
    for ratio in (1.04, 1.1, 1.17, 1.26, 1.37, 1.5, 1.66, 1.86, 2.1, 2.4, 2.8, 3.3, 4.0, 5.0, 6.5):
        base = level + drop / ratio
        mirrored = (
            ((2 * base - grid.row_at(row) + wave) / grid.pixel - 0.5 - grid.shift)
            .round()
            .clamp(0, grid.rows - 1)
            .to(torch.int64)
        )
        other = frame * plane + mirrored * grid.columns + column
        there = visible.depth[other] / depth
        solid = (visible.kind[other] == PART_HIT) | (visible.kind[other] == CARD_HIT)
        hit = ~found & solid & (there > ratio * 0.93) & (there < ratio * 1.22)
        out = torch.where(hit[:, None], torch.lerp(color[other], above, min(1.0, 0.36 * (ratio - 1))), out)
        found = found | hit
    return out


def shade(strip: Strip, look: WorldLook, seen: Scene, visible: Visible, time: Tensor) -> Tensor:
    """Linear radiance [frames, rows, columns, 3]."""
    camera, grid = seen.camera, visible.grid
    color = torch.zeros(len(visible.kind), 3, device=time.device)
    at = _index(visible.kind == SKY_HIT)
    frame, dx, dy, dz = rays(camera, grid, at)
    direction = unit(dx, dy, dz)
    far, near = ridge_cover(strip.track, *direction)
    hidden = (far > 0) | (near > 0)
    above = sky(look, *direction, time[frame])
    color[at] = torch.where(hidden[:, None], mountains(look, far, near, *direction), above)
    at = _index(visible.kind == PART_HIT)
    color[at] = _shade_parts(strip, look, seen, visible, at)
    at = _index(visible.kind == CARD_HIT)
    color[at] = _shade_cards(strip, look, seen, visible, at)
    _shade_ground(strip, look, seen, visible, color)
    at = _index(visible.kind != SKY_HIT)
    _, dx, dy, dz = rays(camera, grid, at)
    stretch = torch.sqrt(dx * dx + dy * dy + dz * dz)
    direction = (dx / stretch, dy / stretch, dz / stretch)
    veil = 1 - torch.exp(-look.haze * (visible.depth[at] * stretch - 4).clamp_min(0))
    color[at] = torch.lerp(
        color[at], haze_color(look, direction[0], direction[1].clamp_min(0), direction[2]), veil[:, None]
    )
    return color.view(grid.frames, grid.rows, grid.columns, 3)


def develop(look: WorldLook, color: Tensor) -> Tensor:
    """Film curve and display encoding: linear radiance to sRGB values in [0, 1] (any shape [..., 3])."""
    grey = (color * rgb((0.25, 0.65, 0.10), color)).sum(-1, keepdim=True)
    c = torch.lerp(grey, color, look.saturation).clamp_min(0) * (0.82 * look.exposure)
    c = (c * (2.51 * c + 0.03) / (c * (2.43 * c + 0.59) + 0.14)).clamp(0, 1)
    return torch.where(c <= 0.0031308, 12.92 * c, 1.055 * c.clamp_min(1e-6) ** (1 / 2.4) - 0.055)


def render(
    track: Track,
    look: WorldLook | None,
    frames: range | list[int],
    size: Size = (256, 448),
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.uint8,
    *,
    batch: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Class ids uint8 [n, H, W] and the picture [n, 3, H, W] of the given frames (24 a second).

    The picture is uint8 (0..255) for `dtype` uint8, else of that floating type in [0, 1]; a pixel is half its centre, whose
    class the ids give, and half the mean of its corners, each shared by four pixels. With `look` None only the ids are
    drawn. `batch` frames are drawn at once (default: about ten million samples on a GPU, half a million on a CPU).
    """
    device = torch.device(device)
    height, width = size
    if min(size) < 16:
        raise ValueError(
            f"frame size {size} arrived; height and width of at least 16 pixels are needed; ask for a larger frame"
        )
    if batch is None:
        budget = 10_000_000 if device.type == "cuda" else 500_000
        batch = max(1, budget // (height * width))
    ids, pictures = [], []
    numbers = list(frames)
    for start in range(0, len(numbers), batch):
        number = torch.tensor(numbers[start : start + batch], dtype=torch.int64, device=device)
        seen = scene(track, number)
        grid = Grid(len(number), height, width, 1.0 / height, width / height)
        strip = Strip(track, float(seen.camera.z.max()) + 1000, device)
        visible = visibility(strip, seen, grid)
        ids.append(class_ids(strip, seen, visible))
        if look is None:
            continue
        time = number.to(torch.float32) / FPS
        centres = develop(look, shade(strip, look, seen, visible, time)).permute(0, 3, 1, 2)
        between = Grid(len(number), height + 1, width + 1, 1.0 / height, width / height, shift=-0.5)
        visible = visibility(strip, seen, between)
        corners = develop(look, shade(strip, look, seen, visible, time)).permute(0, 3, 1, 2)
        picture = 0.5 * (centres + torch.nn.functional.avg_pool2d(corners, 2, stride=1))
        pictures.append((picture * 255).round().to(torch.uint8) if dtype == torch.uint8 else picture.to(dtype))
    return torch.cat(ids), torch.cat(pictures) if pictures else None
