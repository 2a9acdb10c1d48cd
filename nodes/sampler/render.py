"""The render: a semantic clip goes in frame by frame, decoded chunks come out; nothing grows with the clip's length."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..codec import Decoder, DecoderStream, Encoder, EncoderStream
from ..loader import H3Model
from ..look import Look, check_look, with_picture_latent
from ..palette import SemanticClip
from ..schedule import Geometry, Schedule
from .grids import TimeGrid
from .guidance import SINGLE, Branch
from .network import DENSE, PREFIX, Conditions, Network
from .noise import DEFAULT_SEED
from .rollout import Rollout

MAX_SEED = 2**64 - 1  # torch's generator takes 64 bits


class RenderError(ValueError):
    """Inputs that do not fit together, or a render that went wrong; the message says what to change."""


@dataclass(frozen=True)
class Settings:
    """How to render, apart from the inputs themselves."""

    schedule: Schedule
    grid: TimeGrid
    seed: int = DEFAULT_SEED
    attention: str = PREFIX
    branches: tuple[Branch, ...] = SINGLE

    def facts(self) -> dict[str, Any]:
        """Seed, noise levels, schedule and attention, ready for JSON: what another implementation needs to repeat a render."""
        schedule = self.schedule
        return {
            "seed": self.seed,
            "grids": {"video": list(self.grid.video), "audio": list(self.grid.audio)},
            "schedule": {
                "sink": schedule.sink,
                "window": schedule.window,
                "chunk": schedule.chunk,
                "bootstrap": schedule.bootstrap_units,
            },
            "attention": self.attention,
        }


@dataclass(frozen=True)
class RenderedChunk:
    """One finished chunk. `frames` is what the decoder published, already trimmed to the clip; it can be empty."""

    index: int
    total: int
    frames: Tensor  # [m, 3, H, W] float32 in [0, 1], CPU
    maps: Tensor  # [new frames, 3, h', w'] uint8, CPU: the map frames this chunk read, exact palette colours
    video: Tensor  # [24, new, h, w] float32, CPU
    audio: Tensor  # [2, 32, new] float32, CPU
    reference: Tensor  # [24, new, h', w'] float32, CPU: the map latents before any noise
    encode_ms: float
    step_ms: tuple[float, ...]
    decode_ms: float
    prefills: int  # prefix forwards so far, over all chunks


def check_settings(settings: Settings) -> None:
    """Refuse settings that no input can make right. Raises `RenderError`."""
    if not 0 <= settings.seed <= MAX_SEED:
        raise RenderError(
            f"seed is {settings.seed}; a whole number from 0 to {MAX_SEED} is needed. Use for example {DEFAULT_SEED}"
        )
    if settings.attention not in (PREFIX, DENSE):
        raise RenderError(f"attention is {settings.attention!r}; choose {PREFIX!r} or {DENSE!r}")
    refusal = settings.schedule.prefix_bank_refusal
    if settings.attention == PREFIX and refusal is not None:
        raise RenderError(refusal)


def check_inputs(
    clip: SemanticClip, look: Look, model: H3Model, settings: Settings, encoder: Encoder, decoder: Decoder
) -> None:
    """Refuse what cannot be rendered, before any model runs. Raises `RenderError` naming the input and the remedy."""
    check_settings(settings)
    geometry_of(clip, look)
    config = model.config
    check_look(look, text_dim=config.text_dim, size=look.size, channels=config.latent_channels)
    for name, codec in (("H3 encoder", encoder), ("H3 decoder", decoder)):
        if codec.latent_channels != config.latent_channels:
            raise RenderError(
                f"{name}: it works with {codec.latent_channels} latent channels and the model with "
                f"{config.latent_channels}; load the codec made for MiniMax-H3 (24 channels)"
            )


def device_of(model: H3Model) -> torch.device:
    """Where the model is now; the host may have moved it since it was loaded."""
    return model.model.rope.inv_freq.device


def geometry_of(clip: SemanticClip, look: Look) -> Geometry:
    """Latent grids of the render: the video's is the picture's, the map's comes from the clip."""
    return Geometry.from_sizes(target=look.size, reference=clip.reference_size, picture=look.size)


def conditions_for(clip: SemanticClip, look: Look, model: H3Model, encoder: Encoder) -> Conditions:
    """What stays the same for the whole render, on the model's device; the picture is encoded now if it was not before."""
    picture = with_picture_latent(look, encoder).picture
    assert picture is not None  # with_picture_latent leaves a latent
    device = device_of(model)
    return Conditions(
        text=look.text.to(device),
        tags=look.tags.to(device),
        media_rows=look.media_rows,
        picture=picture.to(device),
        geometry=geometry_of(clip, look),
    )


def render(
    clip: SemanticClip,
    look: Look,
    model: H3Model,
    encoder: Encoder,
    decoder: Decoder,
    settings: Settings,
    *,
    conditions: Conditions | None = None,
    on_step: Callable[[int, int], None] = lambda chunk, step: None,
) -> Generator[RenderedChunk, None, None]:
    """Render `clip` in the look given, chunk by chunk, exactly as many frames as the clip has.

    Chunks are always full: the clip is continued by its last frame and the result trimmed. `on_step(chunk, step)` runs
    after every denoising step and may raise to stop. The held-back frames of the decoder come with the last chunk.
    """
    check_inputs(clip, look, model, settings, encoder, decoder)
    conditions = conditions or conditions_for(clip, look, model, encoder)
    device = device_of(model)
    network = Network(
        model.model,
        model.modulation.tables(settings.grid.h3_times()).to(device),
        conditions,
        settings.grid,
        attention=settings.attention,
        branches=settings.branches,
    )
    rollout = Rollout(
        settings.schedule,
        settings.grid,
        network,
        conditions.picture,
        audio_channels=model.config.audio_channels,
        seed=settings.seed,
        freeze_sink=settings.attention == PREFIX,
        on_step=on_step,
    )
    maps, latents_in, pictures_out = continued(clip.reference_frames()), encoder.stream(), decoder.stream()
    total = settings.schedule.chunks_for(clip.frames)
    shown = 0
    for index in range(total):
        window = rollout.next_window
        start = time.perf_counter()
        read = torch.stack(list(islice(maps, len(window.frames))))
        reference = encode_frames(read, latents_in).to(device)
        encoded = time.perf_counter()
        chunk = rollout.step(reference)
        require_finite(chunk.video, index)
        denoised = time.perf_counter()
        frames = decode_chunk(pictures_out, chunk.video, last=index == total - 1)[: clip.frames - shown]
        shown += len(frames)
        yield RenderedChunk(
            index=index,
            total=total,
            frames=frames,
            maps=(read * 255).round().byte(),
            video=chunk.video.cpu(),
            audio=chunk.audio.cpu(),
            reference=reference.cpu(),
            encode_ms=1000 * (encoded - start),
            step_ms=chunk.step_ms,
            decode_ms=1000 * (time.perf_counter() - denoised),
            prefills=network.bank.prefills,
        )


def continued(frames: Iterator[Tensor]) -> Iterator[Tensor]:
    """The clip's frames, then its last one for ever."""
    last = None
    for last in frames:
        yield last
    if last is None:
        raise RenderError("semantic clip: it has no frames; connect a clip with at least one")
    while True:
        yield last


@torch.inference_mode()
def encode_frames(frames: Tensor, stream: EncoderStream) -> Tensor:
    """Encode map frames [n, 3, h', w'] one by one: [24, new, h', w'] float32."""
    return torch.cat([stream.push(frame[None]) for frame in frames], dim=1).float()


@torch.inference_mode()
def decode_chunk(stream: DecoderStream, latents: Tensor, *, last: bool) -> Tensor:
    """Push new latents and, at the end, flush: [m, 3, H, W] float32 on the CPU."""
    frames = [stream.push(latents)]
    if last:
        frames.append(stream.flush())
    return torch.cat([part.float().cpu() for part in frames])


def require_finite(latents: Tensor, chunk: int) -> None:
    if not torch.isfinite(latents).all():
        raise RenderError(
            f"chunk {chunk}: the model returned NaN or infinite latents; the chunks before it are kept. "
            "Render with dtype bf16 or fp32, and check that the checkpoint's form is the one named in the log"
        )
