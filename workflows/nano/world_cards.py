"""Silhouettes and rounded normals of trees, bushes and rocks on their camera-facing cards."""

from __future__ import annotations

import torch
from torch import Tensor

from .world_scene import BUSH, CONIFER, ROCK_CARD
from .world_texture import LEAF, noise, noise_bank
from .world_track import smoothstep

BLOBS = {
    0: (
        (0.0, 0.64, 0.30),
        (-0.19, 0.50, 0.21),
        (0.20, 0.52, 0.20),
        (-0.10, 0.79, 0.19),
        (0.11, 0.80, 0.18),
        (0.0, 0.42, 0.2),
    ),
    2: (
        (0.0, 0.45, 0.50),
        (-0.45, 0.30, 0.36),
        (0.46, 0.26, 0.34),
        (-0.2, 0.62, 0.30),
        (0.22, 0.6, 0.32),
        (0.0, 0.2, 0.4),
    ),
}  # (across, up, radius) in card heights


def card_shape(kind: Tensor, identity: Tensor, across: Tensor, up: Tensor, pixel: Tensor) -> tuple[Tensor, Tensor]:
    """Whether points of cards are solid, and their rounded normals [f, 3] in view axes. `pixel` is a sample in card heights."""
    bank = noise_bank(str(kind.device))
    ragged = noise(bank, LEAF, across * 0.28 + identity * 7.3, up * 0.28 + identity * 3.1, pixel * 0.45)
    best = torch.full_like(across, -1.0)
    nx, ny = torch.zeros_like(across), torch.zeros_like(across)
    bush = kind == BUSH
    for number in range(6):
        wobble = torch.frac(identity * (17.3 + 11.7 * number)) - 0.5
        (ax, ay, ar), (bx, by, br) = BLOBS[0][number], BLOBS[2][number]
        radius = torch.where(bush, br, ar) * (1 + 0.28 * wobble)
        dx = (across - torch.where(bush, bx, ax) - 0.07 * wobble) / radius
        dy = (up - torch.where(bush, by, ay) + 0.05 * wobble) / radius
        height = 1 + 0.16 * ragged - dx * dx - dy * dy
        bulge = height * radius
        nearer = bulge > best
        best = torch.where(nearer, bulge, best)
        nx, ny = torch.where(nearer, dx, nx), torch.where(nearer, dy, ny)
    trunk = (kind == 0) & (across.abs() < 0.026 + 0.02 * (0.5 - up)) & (up < 0.5)
    solid = (best > 0) | trunk
    tiers = 5.0 + torch.floor(identity * 3)
    fall = 1 - up
    tooth = torch.frac(fall * tiers)
    half = 0.245 * fall * (0.66 + 0.34 * tooth) + 0.012 * ragged * fall
    cone = (across.abs() < half) & (up > 0.07) | (across.abs() < 0.018) & (up < 0.1)
    conifer = kind == CONIFER
    rock = kind == ROCK_CARD
    edge = torch.full_like(across, 1.0)
    rx, ry = torch.zeros_like(across), torch.zeros_like(across)
    for number in range(7):
        angle = -0.25 + 3.64 * number / 6 + 0.35 * (torch.frac(identity * (13.1 + 5.9 * number)) - 0.5)
        cos, sin = torch.cos(angle), torch.sin(angle)
        room = (
            0.62 + 0.24 * torch.frac(identity * (29.7 + 3.3 * number)) - (across * cos * 0.92 + (up - 0.18) * sin * 1.1)
        )
        tighter = room < edge
        edge = torch.where(tighter, room, edge)
        rx, ry = torch.where(tighter, cos, rx), torch.where(tighter, sin, ry)
    solid = torch.where(rock, edge > 0, torch.where(conifer, cone, solid))
    facet = smoothstep(0.42, 0.16, edge)
    side = torch.where(conifer, across / half.clamp_min(1e-3), nx).clamp(-1, 1)
    lift = torch.where(conifer, 0.30 - 0.5 * (tooth - 0.5), ny).clamp(-1, 1)
    side, lift = torch.where(rock, rx * facet, side), torch.where(rock, 0.25 + ry * facet, lift)
    toward = torch.sqrt((1 - side * side - lift * lift).clamp_min(0.04))
    normal = torch.stack((side, lift, toward), -1)
    return solid, normal / normal.norm(dim=-1, keepdim=True)
