"""A drawn driving scene with every class of the racing palette, and real encoders through PyAV."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, ImageDraw
from streamrender_h3.nodes.palette import RACING

NAMES = RACING.names


def draw_scene(t: int, width: int = 1344, height: int = 768) -> np.ndarray:
    """Class ids uint8 [height, width] of frame t: thin kerbs and rails (3 and 5 px), small cars, all 14 classes."""
    ids = {name: index for index, name in enumerate(NAMES)}
    image = Image.new("L", (width, height), ids["sky"])
    draw = ImageDraw.Draw(image)
    u = height / 768
    horizon, middle = int(height * 0.45), width / 2 + 40 * u * math.sin(t / 9)
    ridge = [(0, 0), (0.2, -60), (0.45, -10), (0.7, -90), (1, -20), (1, 5), (0, 5)]
    draw.polygon([(width * x, horizon + u * y) for x, y in ridge], fill=ids["terrain"])
    draw.rectangle([0, horizon, width, height], fill=ids["grass"])
    left, right = (middle - 12 * u, horizon), (middle + 12 * u, horizon)
    draw.polygon([left, right, (width * 0.95, height), (width * 0.05, height)], fill=ids["road"])
    draw.line([left, (width * 0.05, height)], fill=ids["road_edge"], width=5)
    draw.line([right, (width * 0.95, height)], fill=ids["road_edge"], width=3)
    draw.line([(middle - 60 * u, horizon + 4), (0, height * 0.75)], fill=ids["barrier"], width=3)
    draw.line([(middle + 60 * u, horizon + 4), (width, height * 0.75)], fill=ids["barrier"], width=5)
    rng = np.random.default_rng(3)
    for i in range(14):
        z = ((i * 37 + t * 1.7) % 100) / 100
        x = middle + (1 if i % 2 else -1) * (70 * u + z * z * width * 0.5)
        y, r = horizon + z * z * height * 0.4, u * (4 + z * 45)
        draw.rectangle(
            [x - u - z * 5 * u, y - r, x + u + z * 5 * u, y + r * 0.3], fill=ids["rock" if i % 5 == 0 else "building"]
        )
        wobble = 0.7 + 0.3 * rng.random((17, 2))
        crown = [
            (x + r * math.cos(a) * w[0], y - r * 1.3 + r * math.sin(a) * w[1])
            for a, w in zip(np.linspace(0, 2 * math.pi, 18)[:-1], wobble, strict=True)
        ]
        draw.polygon(crown, fill=ids["vegetation"])
    for i in range(5):
        x = (i * 290 * u + t * 3) % width
        draw.rectangle([x, horizon - u * (70 + 8 * i), x + 60 * u, horizon], fill=ids["building"])
    x = (width * 0.15 - t * 4) % width
    draw.rectangle([x, horizon - 50 * u, x + 170 * u, horizon + 10 * u], fill=ids["stands"])
    draw.rectangle([middle - 70 * u, horizon - 60 * u, middle + 70 * u, horizon - 48 * u], fill=ids["billboard"])
    for side in (-1, 1):
        post = middle + side * 70 * u
        draw.line([(post, horizon - 60 * u), (post, horizon + 20 * u)], fill=ids["building"], width=3)
    for i in range(6):
        z = ((i * 23 + t * 2.3) % 100) / 100
        x, y, s = middle + math.sin(i * 2.1) * z * 250 * u, horizon + 8 * u + z * height * 0.4, u * (4 + z * 26)
        draw.rectangle([x - s, y - s * 0.6, x + s, y + s * 0.3], fill=ids["opponent_car"])
    draw.polygon(
        [(width * 0.25, height * 0.6), (width * 0.29, height * 0.53), (width * 0.33, height * 0.6)], fill=ids["rock"]
    )
    car = width / 2 + 20 * u * math.sin(t / 5)
    draw.rectangle([car - 75 * u, height * 0.78, car + 75 * u, height * 0.9], fill=ids["hero_car"])
    draw.rectangle([car - 50 * u, height * 0.72, car + 50 * u, height * 0.78], fill=ids["hero_car"])
    draw.rectangle([width * 0.6, height * 0.62, width * 0.605 + 3, height * 0.66], fill=ids["unlabeled"])
    return np.array(image)


def encode(
    path: Path,
    frames: Sequence[np.ndarray],
    codec: str = "libx264rgb",
    pix_fmt: str = "rgb24",
    *,
    rate: Fraction | int = 24,
    stamps: Sequence[int] | None = None,
    tick: Fraction = Fraction(1, 1000),
    colour: tuple[int, int] | None = None,
    tag: int | None = None,
    source_format: str = "rgb24",
    options: dict[str, str] | None = None,
) -> Path:
    """Write frames with a real encoder. `colour` = (swscale matrix, 1 limited or 2 full), converted and tagged so.

    `tag` is another matrix to claim in the file.
    """
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pix_fmt
        stream.options = options or ({"crf": "0", "preset": "ultrafast"} if codec.startswith("libx264") else {})
        if stamps is not None:
            stream.codec_context.time_base = tick
        if colour is not None:
            claimed = tag or {5: 6}.get(colour[0], colour[0])  # swscale numbers BT.601 as 5, files as 6
            stream.codec_context.colorspace, stream.codec_context.color_range = claimed, colour[1]
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format=source_format)
            if colour is not None:
                frame = frame.reformat(
                    format=pix_fmt, dst_colorspace=colour[0], src_color_range=2, dst_color_range=colour[1]
                )
                frame.colorspace, frame.color_range = claimed, colour[1]
            if stamps is not None:
                frame.pts, frame.time_base = stamps[index], tick
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.fixture(scope="session")
def scene() -> Callable[..., np.ndarray]:
    return draw_scene


@pytest.fixture(scope="session")
def write_video() -> Callable[..., Path]:
    return encode


@pytest.fixture(scope="session")
def small() -> tuple[np.ndarray, np.ndarray]:
    """Eight small frames: ids uint8 [8, 192, 320] and their colours uint8 [8, 192, 320, 3]."""
    ids = np.stack([draw_scene(t, 320, 192) for t in range(8)])
    return ids, RACING.colours[ids]
