"""Tileable noise textures with mip levels, made in the Fourier domain, and their lookup.

Mip levels are kept at full resolution (low-passed, not decimated), so one gather with a level index filters correctly and
a texture never flickers when it recedes.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

SIDE = 256
LEVELS = 8
GRAIN, FBM, LEAF, CLOUD = range(4)


def _field(kind: int, generator: torch.Generator) -> Tensor:
    """Spectrum of one texture, complex [SIDE, SIDE // 2 + 1]."""
    fy = torch.fft.fftfreq(SIDE)[:, None] * SIDE
    fx = torch.fft.rfftfreq(SIDE)[None, :] * SIDE
    radius = torch.sqrt(fx * fx + fy * fy).clamp_min(1e-3)
    amplitude = {
        GRAIN: (radius / 40).clamp(0, 1) ** 1.2,
        FBM: radius**-1.25,
        LEAF: torch.exp(-(((radius - 22) / 16) ** 2)) + 0.35 * (radius / 60).clamp(0, 1),
        CLOUD: (radius**2 + 4.0) ** -0.92,
    }[kind]
    amplitude[0, 0] = 0
    white = torch.fft.rfft2(torch.randn(SIDE, SIDE, generator=generator))
    return white * amplitude


@functools.lru_cache(maxsize=4)
def noise_bank(device: str) -> Tensor:
    """All textures and levels, float32 [kinds * LEVELS * SIDE * SIDE], zero mean and unit variance at level 0."""
    generator = torch.Generator().manual_seed(20260830)
    fy = torch.fft.fftfreq(SIDE)[:, None] * SIDE
    fx = torch.fft.rfftfreq(SIDE)[None, :] * SIDE
    radius2 = fx * fx + fy * fy
    out = []
    for kind in (GRAIN, FBM, LEAF, CLOUD):
        spectrum = _field(kind, generator)
        scale = torch.fft.irfft2(spectrum, s=(SIDE, SIDE)).std()
        for level in range(LEVELS):
            sigma = 0.0 if level == 0 else 0.5 * 2**level / SIDE
            blur = torch.exp(-2 * (math.pi * sigma) ** 2 * radius2)
            out.append(torch.fft.irfft2(spectrum * blur, s=(SIDE, SIDE)) / scale)
    return torch.stack(out).reshape(-1).contiguous().to(device)


def noise(bank: Tensor, kind: int, u: Tensor, v: Tensor, footprint: Tensor | None = None) -> Tensor:
    """Texture `kind` at (u, v) in tiles; `footprint` is the pixel size in tiles (None: the sharpest level). Bilinear."""
    base: Tensor | int
    if footprint is None:
        base = kind * LEVELS * SIDE * SIDE
    else:
        level = torch.log2((footprint * SIDE).clamp_min(1.0)).round().clamp(0, LEVELS - 1).to(torch.int64)
        base = (level + kind * LEVELS) * (SIDE * SIDE)
    x, y = (u - torch.floor(u)) * SIDE, (v - torch.floor(v)) * SIDE
    x0, y0 = torch.floor(x), torch.floor(y)
    fx, fy = x - x0, y - y0
    ix, iy = x0.to(torch.int64) % SIDE, y0.to(torch.int64) % SIDE
    jx, jy = (ix + 1) % SIDE, (iy + 1) % SIDE
    row0, row1 = base + iy * SIDE, base + jy * SIDE
    top = torch.lerp(bank[row0 + ix], bank[row0 + jx], fx)
    bottom = torch.lerp(bank[row1 + ix], bank[row1 + jx], fx)
    return torch.lerp(top, bottom, fy)
