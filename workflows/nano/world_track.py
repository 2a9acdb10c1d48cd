"""The driving world's ground truth: a road as a graph x = centre(z), its hills and width, and where every car is at a time.

Everything is a closed-form function of a seed (sums of sines, integer hashes), so any frame can be asked for at random and
nothing is stored. Units: metres, seconds, radians; x right, y up, z along the general direction of travel.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

FPS = 24
KERB = 0.95  # width of the painted edge beside the asphalt
RAIL_OFFSET = 4.2  # guard rails stand this far outside the asphalt
RIVALS = 6

Waves = tuple[tuple[float, float, float], ...]  # (amplitude, angular wavenumber, phase)


def waves(terms: Waves, at: Tensor) -> Tensor:
    """Sum of sines at positions `at` (any shape)."""
    total = torch.zeros_like(at)
    for amplitude, wavenumber, phase in terms:
        total = total + amplitude * torch.sin(wavenumber * at + phase)
    return total


def waves_slope(terms: Waves, at: Tensor) -> Tensor:
    """First derivative of `waves`."""
    total = torch.zeros_like(at)
    for amplitude, wavenumber, phase in terms:
        total = total + amplitude * wavenumber * torch.cos(wavenumber * at + phase)
    return total


def hash01(seed: int, index: Tensor, channel: int) -> Tensor:
    """Uniform float32 in [0, 1) from integer positions (int64, any shape); equal on every device."""
    mask = 0xFFFFFFFF
    value = (index * 0x9E3779B1 + channel * 0x85EBCA77 + (seed & mask) * 0xC2B2AE3D) & mask
    value = ((value ^ (value >> 16)) * 0x7FEB352D) & mask
    value = ((value ^ (value >> 15)) * 0x846CA68B) & mask
    value = value ^ (value >> 16)
    return (value >> 8).to(torch.float32) / float(1 << 24)


def smoothstep(low: float, high: float, value: Tensor) -> Tensor:
    """Cubic ramp from 0 at `low` to 1 at `high`."""
    t = ((value - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


@dataclass(frozen=True)
class Motion:
    """Cars at given times: station z, lateral offset u (right of the centre line) and yaw added by steering, all [n, cars].

    Car 0 is the player's car, 1..RIVALS are the others.
    """

    z: Tensor
    u: Tensor
    steer: Tensor


@dataclass(frozen=True)
class Section:
    """The road at a position: lateral offset u (right of the centre line), dx/dz, curvature, half width, road height."""

    u: Tensor
    bend: Tensor
    curvature: Tensor
    width: Tensor
    height: Tensor

    def __getitem__(self, index: Tensor) -> Section:
        return Section(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Track:
    """A road, the land it runs through and the drive along it, all drawn from one seed."""

    seed: int
    bends: Waves
    hills: Waves
    widths: Waves
    half_width: float
    relief: tuple[tuple[float, float, float], ...]  # plane waves of the land: (kx, kz, phase)
    relief_height: float
    ridges: tuple[Waves, Waves]  # far mountain outlines over azimuth (tangent of elevation)
    trees: float
    conifers: float
    rocks: float
    built: float
    bare: float
    rails: float
    speed: float
    surge: Waves
    sway: Waves
    gaps: tuple[tuple[float, float, float, float, float], ...]  # per rival: mean gap, swing, period, phase, lane

    @classmethod
    def from_seed(cls, seed: int) -> Track:
        """Draw a track; the same seed always gives the same track."""
        rng = random.Random(f"track {seed}")

        def terms(lengths: tuple[float, ...], slopes: tuple[float, ...]) -> Waves:
            made = []
            for length, slope in zip(lengths, slopes, strict=True):
                wavenumber = 2 * math.pi / (length * rng.uniform(0.85, 1.15))
                made.append((slope * rng.uniform(0.6, 1.0) / wavenumber, wavenumber, rng.uniform(0, 2 * math.pi)))
            return tuple(made)

        bends = terms((900, 520, 310, 190), (0.26, 0.25, 0.17, 0.05))
        hills = terms((640, 330, 170), (0.035, 0.042, 0.022))
        widths = terms((420, 150), (0.010, 0.008))
        relief = tuple(
            (math.cos(a) * k, math.sin(a) * k, rng.uniform(0, 6.3))
            for a, k in (
                (rng.uniform(0, 6.3), 2 * math.pi / rng.uniform(*span))
                for span in ((380, 520), (240, 330), (130, 190), (70, 100))
            )
        )
        far = tuple(
            (height * rng.uniform(0.5, 1.0), k * rng.uniform(0.8, 1.2), rng.uniform(0, 6.3))
            for height, k in ((0.035, 2.1), (0.022, 5.3), (0.012, 12.0), (0.006, 27.0), (0.003, 61.0))
        )
        near = tuple(
            (height * rng.uniform(0.5, 1.0), k * rng.uniform(0.8, 1.2), rng.uniform(0, 6.3))
            for height, k in ((0.014, 3.4), (0.010, 8.0), (0.005, 19.0), (0.002, 43.0))
        )
        biome = rng.choice(("meadow", "forest", "alpine", "dry", "town"))
        trees, conifers, rocks, built, bare = {
            "meadow": (0.70, 0.15, 0.08, 0.45, 0.15),
            "forest": (1.10, 0.55, 0.10, 0.30, 0.10),
            "alpine": (0.85, 0.90, 0.40, 0.30, 0.40),
            "dry": (0.40, 0.30, 0.45, 0.40, 0.75),
            "town": (0.60, 0.10, 0.05, 0.80, 0.10),
        }[biome]
        gaps = []
        for lane, start, drift in ((-1, rng.uniform(9, 16), -1), (1, rng.uniform(-13, -5), 1)):
            mean, swing, period = rng.uniform(8, 15), rng.uniform(20, 28), rng.uniform(24, 34)
            phase = math.asin(max(-0.95, min(0.95, (start - mean) / swing)))
            phase = math.pi - phase if drift < 0 else phase
            lane_offset = lane * rng.uniform(3.15, 3.4)
            gaps.append((mean, swing, period, phase, lane_offset))
            gaps.append((mean + rng.uniform(15, 24), swing, period, phase, lane_offset))
        gaps.append((rng.uniform(50, 60), 16.0, rng.uniform(12, 20), rng.uniform(0, 6.3), rng.uniform(-1, 1)))
        gaps.append((rng.uniform(100, 120), 22.0, rng.uniform(14, 22), rng.uniform(0, 6.3), rng.uniform(-2, 2)))
        return cls(
            seed=seed,
            bends=bends,
            hills=hills,
            widths=widths,
            half_width=rng.uniform(5.6, 6.6),
            relief=relief,
            relief_height=rng.uniform(14, 34),
            ridges=(far, near),
            trees=trees,
            conifers=conifers,
            rocks=rocks,
            built=built,
            bare=bare,
            rails=rng.uniform(0.4, 0.7),
            speed=rng.uniform(19, 25),
            surge=tuple((rng.uniform(1.5, 3.0) / w, w, rng.uniform(0, 6.3)) for w in (0.5, 0.9)),
            sway=tuple((rng.uniform(0.08, 0.15), w, rng.uniform(0, 6.3)) for w in (0.7, 1.3)),
            gaps=tuple(gaps),
        )

    # The road as functions of the station z

    def centre(self, z: Tensor) -> Tensor:
        return waves(self.bends, z)

    def bend(self, z: Tensor) -> Tensor:
        """Tangent of the road's heading (dx/dz)."""
        return waves_slope(self.bends, z)

    def curvature(self, z: Tensor) -> Tensor:
        """Signed curvature in 1/m; positive turns right."""
        second = torch.zeros_like(z)
        for amplitude, wavenumber, phase in self.bends:
            second = second - amplitude * wavenumber * wavenumber * torch.sin(wavenumber * z + phase)
        return second / (1 + self.bend(z) ** 2) ** 1.5

    def road_height(self, z: Tensor) -> Tensor:
        return waves(self.hills, z)

    def width(self, z: Tensor) -> Tensor:
        """Half width of the asphalt in metres."""
        return self.half_width + waves(self.widths, z)

    def section(self, x: Tensor, z: Tensor) -> Section:
        """The road's cross-section at positions (x, z), exact; `Strip` is its fast tabulated form."""
        bend = self.bend(z)
        u = (x - self.centre(z)) * torch.rsqrt(1 + bend * bend)
        return Section(u, bend, self.curvature(z), self.width(z), self.road_height(z))

    def land(self, x: Tensor, z: Tensor, section: Section | None = None) -> Tensor:
        """Ground height y at (x, z); the road's own profile, rolling land away from it."""
        section = self.section(x, z) if section is None else section
        away = (section.u.abs() - section.width - KERB - 3.0).clamp_min(0)
        swell = torch.zeros_like(x)
        for kx, kz, phase in self.relief[2:]:
            swell = swell + torch.sin(kx * x + kz * z + phase)
        big = torch.zeros_like(x)
        for kx, kz, phase in self.relief[:2]:
            big = big + torch.sin(kx * x + kz * z + phase)
        near = smoothstep(0, 30, away) * (1.0 * swell + 0.5)
        far = smoothstep(25, 260, away) * self.relief_height * (0.85 + 0.5 * big + 0.10 * swell)
        return section.height + near + far - 0.12 * smoothstep(0, 2.5, away)

    # The drive

    def player_station(self, time: Tensor) -> Tensor:
        return 60.0 + self.speed * time + waves(self.surge, time)

    def motion(self, time: Tensor) -> Motion:
        """Where the cars are at `time` [n] seconds."""
        z = self.player_station(time)
        u = 0.65 * torch.tanh(self.curvature(z) * 140) + waves(self.sway, time)
        stations, offsets = [z], [u]
        for number, (mean, swing, period, phase, lane) in enumerate(self.gaps):
            turn = 2 * math.pi / period
            stations.append(z + mean + swing * torch.sin(turn * time + phase))
            offsets.append(lane + 0.15 * torch.sin(0.8 * time + 2.1 * number))
        dt = 0.05
        before = 0.65 * torch.tanh(self.curvature(z - self.speed * dt) * 140) + waves(self.sway, time - dt)
        steer = torch.zeros(len(time), 1 + RIVALS, device=time.device)
        steer[:, 0] = 1.6 * (u - before) / (dt * self.speed) + 3.0 * self.curvature(z)
        return Motion(torch.stack(stations, 1), torch.stack(offsets, 1), steer)

    def place(self, z: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """World (x, z) of a point at station z and lateral offset u, and the heading there (radians)."""
        heading = torch.atan(self.bend(z))
        return self.centre(z) + u * torch.cos(heading), z - u * torch.sin(heading), heading

    def rail(self, z: Tensor, side: int) -> Tensor:
        """Whether a guard rail stands at station z on `side` (-1 left, +1 right)."""
        segment = torch.floor(z / 72.0).to(torch.int64)
        return hash01(self.seed, segment, 40 + side) < self.rails


STRIP_START, STRIP_STEP = -1024.0, 1.0  # fixed, so that a frame never depends on which others share its batch


class Strip:
    """A track's road functions tabulated every metre up to station `last` and read with linear interpolation."""

    def __init__(self, track: Track, last: float, device: torch.device) -> None:
        count = int((last - STRIP_START) / STRIP_STEP) + 3
        z = STRIP_START + STRIP_STEP * torch.arange(count, device=device, dtype=torch.float32)
        self.track = track
        self.columns = tuple(f(z) for f in (track.centre, track.bend, track.curvature, track.width, track.road_height))

    def section(self, x: Tensor, z: Tensor) -> Section:
        """As `Track.section`, within a millimetre; stations outside the range read its ends."""
        place = ((z - STRIP_START) / STRIP_STEP).clamp(0, len(self.columns[0]) - 1.001)
        index = place.to(torch.int64)
        part = place - index
        centre, bend, curvature, width, height = (
            torch.lerp(column[index], column[1:][index], part) for column in self.columns
        )
        return Section((x - centre) * torch.rsqrt(1 + bend * bend), bend, curvature, width, height)
