"""Sky, clouds, far mountains and haze."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .world_looks import Rgb, WorldLook
from .world_texture import CLOUD, noise, noise_bank
from .world_track import Track, smoothstep, waves


@functools.lru_cache(maxsize=1024)
def _constant(color: Rgb, device: str) -> Tensor:
    return torch.tensor(color, dtype=torch.float32, device=device)


def rgb(color: Rgb, like: Tensor) -> Tensor:
    """A constant colour as a tensor [3] beside `like`."""
    return _constant(color, str(like.device))


def unit(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale = torch.rsqrt(x * x + y * y + z * z)
    return x * scale, y * scale, z * scale


def toward_sun(look: WorldLook, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Cosine between unit directions and the sun."""
    sx, sy, sz = look.sun_direction
    return x * sx + y * sy + z * sz


def sky_gradient(look: WorldLook, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Clear-sky radiance [f, 3] of unit directions; below the horizon it continues the horizon's colour."""
    up = y.clamp_min(0)
    blend = (1 - torch.exp(-up * 4.2))[:, None]
    base = torch.lerp(rgb(look.horizon, y), rgb(look.zenith, y), blend)
    cosine = toward_sun(look, x, y, z).clamp(0, 1)
    low = torch.exp(-up * 3.0)
    wide = (0.35 * cosine**4 * low + 0.30 * cosine**24)[:, None]
    return base + rgb(look.glow, y) * wide


def haze_color(look: WorldLook, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Light scattered into a view direction by the air near the ground [f, 3]."""
    cosine = toward_sun(look, x, y, z).clamp(0, 1)
    mean = 0.80 * rgb(look.horizon, y) + 0.20 * rgb(look.zenith, y)
    return mean + rgb(look.glow, y) * (0.28 * cosine**5)[:, None]


def sky(look: WorldLook, x: Tensor, y: Tensor, z: Tensor, time: Tensor) -> Tensor:
    """Radiance [f, 3] of unit view directions with sun disc and clouds drifting with `time` [f] in seconds."""
    color = sky_gradient(look, x, y, z)
    cosine = toward_sun(look, x, y, z)
    disc = smoothstep(0.99955, 0.99985, cosine) * 6 + 0.55 * cosine.clamp_min(0) ** 900
    bank = noise_bank(str(y.device))
    reach = 1.0 / (y.clamp_min(0.012) + 0.06)
    u, v = x * reach * 0.105 + 0.0011 * time + 0.37 * look.seed, z * reach * 0.105 + 0.0016 * time
    foot = 0.0009 * reach * reach * 0.3
    body = noise(bank, CLOUD, u, v, foot)
    detail = noise(bank, CLOUD, u * 3.1 + 0.4, v * 3.1, foot * 3.1)
    density = body + 0.14 * detail
    threshold = 1.9 - 3.6 * look.clouds
    cover = smoothstep(threshold, threshold + 0.95, density) * smoothstep(0.0, 0.10, y)
    sx, _, sz = look.sun_direction
    shade = noise(bank, CLOUD, u + 0.018 * sx, v + 0.018 * sz, foot) + 0.14 * detail
    lit = (0.55 + 0.75 * (density - shade) - 0.22 * (density - threshold - 0.6)).clamp(0, 1)
    silver = (cosine.clamp(0, 1) ** 16 * (1 - cover) * 0.7)[:, None]
    cloud = torch.lerp(rgb(look.cloud_dark, y), rgb(look.cloud_lit, y), lit[:, None]) * (1 + silver)
    sun = rgb(look.sun, y) * disc[:, None] * (1 - cover)[:, None] * (1.0 - 0.9 * min(1.0, look.clouds * look.clouds))
    if look.haze > 0.01:
        sun = sun * 0.3
    color = torch.lerp(color + sun, cloud, 0.94 * cover[:, None])
    bottom = torch.exp(-y.clamp_min(0) * (26.0 if look.haze < 0.004 else 9.0))[:, None] * 0.8
    return torch.lerp(color, haze_color(look, x, y, z), bottom)


def ridge_cover(track: Track, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """How far unit directions lie below the outlines of the far and the near mountains (tangent; positive: covered)."""
    azimuth = torch.atan2(x, z)
    rise = y * torch.rsqrt((x * x + z * z).clamp_min(1e-6))
    far = 0.072 + waves(track.ridges[0], azimuth * 2) - rise
    near = 0.036 + waves(track.ridges[1], azimuth * 2 + 1.0) - rise
    return far, near


def mountains(look: WorldLook, far: Tensor, near: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Colour [f, 3] of the mountains behind the land."""
    bank = noise_bank(str(y.device))
    azimuth = torch.atan2(x, z)
    relief = noise(bank, CLOUD, azimuth * 1.3, y * 3.2) + 0.5 * noise(bank, CLOUD, azimuth * 5.1 + 0.3, y * 9.0)
    front = near > 0
    sun_height = look.sun_direction[1]
    light = (
        rgb(look.sun, y) * (0.20 + 0.45 * sun_height)
        + 1.1 * look.ambient * rgb(look.zenith, y)
        + 0.2 * rgb(look.horizon, y)
    )
    rock = torch.where(front[:, None], rgb((0.085, 0.115, 0.06), y), rgb((0.15, 0.14, 0.13), y))
    snow_line = smoothstep(0.030, 0.012, far + 0.012 * relief) * (~front)
    snow = (0.75 * snow_line).maximum(torch.full_like(y, 0.80 * look.snow) * (1 - 0.25 * front))
    albedo = torch.lerp(rock, rgb((0.75, 0.78, 0.82), y), snow[:, None]) * (1 + 0.12 * relief)[:, None].clamp(0.4, 1.7)
    depth = torch.where(front, 1900.0, 4200.0)
    veil = (1 - torch.exp(-depth * min(look.haze, 0.01) * 0.34)).clamp(0, 0.97)[:, None]
    return torch.lerp(albedo * light, haze_color(look, x, y.clamp_min(0), z), veil)
