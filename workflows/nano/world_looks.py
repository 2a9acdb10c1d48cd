"""The looks of the world: sun, sky, haze, ground tones and the paints of the cars. Colours are linear light, RGB."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from .world_track import RIVALS

Rgb = tuple[float, float, float]

PAINTS: dict[str, Rgb] = {
    "crimson": (0.42, 0.015, 0.02),
    "silver": (0.48, 0.49, 0.50),
    "white": (0.74, 0.74, 0.72),
    "graphite": (0.06, 0.065, 0.075),
    "royal blue": (0.02, 0.07, 0.40),
    "yellow": (0.72, 0.48, 0.02),
    "orange": (0.70, 0.19, 0.015),
    "dark green": (0.012, 0.11, 0.045),
    "turquoise": (0.02, 0.36, 0.36),
    "lime": (0.36, 0.56, 0.03),
    "burgundy": (0.16, 0.012, 0.03),
    "sky blue": (0.16, 0.40, 0.66),
}
BRANDS: dict[str, Rgb] = {
    "red": (0.46, 0.03, 0.025),
    "blue": (0.02, 0.08, 0.30),
    "yellow": (0.62, 0.40, 0.02),
    "green": (0.02, 0.20, 0.10),
    "orange": (0.60, 0.15, 0.01),
    "teal": (0.03, 0.30, 0.42),
}
STRIPES: dict[str, Rgb] = {"white": (0.75, 0.75, 0.73), "black": (0.02, 0.02, 0.022), "gold": (0.60, 0.38, 0.06)}


@dataclass(frozen=True)
class WorldLook:
    """One light and weather with the paints of one field of cars.

    `sun_height` and `sun_side` are degrees (side 0: ahead along the road's general direction, positive right); `haze` is
    the extinction in 1/m; `clouds` the covered share of the sky; `wet`, `snow` and `lamps` run from 0 to 1.
    """

    name: str
    seed: int
    sun_height: float
    sun_side: float
    sun: Rgb
    zenith: Rgb
    horizon: Rgb
    glow: Rgb
    haze: float
    clouds: float
    cloud_lit: Rgb
    cloud_dark: Rgb
    ambient: float
    exposure: float
    grass: Rgb
    ground: Rgb
    saturation: float
    wet: float
    snow: float
    lamps: float
    scene: str
    light: str
    surface: str
    sound: str
    paints: tuple[str, ...] = ()
    stripe: str = "white"
    brand: str = "red"

    @property
    def sun_direction(self) -> Rgb:
        """Unit vector towards the sun, world (x, y, z)."""
        height, side = math.radians(self.sun_height), math.radians(self.sun_side)
        return math.cos(height) * math.sin(side), math.sin(height), math.cos(height) * math.cos(side)

    @property
    def brand_color(self) -> Rgb:
        """Ground colour of all advertising; what stands on it is white."""
        return BRANDS[self.brand]

    @property
    def paint_colors(self) -> tuple[Rgb, ...]:
        return tuple(PAINTS[paint] for paint in self.paints)

    @classmethod
    def named(cls, name: str, seed: int = 0) -> WorldLook:
        """The look `name` (one of LOOKS) with paints, sun side and small variations drawn from `seed`."""
        if name not in LOOKS:
            raise ValueError(f"look {name!r} is unknown; known looks are {', '.join(LOOKS)}; choose one of these")
        base = LOOKS[name]
        rng = random.Random(f"look {name} {seed}")
        side = rng.choice((-1, 1)) * base.sun_side * rng.uniform(0.75, 1.25)
        hero = rng.choice(list(PAINTS))
        rivals = rng.choice([paint for paint in PAINTS if paint != hero])
        stripes = [stripe for stripe in STRIPES if stripe != hero and not (stripe == "white" and hero == "silver")]
        return replace(
            base,
            seed=seed,
            sun_side=side,
            sun_height=base.sun_height * rng.uniform(0.9, 1.1),
            haze=base.haze * rng.uniform(0.85, 1.2),
            clouds=min(1.0, base.clouds * rng.uniform(0.85, 1.15)),
            paints=(hero, *(rivals,) * RIVALS),
            stripe=rng.choice(stripes),
            brand=rng.choice(list(BRANDS)),
        )


def _look(name: str, height: float, side: float, sun: Rgb, zenith: Rgb, horizon: Rgb, glow: Rgb, *, haze: float,
          clouds: float, cloud_lit: Rgb, cloud_dark: Rgb, scene: str, light: str, surface: str, sound: str,
          ambient: float = 1.0, exposure: float = 1.0, grass: Rgb = (1, 1, 1), ground: Rgb = (1, 1, 1),
          saturation: float = 1.0, wet: float = 0.0, snow: float = 0.0, lamps: float = 0.0) -> WorldLook:  # fmt: skip
    return WorldLook(name, 0, height, side, sun, zenith, horizon, glow, haze, clouds, cloud_lit, cloud_dark, ambient,
                     exposure, grass, ground, saturation, wet, snow, lamps, scene, light, surface, sound)  # fmt: skip


LOOKS: dict[str, WorldLook] = {
    look.name: look
    for look in (
        _look("clear noon", 54, 70, (3.1, 2.95, 2.65), (0.10, 0.25, 0.62), (0.50, 0.70, 0.95), (0.5, 0.45, 0.35),
              haze=0.0011, clouds=0.22, cloud_lit=(1.5, 1.5, 1.5), cloud_dark=(0.62, 0.68, 0.78), exposure=0.95,
              scene="a clear day at noon", light="hard white sun from high up, short shadows and a deep blue sky",
              surface="dry light grey asphalt", sound="Larks sing somewhere off the track"),
        _look("early morning", 14, 62, (2.6, 1.95, 1.25), (0.20, 0.34, 0.60), (0.86, 0.74, 0.62), (1.0, 0.6, 0.25),
              haze=0.0026, clouds=0.30, cloud_lit=(1.6, 1.25, 0.95), cloud_dark=(0.55, 0.54, 0.60), exposure=1.05,
              grass=(0.95, 1.02, 0.95), scene="a fresh early morning",
              light="soft yellow light from a low sun, long shadows and thin mist in the hollows",
              surface="cool grey asphalt with a trace of dew", sound="The air is still"),
        _look("golden hour", 9, 48, (3.3, 1.75, 0.62), (0.20, 0.30, 0.52), (1.05, 0.66, 0.32), (1.6, 0.75, 0.2),
              haze=0.0020, clouds=0.34, cloud_lit=(2.0, 1.15, 0.55), cloud_dark=(0.55, 0.42, 0.42), exposure=1.0,
              grass=(1.15, 1.0, 0.75), ground=(1.1, 1.0, 0.85), scene="a late summer afternoon in the golden hour",
              light="warm amber light that rakes across the land, long shadows and glowing edges",
              surface="warm grey asphalt with golden glints", sound="Crickets sing in the grass"),
        _look("sunset", 3.6, 20, (2.6, 0.95, 0.26), (0.15, 0.17, 0.38), (1.25, 0.46, 0.20), (2.4, 0.75, 0.15),
              haze=0.0022, clouds=0.48, cloud_lit=(2.3, 0.80, 0.38), cloud_dark=(0.30, 0.20, 0.30), exposure=1.08,
              ambient=1.1, scene="a sunset", light="a red sun on the horizon, burning clouds and dusky purple shadows",
              surface="dark asphalt with a red sheen", sound="The evening wind rises"),
        _look("blue hour", 5, 100, (0.10, 0.13, 0.22), (0.05, 0.09, 0.24), (0.26, 0.32, 0.52), (0.35, 0.20, 0.16),
              haze=0.0026, clouds=0.35, cloud_lit=(0.34, 0.32, 0.46), cloud_dark=(0.10, 0.13, 0.24), exposure=1.75,
              ambient=1.25, lamps=0.55, saturation=1.05, scene="the blue hour after sunset",
              light="even deep blue light without shadows, headlamps and lamps glow warm",
              surface="blue grey asphalt", sound="An owl calls far away"),
        _look("overcast", 50, 60, (0.35, 0.36, 0.38), (0.50, 0.54, 0.60), (0.72, 0.76, 0.80), (0.1, 0.1, 0.1),
              haze=0.0020, clouds=1.0, cloud_lit=(0.86, 0.88, 0.92), cloud_dark=(0.46, 0.49, 0.54), exposure=1.0,
              ambient=1.35, saturation=0.85, scene="an overcast day",
              light="flat soft grey light with hardly a shadow", surface="mid grey asphalt", sound="A steady wind blows"),
        _look("broken clouds", 38, 55, (2.7, 2.5, 2.2), (0.13, 0.28, 0.60), (0.56, 0.70, 0.86), (0.5, 0.42, 0.32),
              haze=0.0014, clouds=0.60, cloud_lit=(1.55, 1.52, 1.48), cloud_dark=(0.42, 0.47, 0.55), exposure=1.0,
              scene="a breezy day with broken clouds", light="bright sun between large white clouds over a blue sky",
              surface="clean grey asphalt", sound="Gusts of wind pass"),
        _look("summer haze", 32, 50, (2.6, 2.2, 1.65), (0.36, 0.46, 0.60), (0.98, 0.92, 0.78), (0.9, 0.7, 0.42),
              haze=0.0056, clouds=0.12, cloud_lit=(1.3, 1.25, 1.1), cloud_dark=(0.75, 0.74, 0.72), exposure=0.95,
              grass=(1.25, 1.05, 0.7), ground=(1.1, 1.0, 0.85), saturation=0.92, scene="a hot hazy summer day",
              light="pale sun through white haze, far hills fade to cream", surface="bleached pale asphalt",
              sound="Cicadas buzz in the heat"),
        _look("morning fog", 16, 40, (0.75, 0.68, 0.58), (0.62, 0.66, 0.72), (0.86, 0.86, 0.85), (0.5, 0.42, 0.3),
              haze=0.0150, clouds=0.85, cloud_lit=(0.95, 0.94, 0.92), cloud_dark=(0.75, 0.77, 0.80), exposure=0.95,
              ambient=1.15, saturation=0.82, wet=0.25, scene="a foggy morning",
              light="milky light, everything beyond a hundred metres melts into pale fog",
              surface="damp grey asphalt", sound="The fog swallows every echo"),
        _look("storm light", 22, 125, (2.1, 1.75, 1.2), (0.085, 0.10, 0.14), (0.26, 0.30, 0.36), (0.2, 0.16, 0.1),
              haze=0.0022, clouds=0.92, cloud_lit=(0.46, 0.46, 0.50), cloud_dark=(0.09, 0.10, 0.13), exposure=1.2,
              ambient=1.2, wet=0.35, grass=(0.95, 1.05, 0.8), scene="the minutes before a thunderstorm",
              light="low sun from behind under a slate black sky, vivid land against dark clouds",
              surface="dark damp asphalt", sound="Thunder rolls far off"),
        _look("snow", 18, 65, (1.75, 1.6, 1.45), (0.30, 0.44, 0.66), (0.80, 0.86, 0.92), (0.5, 0.42, 0.35),
              haze=0.0028, clouds=0.45, cloud_lit=(1.25, 1.22, 1.2), cloud_dark=(0.60, 0.65, 0.72), exposure=0.85,
              grass=(0.8, 0.85, 0.8), snow=1.0, scene="a cold winter day after snowfall",
              light="low winter sun, blue shadows on white snow", surface="salted grey asphalt with snow along its edges",
              sound="The snow dampens every sound"),
        _look("wet night", 30, 60, (0.045, 0.055, 0.075), (0.010, 0.014, 0.026), (0.050, 0.050, 0.060),
              (0.01, 0.01, 0.01), haze=0.0034, clouds=0.9, cloud_lit=(0.040, 0.040, 0.048),
              cloud_dark=(0.016, 0.018, 0.026), exposure=2.6, ambient=1.3, wet=1.0, lamps=1.0, saturation=1.05,
              scene="a rainy night", light="pools of warm lamp light, headlamp beams and red tail lights in the dark",
              surface="black wet asphalt that mirrors every light", sound="Rain patters and tires hiss on water"),
    )
}  # fmt: skip
