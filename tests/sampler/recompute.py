"""A second implementation of the chunked stream, for tests: from a saved render and a checkpoint to all its chunks.

Nothing here comes from the engine. The network is diffusers' MiniMaxH3Transformer3DModel, the prefix bank is an
attention mask over the whole window, and the whole past is kept instead of the part a schedule needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from recompute_network import Network
from recompute_rows import RULES, Plan, Rules, first_frame, first_latent, pack, patches, plan_chunk, unpatched
from safetensors import safe_open
from torch import Tensor

VIDEO_SHIFT, AUDIO_SHIFT = 6.0, 1.5


@dataclass(frozen=True)
class Saved:
    """One --save-latents file: what the network was given, what came out, and the settings."""

    video: Tensor
    audio: Tensor
    text: Tensor
    tags: Tensor
    picture: Tensor
    reference: Tensor
    facts: dict[str, Any] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Saved:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return cls(**tensors, facts={name: json.loads(text) for name, text in file.metadata().items()})

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Latent (height, width)."""
        return {name: getattr(self, name).shape[2:] for name in ("picture", "reference", "video")}

    @property
    def steps(self) -> int:
        return len(self.facts["grids"]["video"])


def time_grid(steps: int, shift: float, rules: Rules = RULES) -> Tensor:
    """Noise levels of all steps and the final 0, float32: trailing base grid, shifted, computed in double precision."""
    base = [1 - i / steps for i in range(steps)] + [0.0]
    levels = torch.tensor([shift * u / (1 + (shift - 1) * u) for u in base], dtype=torch.float64)
    return (levels.round() if rules.integer_grid else levels).float()


def plans(facts: dict[str, Any], rules: Rules = RULES) -> Iterator[Plan]:
    """Full chunks until the clip is covered."""
    index, covered = 0, 0
    while covered < facts["frames"]:
        plan = plan_chunk(index, facts["schedule"], rules)
        yield plan
        index, covered = index + 1, first_frame(plan.stop)


def picture_seed(seed: int, rules: Rules) -> int:
    name = f"{seed}_streaming_picture_noise_{rules.picture_noise_of}"
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2**63


def conditioned(clean: Tensor, noise: Tensor) -> Tensor:
    return 0.999 * clean + 0.001 * noise


@torch.inference_mode()
def recompute(saved: Saved, network: Network, rules: Rules = RULES) -> Iterator[tuple[Tensor, Tensor]]:
    """(video [24, n, h, w], audio [2, 32, a]) of every chunk, from the saved inputs alone."""
    seed, (height, width) = saved.facts["seed"], saved.video.shape[2:]
    stream = torch.Generator().manual_seed(seed)
    still = torch.Generator().manual_seed(picture_seed(seed, rules))
    elsewhere = torch.Generator().manual_seed(seed + 1)
    picture = patches(conditioned(saved.picture, torch.randn(saved.picture.shape, generator=still)))
    video_levels, audio_levels = (time_grid(saved.steps, shift, rules) for shift in (VIDEO_SHIFT, AUDIO_SHIFT))
    past_video, past_audio = saved.video[:, :0], saved.audio[:, :, :0]
    with_prefix = saved.facts["attention"] == "prefix"
    frozen: tuple[Tensor, Tensor] | None = None

    for index, plan in enumerate(plans(saved.facts, rules)):
        packing = pack(plan, saved.sizes, saved.tags, rules)
        covered = len(plan.latents) - (0 if rules.history_noise_covers_new else plan.new)
        shapes = {
            "video": (24, plan.new, height, width),
            "audio": (2, 32, plan.new_audio),
            "history": (24, covered, height, width),
            "reference": (24, len(plan.latents), *saved.reference.shape[2:]),
        }
        noise = {name: torch.randn(shapes[name], generator=stream) for name in rules.draws}
        x_video, x_audio = noise["video"], noise["audio"]

        held = len(plan.latents) - plan.new
        history = conditioned(past_video[:, plan.latents[:held]], noise["history"][:, :held])
        reference = conditioned(saved.reference[:, plan.latents], noise["reference"])
        sounds = past_audio[:, :, plan.audio[: len(plan.audio) - plan.new_audio]]
        if rules.renoise_audio_history:
            sounds = conditioned(sounds, torch.randn(sounds.shape, generator=elsewhere))
        if with_prefix and index and rules.freeze_sink_at is not None:
            if frozen is None:
                frozen = history[:, : plan.sink], reference[:, : plan.sink]
            history = torch.cat([frozen[0], history[:, plan.sink :]], dim=1)
            reference = torch.cat([frozen[1], reference[:, plan.sink :]], dim=1)

        mask = None
        if with_prefix and index and rules.mask_prefix:
            mask = ~packing.prefix[:, None] | packing.prefix[None, :]
        before = torch.cat([picture, patches(reference)])
        for step in range(saved.steps):
            now_video, now_audio = video_levels[step], audio_levels[step]
            times = torch.stack([1 - now_video, 1 - now_audio, torch.tensor(rules.clean_time)])
            visual = torch.cat([before, patches(torch.cat([history, x_video], dim=1))])
            heard = torch.cat([sounds, x_audio], dim=2).transpose(1, 2).reshape(-1, 32)
            rows = visual, heard, saved.text
            v_video, v_audio = network(
                rows, packing.places, times[packing.time_of], packing.tags, packing.positions, mask
            )
            v_video = unpatched(v_video[len(before) :], len(plan.latents), height, width)[:, held:]
            v_audio = v_audio.reshape(2, -1, 32).transpose(1, 2)[:, :, -plan.new_audio :]
            x_video = ddim(x_video, x_video + (1 - times[0]) * v_video, now_video, video_levels[step + 1])
            x_audio = ddim(x_audio, x_audio + (1 - times[1]) * v_audio, now_audio, audio_levels[step + 1])

        if index == 0 == rules.freeze_sink_at:
            sink = first_latent(saved.facts["schedule"]["sink"])
            frozen = conditioned(x_video, noise["history"])[:, :sink], reference[:, :sink]
        past_video = torch.cat([past_video, x_video], dim=1)
        past_audio = torch.cat([past_audio, x_audio], dim=2)
        yield x_video, x_audio


def ddim(x: Tensor, x0: Tensor, now: Tensor, then: Tensor) -> Tensor:
    """One deterministic step along x = (1 - s) x0 + s eps, with the eps that x and x0 imply."""
    eps = (x - (1 - now) * x0) / now
    return (1 - then) * x0 + then * eps
