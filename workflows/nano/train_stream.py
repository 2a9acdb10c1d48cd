"""Latents of all clips in device memory, and rollouts of many clips at once with the model as it is.

Rollouts write what they generate into `own`, a copy of the true latents; windows drawn later see it as their history, so
the model learns to stay on course from its own output.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...nodes.model import H3, patchify, unpatchify
from ...nodes.sampler.grids import TimeGrid
from ...nodes.schedule import RELEASE
from .train_data import Clips
from .train_recipe import Recipe, autocast
from .train_windows import (
    MOVING,
    PERIOD,
    SINK,
    Layouts,
    Look,
    clean,
    modulation,
    noised,
    run_bootstrap,
    run_moving,
    run_prefix,
)

TWO_STEPS = TimeGrid.trailing(2)
BOOTSTRAP = len(RELEASE.window_at(0).latents)


@dataclass
class Latents:
    """True and own latents of every clip, clip after clip, and the true map latents; float32 [n, 24, h, w]."""

    true: Tensor
    maps: Tensor
    start: list[int]
    own: Tensor = field(init=False)
    rolled: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.own = self.true.clone()
        self.rolled = [False] * len(self.start)

    @classmethod
    def gather(cls, encoded: list[tuple[Tensor, Tensor]]) -> Latents:
        counts = [len(photos) for photos, _ in encoded]
        start = [sum(counts[:i]) for i in range(len(counts))]
        return cls(torch.cat([p for p, _ in encoded]), torch.cat([m for _, m in encoded]), start)


def take(store: Tensor, first: Tensor, count: int) -> Tensor:
    """[B, 24, count, h, w]: `count` latents from each of the places `first` [B]."""
    return store[first[:, None] + torch.arange(count, device=store.device)].transpose(1, 2)


def recent_start(chunk: int) -> int:
    return RELEASE.window_at(chunk).recent_start


def new_count(chunk: int) -> int:
    return len(RELEASE.window_at(chunk).latents)


@dataclass
class Streams:
    """The clips as the model meets them: text, picture, latents, layouts."""

    clips: Clips
    latents: Latents
    recipe: Recipe
    layouts: Layouts

    @classmethod
    def of(cls, clips: Clips, latents: Latents, recipe: Recipe, model: H3) -> Streams:
        longest = max(clips.tags, key=len)
        return cls(clips, latents, recipe, Layouts(model, recipe.geometry, longest, clips.media_rows))

    def places(self, chosen: list[int]) -> Tensor:
        return torch.tensor([self.latents.start[i] for i in chosen], device=self.clips.device)

    def look(self, model: H3, chosen: list[int], dice: random.Random, *, caption: bool = True) -> Look:
        """Refined text of one length (captions lose their last rows, which tell of sound) and the noised pictures."""
        rows = self.clips.media_rows
        if caption:
            step = self.recipe.text_step
            rows = min(len(self.clips.text[i]) for i in chosen) // step * step - step * dice.choice((0, 0, 0, 1))
        text = torch.stack([self.clips.text[i][:rows] for i in chosen])
        picture = take(self.latents.true, self.places(chosen), 1)
        return Look(model.refine_text(text), noised(picture))

    @torch.no_grad()
    def roll(self, model: H3, chosen: list[int], chunks: int, *, keep: bool = True) -> Tensor:
        """Two-step rollouts of the chosen clips through `chunks` continuations: latents [B, 24, n, h, w].

        As at inference: frozen sink, one prefix per step, fresh noise per chunk. Silence stands for the sound.
        """
        device = self.clips.device
        places = self.places(chosen)
        with autocast(device):
            look = self.look(model, chosen, random.Random(0))
            rows = look.text.shape[1]
            steps = [modulation(model, v, a) for v, a in zip(TWO_STEPS.video, TWO_STEPS.audio, strict=True)]
            maps = noised(take(self.latents.maps, places, BOOTSTRAP))
            layout = self.layouts.get(rows, 0)
            height, width = self.latents.true.shape[-2:]
            x = torch.randn(len(chosen), 24, BOOTSTRAP, height, width, device=device)
            silence = x.new_zeros(len(x), 2, model.config.audio_channels, layout.new_audio)
            audio = torch.randn_like(silence)
            for step, at in enumerate(steps):
                v, _ = run_bootstrap(model, layout, look, maps, x, audio, at)
                x0 = unpatchify(clean(patchify(x), v.float(), TWO_STEPS.video[step]), BOOTSTRAP, height, width)
                x, audio = TWO_STEPS.ddim(step, x0, x, silence, audio)
            made = [x]
            sink = noised(x[:, :, :SINK])
            sink_maps = noised(take(self.latents.maps, places, SINK))
            layout = self.layouts.get(rows, 1)
            banks = [run_prefix(model, layout, look, sink_maps, sink, at) for at in steps]
            recent = x[:, :, recent_start(1) :]
            for chunk in range(1, chunks + 1):
                layout, new = self.layouts.get(rows, chunk), new_count(chunk)
                old = MOVING - new
                maps = noised(take(self.latents.maps, places + recent_start(chunk), MOVING))
                history = noised(recent[:, :, -old:])
                x = torch.randn(len(chosen), 24, new, height, width, device=device)
                window = RELEASE.window_at((chunk - 1) % PERIOD + 1)
                heard = len(window.audio_window) - window.audio_sink
                sound = torch.randn(len(x), 2, model.config.audio_channels, layout.new_audio, device=device)
                quiet = sound.new_zeros(len(x), 2, model.config.audio_channels, heard - layout.new_audio)
                for step, at in enumerate(steps):
                    video = torch.cat((history, x), 2)
                    v, _ = run_moving(model, [layout], banks[step], maps, video, torch.cat((quiet, sound), 3), at)
                    x0 = unpatchify(clean(patchify(x), v.float(), TWO_STEPS.video[step]), new, height, width)
                    x, sound = TWO_STEPS.ddim(step, x0, x, torch.zeros_like(sound), sound)
                made.append(x)
                recent = torch.cat((recent, x), 2)[:, :, -MOVING:]
            whole = torch.cat(made, 2).float()
        if keep:
            spots = places[:, None] + torch.arange(whole.shape[2], device=device)
            finite = whole.transpose(1, 2).clamp(-6, 6).nan_to_num_(0.0)
            self.latents.own[spots] = finite
            for i in chosen:
                self.latents.rolled[i] = True
        return whole
