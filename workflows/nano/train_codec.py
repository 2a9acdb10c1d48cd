"""Training of the example TAE (encoder and decoder) and of the causal ViT decoder on its frozen latents."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...nodes.codec import TAE, CausalViT, decode_clip, encode_blocks, frames_before
from ...nodes.codec.space import BLOCK_FRAMES, BLOCK_LATENTS, PIXEL_MEAN, PIXEL_STD, frames_to_drop
from ...nodes.codec.tae import MemBlock, TemporalGrow
from ...nodes.codec.vit import Layout, Rope
from ...nodes.codec.vit_clip import ClipAttend
from ...nodes.codec.windows import CHUNK_LATENTS
from .train_data import Clips
from .train_recipe import Recipe, Stage, autocast, psnr

MOTION = 1.0  # weight of the error of the motion between frames
FOLD_AT = 0.8  # share of the TAE stage after which the latent statistics are folded in and the encoder stands still


def picture_loss(predicted: Tensor, true: Tensor) -> Tensor:
    """Absolute and squared error plus absolute error of gradients at three scales; both [N, 3, H, W]."""
    error = predicted.float() - true.float()
    loss = error.abs().mean() + 12.0 * error.square().mean()
    for scale in range(3):
        if scale:
            error = F.avg_pool2d(error, 2)
        across, down = error[..., :, 1:] - error[..., :, :-1], error[..., 1:, :] - error[..., :-1, :]
        loss = loss + 0.25 * (across.abs().mean() + down.abs().mean())
    return loss


def clip_loss(predicted: Tensor, true: Tensor) -> Tensor:
    """`picture_loss` of all frames plus the absolute error of the motion between them; both [B, frames, 3, H, W].

    Every latent brings news at its first frame and none at the other three; without the second part a decoder shows the
    news as a jump and moves too little in between.
    """
    motion = (predicted.float() - true.float()).diff(dim=1).abs().mean()
    return picture_loss(predicted.flatten(0, 1), true.flatten(0, 1)) + MOTION * motion


def compiled(function: Callable, device: torch.device, **options: Any) -> Callable:
    """The function compiled on a GPU, as it is elsewhere."""
    return torch.compile(function, **options) if device.type == "cuda" else function


def lean(decoder: nn.Sequential) -> nn.Sequential:
    """The same layers with every step in time before its upsampling, not after: equal, at a quarter of that work."""
    layers = list(decoder)
    for i, (one, other) in enumerate(pairwise(decoder)):
        if isinstance(one, nn.Upsample) and isinstance(other, TemporalGrow):
            layers[i], layers[i + 1] = other, one
    return nn.Sequential(*layers)


def block_starts(clips: Clips, length: int, chosen: list[int]) -> Tensor:
    """Every frame of the chosen clips after which `length` frames of the same clip follow, int64 on the device."""
    spans = [torch.arange(clips.start[i], clips.start[i] + clips.frames(i) - length + 1) for i in chosen]
    return torch.cat(spans).to(clips.device)


def pick(values: Tensor, count: int) -> Tensor:
    return values[torch.randint(len(values), (count,), device=values.device)]


def train_tae(clips: Clips, recipe: Recipe, stage_options: dict[str, Any]) -> tuple[TAE, Stage]:
    """Train, fold the latent statistics in, finish the decoder alone; returns the averaged weights."""
    device = clips.device
    torch.manual_seed(11)
    tae = TAE(recipe.tae).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    stage = Stage("tae", network=tae, lr=1.5e-3, **stage_options)
    if not stage.done:
        _train_tae(clips, recipe, tae, stage)
    result = stage.average
    assert isinstance(result, TAE)
    return result, stage


def _train_tae(clips: Clips, recipe: Recipe, tae: TAE, stage: Stage) -> None:
    device, average = clips.device, stage.average
    assert isinstance(average, TAE)
    if device.type == "cuda":
        for module in tae.modules():
            if isinstance(module, MemBlock):
                module.compile(dynamic=False)
    loss_of, decoder = compiled(clip_loss, device, dynamic=False), lean(tae.decoder)
    starts = block_starts(clips, BLOCK_FRAMES, clips.training())
    span = torch.arange(BLOCK_FRAMES, device=device)
    height, width = recipe.crop
    folded = bool(stage.facts.get("folded"))
    dice = random.Random(stage.steps)
    shown = time.time()
    while stage.running:
        if not folded and stage.fraction > FOLD_AT:
            _fold(clips, recipe, tae, stage)
            folded = True
        frames = torch.cat((
            _crop(clips.photos, pick(starts, recipe.tae_photos), span, (height, width), dice).float() / 255,
            clips.map_rgb(_crop(clips.maps, pick(starts, recipe.tae_maps), span, (height, width), dice)),
        ))  # fmt: skip
        with autocast(device):
            if folded:
                with torch.no_grad():
                    latents = encode_blocks(average.encoder, frames)
            else:
                latents = encode_blocks(tae.encoder, frames)
            # half of the clips see disturbed latents, so that the decoder forgives the transformer's small errors
            amount = (
                0.12
                * torch.rand(len(latents), 1, 1, 1, 1, device=device)
                * (torch.rand_like(latents[:, :1, :1, :1, :1]) < 0.5)
            )
            pictures = decode_clip(decoder, latents + amount * torch.randn_like(latents), clamp=False)
        loss = loss_of(pictures, frames)
        if not folded:
            photo, drawn = (
                z.float().transpose(0, 2).flatten(1)
                for z in (latents[: recipe.tae_photos], latents[recipe.tae_photos :])
            )
            loss = loss + 0.05 * _statistics_loss(photo) + 0.01 * _statistics_loss(drawn)
        stage.update(loss)
        if stage.steps % 50 == 0:
            stage.heal(loss)
            if time.time() - shown > 15:
                shown = time.time()
                stage.log(loss=float(loss.detach()))
            stage.keep()
    if not folded and stage.done:
        _fold(clips, recipe, tae, stage)
    stage.log(psnr=tae_psnr(average, clips, recipe))
    stage.save()


def _crop(frames: Tensor, starts: Tensor, span: Tensor, size: tuple[int, int], dice: random.Random) -> Tensor:
    """[B, T, ..., h, w] at one random place for the whole batch; the first latent cells stay on the 16-pixel grid."""
    top, left = (dice.randrange(full - part + 1) for full, part in zip(frames.shape[-2:], size, strict=True))
    view = frames[..., top : top + size[0], left : left + size[1]]
    return view[starts[:, None] + span]


def _statistics_loss(channels: Tensor) -> Tensor:
    """Distance of the per-channel mean and deviation of [24, N] from 0 and 1."""
    deviation = channels.std(1).clamp_min(1e-4)
    return channels.mean(1).square().mean() + deviation.log().square().mean()


@torch.no_grad()
def _fold(clips: Clips, recipe: Recipe, tae: TAE, stage: Stage) -> None:
    """Make photo latents exactly zero mean and unit deviation per channel, continue from the averaged weights."""
    average = stage.average
    assert isinstance(average, TAE)
    photos = [encode(average, clips, i, recipe)[0] for i in clips.training()[:24]]
    values = torch.cat(photos).transpose(0, 1).flatten(1).double()
    mean, deviation = values.mean(1).float(), values.std(1).float()
    last, first = average.encoder[-1], average.decoder[1]
    assert (
        isinstance(last, nn.Conv2d)
        and isinstance(first, nn.Conv2d)
        and last.bias is not None
        and first.bias is not None
    )
    last.weight.div_(deviation.view(-1, 1, 1, 1))
    last.bias.sub_(mean).div_(deviation)
    first.bias.add_(torch.einsum("oikl,i->o", first.weight, mean))
    first.weight.mul_(deviation.view(1, -1, 1, 1))
    tae.load_state_dict(average.state_dict())
    tae.encoder.requires_grad_(False)
    stage.facts["folded"] = True
    stage.log(
        folded_mean=float(mean.abs().max()), folded_low=float(deviation.min()), folded_high=float(deviation.max())
    )


@torch.no_grad()
def encode(tae: TAE, clips: Clips, clip: int, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Latents of one clip's photos and of its maps, float32 [n, 24, h, w] each, as the stream would give them."""
    first, count, wanted = clips.start[clip], clips.frames(clip), clips.latents(clip)
    photos, ids = clips.photos[first : first + count], clips.maps[first : first + count]

    def run(frames: Callable[[slice], Tensor]) -> Tensor:
        parts = []
        for start in range(0, count, BLOCK_FRAMES * 8):
            some = frames(slice(start, min(start + BLOCK_FRAMES * 8, count)))
            missing = -len(some) % BLOCK_FRAMES
            some = torch.cat((some, some[-1:].expand(missing, -1, -1, -1)))
            with autocast(clips.device):
                parts.append(encode_blocks(tae.encoder, some[None])[0].float())
        return torch.cat(parts)[:wanted]

    return run(lambda s: photos[s].float() / 255), run(lambda s: clips.map_rgb(ids[s]))


@torch.no_grad()
def decode(tae: TAE, latents: Tensor, *, clamp: bool = True) -> Tensor:
    """Latents [B, n, 24, h, w] from the start of a stream -> frames float32 [B, F, 3, H, W]."""
    with autocast(latents.device):
        return decode_clip(tae.decoder, latents, clamp=clamp).float()


def tae_psnr(tae: TAE, clips: Clips, recipe: Recipe) -> float:
    """Over the first frames of all held-out clips."""
    errors = []
    for i in (i for i in range(len(clips)) if clips.held[i]):
        latents = encode(tae, clips, i, recipe)[0][: 4 * BLOCK_LATENTS]
        frames = decode(tae, latents[None])[0]
        true = clips.photos[clips.start[i] : clips.start[i] + len(frames)].float() / 255
        errors.append((frames - true).square().mean())
    return psnr(torch.stack(errors).mean())


class PairDecoder:
    """The causal ViT over whole clips with cached layout, its blocks compiled once per kind of layer."""

    def __init__(self, network: CausalViT, grid: tuple[int, int], latents: int, device: torch.device) -> None:
        self.network, self.count = network, latents
        self.layout = Layout(network.config, grid, CHUNK_LATENTS, device)
        tables = [self.layout.rope(clock, clock) for clock in range(0, latents, CHUNK_LATENTS)]
        self.rope = [
            Rope(torch.stack([t[kind].cos for t in tables]), torch.stack([t[kind].sin for t in tables]))
            for kind in (0, 1)
        ]
        self.attend = ClipAttend(self.layout)
        mean, std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (PIXEL_MEAN, PIXEL_STD))
        self.mean, self.std = mean, std

    def __call__(self, latents: Tensor) -> Tensor:
        """[B, n, 24, h, w] -> [B, F, 3, H, W], not clamped."""
        pixels = self.network(latents.unflatten(1, (-1, CHUNK_LATENTS)), self.layout, self.rope, self.attend).flatten(
            1, 2
        )
        pixels = torch.cat([pixels[:, i, frames_to_drop(i) :] for i in range(self.count)], dim=1)
        return pixels * self.std + self.mean


def compile_blocks(network: CausalViT) -> None:
    """Compile the block once for plain and once for shifted layers instead of once per layer."""
    forward = torch.compile(
        lambda block, x, rope, kind, attend: type(block).forward(block, x, rope, kind, attend), dynamic=False
    )

    def of(block: nn.Module) -> Callable:
        return lambda x, rope, layer, attend: forward(block, x, rope, layer % 2, attend)

    for block in network.blocks:
        block.forward = of(block)


def train_vit(
    clips: Clips, latents: list[Tensor], tae: TAE, recipe: Recipe, stage_options: dict[str, Any]
) -> tuple[CausalViT, Stage]:
    """Train the ViT decoder on frozen latents (one tensor [n, 24, h, w] per clip); returns the averaged weights."""
    device = clips.device
    torch.manual_seed(12)
    network = CausalViT(recipe.vit).to(device)
    stage = Stage("vit", network=network, lr=8e-4, **stage_options)
    result = stage.average
    assert isinstance(result, CausalViT)
    if stage.done:
        return result, stage
    grid = (recipe.size[0] // 16, recipe.size[1] // 16)
    whole = PairDecoder(network, grid, recipe.vit_latents, device)
    if device.type == "cuda":
        compile_blocks(network)
    loss_of = compiled(clip_loss, device, dynamic=False)
    frames = frames_before(recipe.vit_latents)
    # a window may start at any block, where frame and latent clocks both repeat
    places = [
        (clips.start[i] + 17 * b, i, b) for i in clips.training() for b in range((clips.frames(i) - frames) // 17 + 1)
    ]
    flat = torch.cat([latents[i] for i in range(len(clips))])
    offsets = [0]
    for part in latents:
        offsets.append(offsets[-1] + len(part))
    first_frame = torch.tensor([p[0] for p in places], device=device)
    first_latent = torch.tensor([offsets[i] + BLOCK_LATENTS * b for _, i, b in places], device=device)
    frame_span, latent_span = torch.arange(frames, device=device), torch.arange(recipe.vit_latents, device=device)
    shown = time.time()
    while stage.running:
        chosen = torch.randint(len(places), (recipe.vit_clips,), device=device)
        z = flat[first_latent[chosen][:, None] + latent_span].float()
        z = z + 0.1 * torch.rand(len(z), 1, 1, 1, 1, device=device) * (
            torch.rand(len(z), 1, 1, 1, 1, device=device) < 0.4
        ) * torch.randn_like(z)
        with autocast(device):
            pictures = whole(z)
        true = clips.photos[first_frame[chosen][:, None] + frame_span].float() / 255
        loss = loss_of(pictures, true)
        stage.update(loss)
        if stage.steps % 50 == 0:
            stage.heal(loss)
            if time.time() - shown > 40:
                shown = time.time()
                stage.log(psnr=vit_psnr(result, clips, latents, recipe))
            stage.keep()
    stage.log(psnr=vit_psnr(result, clips, latents, recipe), tae_psnr=tae_psnr(tae, clips, recipe))
    stage.save()
    return result, stage


@torch.no_grad()
def vit_psnr(network: CausalViT, clips: Clips, latents: list[Tensor], recipe: Recipe) -> float:
    """Over the first frames of all held-out clips, one at a time."""
    decoder = PairDecoder(network, (recipe.size[0] // 16, recipe.size[1] // 16), recipe.vit_latents, clips.device)
    errors = []
    for i in (i for i in range(len(clips)) if clips.held[i]):
        with autocast(clips.device):
            frames = decoder(latents[i][None, : recipe.vit_latents].float())[0].float().clamp(0, 1)
        true = clips.photos[clips.start[i] : clips.start[i] + len(frames)].float() / 255
        errors.append((frames - true).square().mean())
    return psnr(torch.stack(errors).mean())
