"""A whole clip by other people's code: diffusers' transformer, its layouts and its scheduler; only the noise order is ours."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3Ref2VAPrepareLayoutStep,
    patchify_video_latents,
)
from diffusers.schedulers import MiniMaxH3Scheduler
from recompute_network import Network
from recompute_rows import unpatched
from torch import Tensor

PATCH, AUDIO, VIDEO = (1, 2, 2), 2, 0
SHIFTS = {"FastH3 V2 (8 steps)": (10.0, 3.0), "FastH3 Trim (8 steps)": (10.0, 3.0)}
POSITIONS = {
    "FastH3 V1 (4 steps)": [0.999, 0.749, 0.5, 0.25],
    "FastH3 V2 (8 steps)": [0.999, 0.874, 0.749, 0.624, 0.5, 0.375, 0.25, 0.125],
    "FastH3 Trim (8 steps)": [0.999, 0.874, 0.749, 0.624, 0.5, 0.375, 0.25, 0.125],
    "turbo LoRA (4 steps)": [1, 3 / 4, 2 / 4, 1 / 4],
    "turbo LoRA (6 steps)": [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6],
    "turbo LoRA (8 steps)": [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8],
}
POINTS = {"base (25 steps)": 25, "base (50 steps)": 50}


def schedulers(recipe: str) -> tuple[MiniMaxH3Scheduler, MiniMaxH3Scheduler]:
    """diffusers' schedulers of picture and sound."""
    made = []
    for shift in SHIFTS.get(recipe, (12.0, 3.0)):
        one = MiniMaxH3Scheduler(shift=shift)
        if recipe in POINTS:
            one.set_timesteps(POINTS[recipe])
        else:
            one.set_timesteps(sigmas=[*(shift * u / (1 + (shift - 1) * u) for u in POSITIONS[recipe]), 0.0])
        made.append(one)
    return made[0], made[1]


def layout(tags: Tensor, video: Tensor, sound: int, picture: Tensor | None, reference: Tensor | None):
    """diffusers' packed sequence: positions, tags, and places of video, audio and text rows."""
    common = (video.shape[1], *video.shape[2:], sound, PATCH, 2, AUDIO, VIDEO)
    if picture is None:
        return MiniMaxH3PrepareLayoutStep.build_packed_sequence(tags, *common)
    kinds = [("image", picture), *([("video", reference)] if reference is not None else [])]
    references = [SimpleNamespace(modality=kind, kind=kind, type=kind, has_audio=False) for kind, _ in kinds]
    return MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence(
        tags, references, [latent[None] for _, latent in kinds], [], *common
    )


def velocities(
    network: Network, text: Tensor, tags: Tensor, video: Tensor, audio: Tensor, times, picture=None, reference=None
) -> tuple[Tensor, Tensor]:
    """Velocities [24, T, h, w] and [2, 32, A] at (video time, audio time)."""
    positions, token_tags, video_at, audio_at, text_at, held, _ = layout(
        tags, video, audio.shape[2], picture, reference
    )
    visual = [one for one in (picture, reference, video) if one is not None]
    rows = torch.cat([patchify_video_latents(one[None], PATCH) for one in visual])
    heard = audio.transpose(1, 2).reshape(-1, audio.shape[1])
    of_row = torch.empty(len(positions))
    of_row[text_at], of_row[audio_at], of_row[video_at] = times[0], times[1], times[0]
    of_row[video_at[:held]] = 0.999
    v, a = network((rows, heard, text), (video_at, audio_at, text_at), of_row, token_tags, positions, None)
    return unpatched(v[held:], *video.shape[1:]), a.reshape(2, -1, audio.shape[1]).transpose(1, 2)


def sample(
    network: Network,
    recipe: str,
    text: Tensor,
    tags: Tensor,
    video: Tensor,
    audio: Tensor,
    branches=((1.0, "text+map"),),
    media_rows: int = 0,
    picture: Tensor | None = None,
    reference: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Clean latents from noise. `branches` are (weight, name): "null", "text" or "text+map"."""
    of_video, of_audio = schedulers(recipe)
    for t_video, t_audio in zip(of_video.timesteps, of_audio.timesteps, strict=True):
        v = a = 0
        for weight, name in branches:
            rows = media_rows if name == "null" else len(text)
            seen = reference if name == "text+map" else None
            dv, da = velocities(network, text[:rows], tags[:rows], video, audio, (t_video, t_audio), picture, seen)
            v, a = v + weight * dv, a + weight * da
        video = of_video.step(v, t_video, video, return_dict=False)[0]
        audio = of_audio.step(a, t_audio, audio, return_dict=False)[0]
    return video, audio
