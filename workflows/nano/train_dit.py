"""Training of the example transformer: windows with true history first, then more and more with the model's own.

Every prediction is x0 through the model's velocity. Noise levels come from the 16-step grid and, mostly, from the two-step
grid of inference; later the second step starts from the model's own first step, history from its own rollouts, and the
error is also measured in decoded pictures.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...nodes.codec import TAE
from ...nodes.codec.tae import run, unfold
from ...nodes.model import H3, patchify, unpatchify
from ...nodes.sampler.grids import TimeGrid
from ...nodes.sampler.guidance import fitting_weights
from ...nodes.schedule import RELEASE
from .train_codec import compiled, decode, lean, picture_loss
from .train_data import Clips
from .train_recipe import Recipe, Stage, autocast, psnr
from .train_stream import BOOTSTRAP, TWO_STEPS, Latents, Streams, new_count, recent_start, take
from .train_windows import (
    CLASSES,
    MOVING,
    PERIOD,
    SINK,
    clean,
    modulation,
    noised,
    prepare_blocks,
    run_bootstrap,
    run_moving,
    run_prefix,
)

MANY_STEPS = TimeGrid.trailing(16)
AUDIO_WEIGHT = 0.02  # the example has no sound: its audio latents are zeros
BRANCHES = {"null": (False, False), "text": (True, False), "text+map": (True, True)}  # caption, map


@dataclass(frozen=True)
class Shares:
    """When what begins, as a share of the budget, and how often it happens."""

    bootstrap: float = 0.22  # of the steps are chunk 0
    rollouts_from: float = 0.18
    rollout_time: float = 0.28
    own_path_from: float = 0.3
    pictures_from: float = 0.3
    picture_weight: float = 0.6
    dropped: float = 0.06  # steps without the map, half of them without caption too
    guidance: float = 0.15  # steps that fit the guided prediction instead of the plain one, while the next two hold
    guidance_from: float = 0.15
    guidance_until: float = 0.45
    motion_weight: float = 0.5
    border_weight: float = 0.5  # once more, for the first motion of a chunk
    many_steps: float = 0.3  # steps at the levels of the 16-step grid instead of those of inference


# For weights that already went through all of the above.
FURTHER = Shares(
    rollouts_from=0.02, rollout_time=0.15, own_path_from=0.02, pictures_from=0.02, guidance=0.0, many_steps=0.1
)


def start_weights(model: H3) -> None:
    """AdaLN that starts as plain pre-norm with damped branches, heads that start at zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "adaln_proj.linear" in name:
                parameter.normal_(0, 0.02) if name.endswith("weight") else parameter.zero_()
            if name.startswith(("final_layer.video_out", "final_layer.audio_out")):
                parameter.zero_()
        for block in model.blocks:
            slots = block.get_parameter("adaln_proj.linear.bias").view(3, 6, -1)
            slots[:, 2] = slots[:, 5] = (2 * len(model.blocks)) ** -0.5


class Trainer:
    """One stage's data, networks and dice."""

    def __init__(self, clips: Clips, latents: Latents, tae: TAE, recipe: Recipe, shares: Shares, stage: Stage) -> None:
        self.clips, self.latents, self.tae, self.recipe, self.shares, self.stage = (
            clips,
            latents,
            tae,
            recipe,
            shares,
            stage,
        )
        model, average = stage.network, stage.average
        assert isinstance(model, H3) and isinstance(average, H3)
        self.model, self.average = model, average
        self.streams = Streams.of(clips, latents, recipe, model)
        self.dice = random.Random(stage.steps)
        self.training = clips.training()
        self.weights = [clips.chunks[i] ** 0.5 for i in self.training]
        self.picture_loss, self.decoder = compiled(picture_loss, clips.device, dynamic=False), lean(tae.decoder)

    def step(self) -> Tensor:
        """The loss of one batch: chunk 0 of some clips, or several continuations of each."""
        fraction, shares, dice = self.stage.fraction, self.shares, self.dice
        chosen = dice.choices(self.training, self.weights, k=self.recipe.clips)
        grid = MANY_STEPS if dice.random() < shares.many_steps else TWO_STEPS
        step = dice.randrange(grid.steps)
        branches: tuple[tuple[str, float], ...] = (("text+map", 1.0),)
        if dice.random() < shares.dropped:
            branches = ((dice.choice(("null", "text")), 1.0),)
        elif shares.guidance_from <= fraction < shares.guidance_until and dice.random() < shares.guidance:
            branches = tuple(zip(BRANCHES, fitting_weights(), strict=True))
        window = self._bootstrap if dice.random() < shares.bootstrap else self._continuations
        own_path = grid is TWO_STEPS and step == 1 and fraction >= shares.own_path_from
        return window(chosen, grid, step, branches, own_path)

    def _levels(self, grid: TimeGrid, step: int) -> tuple[float, float]:
        return grid.video[step], grid.audio[step]

    def _bootstrap(self, chosen: list[int], grid: TimeGrid, step: int, branches: Any, own_path: bool) -> Tensor:
        places = self.streams.places(chosen)
        true = take(self.latents.true, places, BOOTSTRAP)
        maps = noised(take(self.latents.maps, places, BOOTSTRAP))

        def predict(x: Tensor, sound: Tensor, levels: tuple[float, float], branch: str) -> tuple[Tensor, Tensor]:
            caption, reference = BRANCHES[branch]
            look = self.streams.look(self.model, chosen, self.dice, caption=caption)
            layout = self.streams.layouts.get(look.text.shape[1], 0, reference)
            return run_bootstrap(self.model, layout, look, maps, x, sound, modulation(self.model, *levels), reference)

        return self._loss(
            predict,
            true,
            true[:, :, :0],
            true[:, :, :0],
            len(RELEASE.window_at(0).audio_new),
            grid,
            step,
            branches,
            own_path,
        )

    def _continuations(self, chosen: list[int], grid: TimeGrid, step: int, branches: Any, own_path: bool) -> Tensor:
        dice, many, device = self.dice, self.recipe.windows, self.clips.device
        kind = dice.choices(CLASSES, [len(k) for k in CLASSES])[0]
        chunks = [
            dice.choice([k for k in range(1, self.clips.chunks[i] + 1) if (k - 1) % PERIOD + 1 in kind])
            for i in chosen
            for _ in range(many)
        ]
        new = new_count(kind[0])
        places = self.streams.places(chosen)
        moved = places.repeat_interleave(many) + torch.tensor([recent_start(k) for k in chunks], device=device)
        true = take(self.latents.true, moved, MOVING)
        maps = noised(take(self.latents.maps, moved, MOVING))
        history, sink = self._history(chosen, places, moved, MOVING - new)
        sink, sink_maps = noised(sink), noised(take(self.latents.maps, places, SINK))
        window = RELEASE.window_at(kind[0])
        heard = len(window.audio_window) - window.audio_sink

        def predict(x: Tensor, sound: Tensor, levels: tuple[float, float], branch: str) -> tuple[Tensor, Tensor]:
            caption, reference = BRANCHES[branch]
            look = self.streams.look(self.model, chosen, dice, caption=caption)
            rows = look.text.shape[1]
            at = modulation(self.model, *levels)
            layouts = [self.streams.layouts.get(rows, k, reference) for k in chunks]
            bank = run_prefix(self.model, layouts[0], look, sink_maps, sink, at, reference)
            quiet = sound.new_zeros(*sound.shape[:3], heard - sound.shape[3])
            video = torch.cat((noised(history), x), 2)
            return run_moving(self.model, layouts, bank, maps, video, torch.cat((quiet, sound), 3), at, reference)

        before, goal, sounds = true[:, :, :-new], true[:, :, -new:], len(window.audio_new)
        return self._loss(predict, goal, history, before, sounds, grid, step, branches, own_path)

    def _history(self, chosen: list[int], places: Tensor, moved: Tensor, old: int) -> tuple[Tensor, Tensor]:
        """Recent latents [BM, 24, old, h, w] and sinks [B, 24, 3, h, w]: own ones, or true ones made a little worse."""
        many, device, fraction = self.recipe.windows, self.clips.device, self.stage.fraction
        share = 0.5 + 0.4 * min(1.0, max(0.0, (fraction - self.shares.rollouts_from) / 0.4))
        own = [self.latents.rolled[i] and self.dice.random() < share for i in chosen]
        flags = torch.tensor(own, device=device)

        def mixed(first: Tensor, count: int, flags: Tensor) -> Tensor:
            true, rolled = take(self.latents.true, first, count), take(self.latents.own, first, count)
            shape = (len(first), 1, 1, 1, 1)
            amount = 0.3 * torch.rand(shape, device=device) * (torch.rand(shape, device=device) < 0.7)
            worse = (1 - amount) * true + amount * torch.randn_like(true)
            return torch.where(flags.view(shape), rolled, worse)

        return mixed(moved, old, flags.repeat_interleave(many)), mixed(places, SINK, flags)

    def _loss(self, predict: Callable, true: Tensor, history: Tensor, true_history: Tensor, new_audio: int,
              grid: TimeGrid, step: int, branches: Any, own_path: bool) -> Tensor:  # fmt: skip
        """Error of the predicted x0 in latents, of the (zero) sound, and of some decoded pictures."""
        count, (height, width) = true.shape[2], true.shape[-2:]
        noise = torch.randn_like(true)
        loud = torch.randn(len(true), 2, self.model.config.audio_channels, new_audio, device=true.device)
        sigma, sound_sigma = self._levels(grid, step)
        x = (1 - sigma) * true + sigma * noise
        sound = sound_sigma * loud
        with autocast(true.device):
            if own_path:
                with torch.no_grad():
                    velocity, _ = predict(noise, loud, self._levels(grid, 0), "text+map")
                    first = unpatchify(clean(patchify(noise), velocity.float(), grid.video[0]), count, height, width)
                    x, sound = grid.ddim(0, first, noise, torch.zeros_like(loud), loud)
            rows, goal = patchify(x), patchify(true)
            answers = [(weight, predict(x, sound, (sigma, sound_sigma), name)) for name, weight in branches]
            velocity = torch.stack([weight * v.float() for weight, (v, _) in answers]).sum(0)
            heard = torch.stack([weight * a.float() for weight, (_, a) in answers]).sum(0)
        x0 = clean(rows, velocity, sigma)
        error = x0 - goal
        loss = 0.6 * error.square().mean() + 0.4 * error.abs().mean()
        quiet = clean(sound.permute(0, 1, 3, 2).flatten(1, 2), heard, sound_sigma)
        loss = loss + AUDIO_WEIGHT * quiet.square().mean()
        if self.stage.fraction >= self.shares.pictures_from and history.shape[2]:
            some = self.recipe.pictures
            drawn = unpatchify(x0[:some], count, height, width)
            goal = torch.cat((true_history, true), 2)[:some]
            mine = torch.cat((history[:some], drawn), 2)
            loss = loss + self.shares.picture_weight * self._decoded(mine, goal, count)
        return loss

    def _decoded(self, drawn: Tensor, true: Tensor, new: int) -> Tensor:
        """Error of the pictures of the last `new` latents, and of their motion from the frame before on.

        Both [n, 24, history + new, h, w]. The history of `drawn` may be the model's own, that of `true` never is: so a jump
        from a history gone astray back to the truth costs as much as a wrong motion.
        """
        frames = []
        for latents in (drawn, true):
            with autocast(true.device), torch.set_grad_enabled(latents is drawn):
                folded, _ = run(self.decoder, latents.permute(2, 0, 1, 3, 4).flatten(0, 1), {}, len(latents))
            assert folded is not None  # a decoder never waits
            frames.append(unfold(folded).unflatten(0, (-1, len(latents)))[-4 * new - 1 :])
        mine, goal = frames
        motion = (mine.float().diff(dim=0) - goal.float().diff(dim=0)).abs()
        moved = self.shares.motion_weight * motion.mean() + self.shares.border_weight * motion[0].mean()
        return self.picture_loss(mine[1:].flatten(0, 1), goal[1:].flatten(0, 1)) + moved

    def refresh(self, turn: int) -> None:
        """Roll some clips of one length with the averaged model; what comes out is history from now on."""
        recipe = self.recipe
        length, most = ((recipe.short, 1), (recipe.medium, 2), (recipe.short, 1), (recipe.long, 4))[turn % 4]
        same = [i for i in self.training if self.clips.chunks[i] == length]
        if same:
            self.streams.roll(
                self.average, self.dice.sample(same, min(len(same), max(2, recipe.rollouts // most))), length
            )

    @torch.no_grad()
    def measure(self, *, long: bool) -> dict[str, float]:
        """PSNR of held-out rollouts against the true frames: the first five seconds, and the last five of long clips."""
        figures: dict[str, float] = {}
        groups = [("psnr_0_5", self.recipe.short, slice(0, 120))]
        if long:
            groups.append(("psnr_25_30", self.recipe.long, slice(-120, None)))
        for name, chunks, span in groups:
            chosen = [i for i in range(len(self.clips)) if self.clips.held[i] and self.clips.chunks[i] >= chunks]
            if not chosen:
                continue
            rolled = self.streams.roll(self.average, chosen, chunks, keep=False)
            errors = []
            for row, clip in enumerate(chosen):
                frames = decode(self.tae, rolled[row].transpose(0, 1)[None])[0][span]
                first, count = self.clips.start[clip], RELEASE.frames_through(chunks)
                true = self.clips.photos[first : first + count][span].float() / 255
                errors.append((frames - true).square().mean())
            figures[name] = psnr(torch.stack(errors).mean())
            start = self.streams.places(chosen)
            figures[f"{name}_latent"] = float(
                (rolled - take(self.latents.true, start, rolled.shape[2])).square().mean()
            )
        return figures


def train_dit(
    clips: Clips, latents: Latents, tae: TAE, recipe: Recipe, shares: Shares, stage_options: dict[str, Any]
) -> tuple[H3, Stage]:
    """Train the transformer; returns the averaged weights."""
    device = clips.device
    torch.manual_seed(13)
    model = H3(recipe.h3, dtype=torch.float32).to(device)
    start_weights(model)
    stage = Stage("dit", network=model, lr=9e-4, decay=0.998, **stage_options)
    average = stage.average
    assert isinstance(average, H3)
    if stage.done:
        return average, stage
    prepare_blocks((model, average), compile=device.type == "cuda")
    trainer = Trainer(clips, latents, tae, recipe, shares, stage)
    torch.manual_seed(1000 + stage.steps)
    shown = rolled = time.time()
    cost, turn, measured = 0.0, 0, 0
    while stage.running:
        loss = trainer.step()
        stage.update(loss)
        if stage.steps % 25 == 0:
            stage.heal(loss)
            now = time.time()
            if (
                stage.fraction >= shares.rollouts_from
                and now - rolled > cost * (1 - shares.rollout_time) / shares.rollout_time
            ):
                trainer.refresh(turn)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                turn, cost, rolled = turn + 1, time.time() - now, time.time()
            if time.time() - shown > recipe.eval_every:
                measured += 1
                stage.log(loss=float(loss.detach()), rollouts=turn, **trainer.measure(long=measured % 4 == 0))
                shown = time.time()
            stage.keep()
    stage.log(rollouts=turn, **trainer.measure(long=True))
    stage.save()
    return average, stage
