"""Everything that stands in view at given times: the chase camera, solid parts (cars, structures), cards (trees, rocks)
and what casts shadows. All as tensors of fixed counts per frame; absent things have size zero.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from . import world_models as models
from .world_classes import HERO_CAR, OPPONENT_CAR
from .world_track import FPS, RIVALS, Motion, Track, hash01, smoothstep

FOCAL = 1.25  # focal length in frame heights
HORIZON = 0.385  # row of the level horizon in frame heights
CHASE = 8.3  # camera distance behind the player's car, metres
EYE = 2.35  # camera height over the road, metres

ROUND, CONIFER, BUSH, ROCK_CARD = range(4)
TREE_SLOTS, TREE_STEP = 112, 4.2
FAR_SLOTS, FAR_STEP = 64, 8.0
BUILT_SLOTS, BUILT_STEP = 16, 38.0
BEHIND = 50.0  # metres behind the camera where things still throw shadows into view


@dataclass(frozen=True)
class Camera:
    """Position [n] each, unit forward (x, z) and the row of the horizon in frame heights [n]."""

    x: Tensor
    y: Tensor
    z: Tensor
    forward_x: Tensor
    forward_z: Tensor
    horizon: Tensor


@dataclass(frozen=True)
class Parts:
    """Convex solids [n, m]: axes and centre in the world, half size, position of the part in its object, and labels."""

    centre: Tensor  # [n, m, 3]
    axes: Tensor  # [n, m, 3, 3] rows: x, y, z axis of the object
    scale: Tensor  # [n, m, 3]
    offset: Tensor  # [n, m, 3] centre in the object's frame
    shape: Tensor  # [n, m] int64
    material: Tensor  # [n, m] int64
    label: Tensor  # [n, m] int64
    owner: Tensor  # [n, m] int64: car number 0.., or -1 - hash16 for structures


@dataclass(frozen=True)
class Cards:
    """Upright cards that face the camera [n, m]: base point, height, width over height, kind, identity in [0, 1)."""

    x: Tensor
    y: Tensor
    z: Tensor
    height: Tensor
    aspect: Tensor
    kind: Tensor
    identity: Tensor


@dataclass(frozen=True)
class Casters:
    """Box shadows [n, m]: base centre, heading, half sizes across and along, height, contact darkness in [0, 1]."""

    x: Tensor
    y: Tensor
    z: Tensor
    heading: Tensor
    across: Tensor
    along: Tensor
    height: Tensor
    contact: Tensor


@dataclass(frozen=True)
class Scene:
    camera: Camera
    motion: Motion
    parts: Parts
    cards: Cards
    casters: Casters


def chase_camera(track: Track, time: Tensor, motion: Motion) -> Camera:
    """A camera that trails the player's car, looks a little into the bend and follows the slope of the road."""
    z, u = motion.z[:, 0], motion.u[:, 0]
    behind = z - CHASE
    x_eye, z_eye, _ = track.place(behind, 0.82 * u)
    x_aim, z_aim, _ = track.place(z + 16.0, 0.55 * u)
    dx, dz = x_aim - x_eye, z_aim - z_eye
    length = torch.sqrt(dx * dx + dz * dz)
    ground = (track.road_height(behind - 2) + track.road_height(behind + 2) + track.road_height(behind + 5)) / 3
    pitch = (track.road_height(z + 26) - track.road_height(behind)) / (CHASE + 26)
    return Camera(x_eye, ground + EYE, z_eye, dx / length, dz / length, HORIZON + FOCAL * 0.85 * pitch)


@functools.lru_cache(maxsize=64)
def car_kinds(seed: int) -> tuple[tuple[int, tuple[float, float, float]], ...]:
    """Shape and scale of each car of a track: (model, (x, y, z))."""
    index = torch.arange(1 + RIVALS)
    pick = hash01(seed, index, 70).tolist()
    tall = hash01(seed, index, 71).tolist()
    out = []
    for car in range(1 + RIVALS):
        model = 0 if car == 0 or pick[car] < 0.6 else 1
        height = 1.0 + 0.10 * tall[car] if model == 0 else 1.12 + 0.12 * tall[car]
        out.append((model, (1.0, height if car else 1.04, 1.0 if model == 0 else 0.93)))
    return tuple(out)


def _axes(heading: Tensor, slope: Tensor) -> Tensor:
    """Object axes [..., 3, 3] (rows x, y, z) from heading (radians) and slope (tangent)."""
    cos, sin = torch.cos(heading), torch.sin(heading)
    run = torch.rsqrt(1 + slope * slope)
    rise = slope * run
    zero = torch.zeros_like(cos)
    right = torch.stack((cos, zero, -sin), -1)
    ahead = torch.stack((sin * run, rise, cos * run), -1)
    up = torch.stack((-sin * rise, run, -cos * rise), -1)
    return torch.stack((right, up, ahead), -2)


def _part_table(groups: tuple[tuple[models.Part, ...], ...], device: torch.device) -> dict[str, Tensor]:
    def table(get, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[get(part) for part in group] for group in groups], dtype=dtype, device=device)

    return {
        "centre": table(lambda p: p.centre, torch.float32),
        "scale": table(lambda p: p.scale, torch.float32),
        "shape": table(lambda p: p.shape, torch.int64),
        "material": table(lambda p: p.material, torch.int64),
        "label": table(lambda p: p.label, torch.int64),
    }


def _instance(kind: Tensor, groups: tuple[tuple[models.Part, ...], ...], base: Tensor, axes: Tensor, size: Tensor,
              owner: Tensor) -> Parts:  # fmt: skip
    """Parts of objects [n, k] of the given `kind`, at `base` [n, k, 3], scaled by `size` [n, k, 3]."""
    table = _part_table(groups, base.device)
    offset = table["centre"][kind] * size[:, :, None]  # [n, k, p, 3]
    centre = base[:, :, None] + torch.einsum("nkpc,nkcx->nkpx", offset, axes)
    count = offset.shape[2]
    flat = base.shape[1] * count
    n = base.shape[0]
    return Parts(
        centre.reshape(n, flat, 3),
        axes[:, :, None].expand(-1, -1, count, -1, -1).reshape(n, flat, 3, 3),
        (table["scale"][kind] * size[:, :, None]).reshape(n, flat, 3),
        offset.reshape(n, flat, 3),
        table["shape"][kind].reshape(n, flat),
        table["material"][kind].reshape(n, flat),
        table["label"][kind].reshape(n, flat),
        owner[:, :, None].expand(-1, -1, count).reshape(n, flat),
    )


def _cars(track: Track, motion: Motion) -> tuple[Parts, Casters]:
    n, cars = motion.z.shape
    device = motion.z.device
    x, z, heading = track.place(motion.z, motion.u)
    ahead, back = track.road_height(motion.z + 1.3), track.road_height(motion.z - 1.3)
    y, slope = (ahead + back) / 2, (ahead - back) / 2.6 * torch.cos(heading)
    kinds = car_kinds(track.seed)
    kind = torch.tensor([k for k, _ in kinds], device=device).expand(n, cars)
    size = torch.tensor([s for _, s in kinds], device=device).expand(n, cars, 3)
    owner = torch.arange(cars, device=device).expand(n, cars)
    base = torch.stack((x, y, z), -1)
    parts = _instance(kind, models.CARS, base, _axes(heading + motion.steer, slope), size, owner)
    label = torch.where(parts.owner == 0, HERO_CAR, OPPONENT_CAR)
    parts = Parts(parts.centre, parts.axes, parts.scale, parts.offset, parts.shape, parts.material, label, parts.owner)
    one = torch.ones_like(x)
    casters = Casters(x, y, z, heading + motion.steer, 0.88 * one, 2.1 * one, 1.12 * one, 0.85 * one)
    return parts, casters


def built_kind(track: Track, slot: Tensor, side: int) -> Tensor:
    """What stands in a roadside slot: -1 nothing, else an index into models.STRUCTURES."""
    station = (slot + 0.5) * BUILT_STEP
    dense = track.built * (0.55 + 0.45 * torch.sin(station * 0.0121 + track.seed)) + 0.65 * (station < 330)
    draw = hash01(track.seed, slot, 20 + side)
    which = hash01(track.seed, slot, 24 + side)
    kind = torch.where(which < 0.26, 0, torch.where(which < 0.50, 1, torch.where(which < 0.72, 2, 3)))
    kind = torch.where((station < 330) & (which < 0.5), 0, kind)
    return torch.where(draw < dense, kind, -1)


def _structures(track: Track, camera_station: Tensor, distance_to) -> tuple[Parts, Casters]:
    device = camera_station.device
    first = torch.floor((camera_station - 70) / BUILT_STEP).to(torch.int64)
    slots = first[:, None] + torch.arange(BUILT_SLOTS, device=device)
    parts, casters = [], []
    setback = torch.tensor(models.SETBACK, device=device)
    for side in (-1, 1):
        kind = built_kind(track, slots, side)
        known = kind.clamp_min(0)
        draws = [hash01(track.seed, slots, 30 + 4 * k + side) for k in range(4)]
        station = (slots + 0.5) * BUILT_STEP + (draws[0] - 0.5) * 5
        away = track.width(station) + setback[known, 0] + setback[known, 1] * draws[1]
        x, z, heading = track.place(station, side * away)
        y = track.land(x, z)
        grow = smoothstep(500, 400, distance_to(x, z)) * (kind >= 0)
        tower, hoarding = known == 1, known == 3
        tall = torch.where(tower, 0.6 + 0.9 * draws[2], 0.9 + 0.25 * draws[2])
        size = torch.stack((side * torch.ones_like(tall), tall, 0.9 + 0.25 * draws[3]), -1) * grow[..., None]
        turn = torch.where(hoarding, side * 0.45, torch.where(known == 2, (draws[2] - 0.5) * 0.8, 0.0))
        owner = -1 - (draws[1] * 65535).to(torch.int64)
        base = torch.stack((x, y, z), -1)
        axes = _axes(heading + turn, torch.zeros_like(x))
        parts.append(_instance(known, models.STRUCTURES, base, axes, size, owner))
        height = torch.tensor([9.0, 13.0, 6.5, 6.0], device=device)[known] * size[..., 1]
        across = torch.tensor([5.2, 6.5, 4.8, 4.4], device=device)[known] * grow
        along = torch.tensor([15.0, 8.0, 6.2, 0.2], device=device)[known] * size[..., 2]
        casters.append(Casters(x, y, z, heading + turn, across, along, height, 0.5 * grow))
    gate = torch.floor((camera_station + 40) / 430.0)[:, None] + torch.arange(2, device=device)
    station = gate * 430.0 + 150.0
    x, z, heading = track.place(station, torch.zeros_like(station))
    grow = smoothstep(500, 400, distance_to(x, z))
    one = torch.ones_like(x)
    size = torch.stack(((track.width(station) + 2.6), one, one), -1) * grow[..., None]
    base = torch.stack((x, track.road_height(station), z), -1)
    owner = -1 - (hash01(track.seed, gate.to(torch.int64), 60) * 65535).to(torch.int64)
    frame = _instance(torch.zeros_like(owner), (models.GANTRY,), base, _axes(heading, 0 * x), size, owner)
    leg = (frame.material == models.WALL)[..., None] & torch.tensor([True, False, False], device=device)
    parts.append(Parts(frame.centre, frame.axes, torch.where(leg, 0.3 * grow.repeat_interleave(3, 1)[..., None],
                 frame.scale), frame.offset, frame.shape, frame.material, frame.label, frame.owner))  # fmt: skip
    casters.append(Casters(x, base[..., 1], z, heading, size[..., 0], 0.4 * grow, 0 * x, 0 * x))
    return _join(Parts, parts), _join(Casters, casters)


def _join(kind, items):
    return kind(*(torch.cat([getattr(item, name) for item in items], 1) for name in kind.__dataclass_fields__))


def _cards(track: Track, camera_station: Tensor, distance_to) -> Cards:
    device = camera_station.device
    made = []
    for side in (-1, 1):
        for count, step, near, spread, channel in (
            (TREE_SLOTS, TREE_STEP, 6.5, 34.0, 100),
            (FAR_SLOTS, FAR_STEP, 42.0, 90.0, 140),
        ):
            first = torch.floor((camera_station - BEHIND) / step).to(torch.int64)
            slots = first[:, None] + torch.arange(count, device=device)
            draw = [hash01(track.seed, slots, channel + 8 * k + side) for k in range(5)]
            station = (slots + draw[0]) * step
            away = track.width(station) + near + spread * draw[1] ** 1.6
            wood = 0.55 + 0.45 * torch.sin(station * 0.021 + side + track.seed) + 0.4 * (channel == 140)
            is_rock = draw[2] > 1 - 0.45 * track.rocks
            present = (draw[2] < track.trees * wood) | is_rock
            built = built_kind(track, torch.floor(station / BUILT_STEP).to(torch.int64), side)
            gap = away - track.width(station)
            taken = ((built == 0) | (built == 3)) & (gap < 20) | ((built == 1) | (built == 2)) & (gap > 9) & (gap < 42)
            present = present & ~taken
            x, z, _ = track.place(station, side * away)
            y = track.land(x, z)
            grow = smoothstep(0.95 * count * step - BEHIND, 0.65 * count * step - BEHIND, distance_to(x, z)) * present
            kind = torch.where(draw[3] < 0.28, BUSH, torch.where(draw[4] < track.conifers, CONIFER, ROUND))
            kind = torch.where((channel == 140) & (kind == BUSH), ROUND, kind)
            kind = torch.where(is_rock, ROCK_CARD, kind)
            base_height = torch.tensor([7.0, 9.5, 1.7, 1.5], device=device)[kind]
            size = torch.frac(draw[3] * 37.0)
            height = base_height * (0.7 + 0.7 * size)
            aspect = torch.tensor([0.92, 0.50, 1.7, 1.6], device=device)[kind]
            made.append(Cards(x, y - 0.03 * height, z, height * grow, aspect, kind, torch.frac(draw[0] * 91.7)))
    return _join(Cards, made)


def scene(track: Track, frames: Tensor) -> Scene:
    """The scene at frame numbers `frames` [n] (int64, 24 a second)."""
    time = frames.to(torch.float32) / FPS
    motion = track.motion(time)
    camera = chase_camera(track, time, motion)

    def distance_to(x: Tensor, z: Tensor) -> Tensor:
        return (x - camera.x[:, None]) * camera.forward_x[:, None] + (z - camera.z[:, None]) * camera.forward_z[:, None]

    station = motion.z[:, 0] - CHASE
    car_parts, car_casters = _cars(track, motion)
    built_parts, built_casters = _structures(track, station, distance_to)
    return Scene(
        camera,
        motion,
        _join(Parts, [car_parts, built_parts]),
        _cards(track, station, distance_to),
        _join(Casters, [car_casters, built_casters]),
    )
