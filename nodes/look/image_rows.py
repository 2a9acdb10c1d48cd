"""Qwen3-VL image preprocessing by hand: a picture to patch rows in the order of the vision tower.

Written out because the library's two processors disagree about the size limits, and the fast one needs torchvision
(specification: conditioning 2.4 and 5.1). A picture whose sides are multiples of 32 within the bounds is not resampled.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from einops import rearrange, repeat
from torch import Tensor

LARGEST_ASPECT = 200


@dataclass(frozen=True)
class ImageRules:
    """How pictures are cut for the vision tower; the defaults are those of the MiniMax-H3 text encoder.

    ``smallest`` and ``largest`` bound the area in pixels.
    """

    patch: int = 16
    temporal: int = 2
    merge: int = 2
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    smallest: int = 65_536
    largest: int = 16_777_216

    @property
    def factor(self) -> int:
        """Pixels along one side of a merged token."""
        return self.patch * self.merge


H3_RULES = ImageRules()


@dataclass(frozen=True)
class ImageRows:
    """``rows`` float32 [grid_h * grid_w, 3 * temporal * patch * patch] and the patch grid (time, height, width)."""

    rows: Tensor
    grid: tuple[int, int, int]
    tokens: int
    """Merged tokens the language model sees: grid area / merge squared."""


def read_rules(path: str | Path) -> ImageRules:
    """Image rules of a ``preprocessor_config.json``; absent keys keep their defaults."""
    settings = json.loads(Path(path).read_text(encoding="utf-8"))
    default = H3_RULES
    size = settings.get("size") or {}
    return ImageRules(
        patch=settings.get("patch_size", default.patch),
        temporal=settings.get("temporal_patch_size", default.temporal),
        merge=settings.get("merge_size", default.merge),
        mean=tuple(settings.get("image_mean", default.mean)),
        std=tuple(settings.get("image_std", default.std)),
        smallest=size.get("shortest_edge", settings.get("min_pixels", default.smallest)),
        largest=size.get("longest_edge", settings.get("max_pixels", default.largest)),
    )


def fitted_size(height: int, width: int, rules: ImageRules = H3_RULES) -> tuple[int, int]:
    """(height, width) the vision tower will see: multiples of the factor with the area inside the bounds.

    Sides are rounded half to even. Raises ValueError for an aspect ratio of 200 or more.
    """
    if max(height, width) >= LARGEST_ASPECT * min(height, width):
        raise ValueError(
            f"The picture is {width}x{height}; an aspect ratio below {LARGEST_ASPECT} is needed. Crop the picture."
        )
    factor = rules.factor
    rounded = round(height / factor) * factor, round(width / factor) * factor
    area = rounded[0] * rounded[1]
    if area > rules.largest:
        beta = math.sqrt(height * width / rules.largest)
        return (
            max(factor, math.floor(height / beta / factor) * factor),
            max(factor, math.floor(width / beta / factor) * factor),
        )
    if area < rules.smallest:
        beta = math.sqrt(rules.smallest / (height * width))
        return math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
    return rounded


def image_rows(picture: np.ndarray, rules: ImageRules = H3_RULES) -> ImageRows:
    """Cut ``picture`` uint8 [H, W, 3] into normalised patch rows.

    Rows go merged block by merged block; features are ordered channel, time, y, x. The one frame is repeated to fill
    the temporal patch. A 1344x768 picture gives rows [4032, 1536], grid (1, 48, 84), 1008 tokens.
    """
    from PIL import Image

    height, width = fitted_size(picture.shape[0], picture.shape[1], rules)
    if picture.shape[:2] != (height, width):
        picture = np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC))
    pixels = torch.from_numpy(np.ascontiguousarray(picture).astype(np.float32)) / 255.0
    pixels = (pixels - torch.tensor(rules.mean)) / torch.tensor(rules.std)  # [H, W, 3]
    patches = rearrange(
        pixels,
        "(gh mh ph) (gw mw pw) c -> (gh gw mh mw) c ph pw",
        mh=rules.merge,
        mw=rules.merge,
        ph=rules.patch,
        pw=rules.patch,
    )
    rows = repeat(patches, "n c ph pw -> n (c t ph pw)", t=rules.temporal)
    grid = (1, height // rules.patch, width // rules.patch)
    return ImageRows(rows, grid, grid[1] * grid[2] // rules.merge**2)
