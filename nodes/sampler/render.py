"""The render: a semantic clip goes in frame by frame, decoded chunks come out; nothing grows with the clip's length."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..codec import Decoder, DecoderStream, Encoder, EncoderStream
from ..loader import H3Model
from ..look import Look, check_look, with_picture_latent
from ..model import choose_form
from ..palette import SemanticClip
from ..schedule import Geometry, Schedule, audio_of_latent
from .bank import FORMS, SANDWICH, SPLIT, PrefixBank
from .finite import RenderError, require_finite
from .grids import TimeGrid
from .guidance import SINGLE, Branch
from .looks import LookSequence, look_plan
from .network import DENSE, PREFIX, Conditions, Network
from .noise import DEFAULT_SEED
from .replay import decoder_at, encoder_at
from .rollout import Rollout
from .state import RolloutState
from .window_sparse import KEEP_PERCENT, SparseWindow, sparse_facts

MAX_SEED = 2**64 - 1  # torch's generator takes 64 bits


@dataclass(frozen=True)
class Settings:
    """How to render, apart from the inputs themselves."""

    schedule: Schedule
    grid: TimeGrid
    seed: int = DEFAULT_SEED
    attention: str = PREFIX
    branches: tuple[Branch, ...] = SINGLE
    bank: str = SPLIT  # form of the prefix bank: sandwich, split, or fp8 (half the memory, no longer exact)
    window_keep: float | None = None  # an experiment: percent of the tiles that a sparse window keeps; None is dense

    def latent_counts(self, frames: int) -> tuple[int, int]:
        """Video latents, and sound latents per channel, that a clip of `frames` frames takes."""
        latents = self.schedule.window_at(self.schedule.chunks_for(frames) - 1).latents.stop
        return latents, audio_of_latent(latents)

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
            "prefix_bank": self.bank,
            **({} if self.window_keep is None else {"window_attention": sparse_facts(self.window_keep)}),
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
    state: RolloutState | None = (
        None  # what the next chunk depends on: store it to go on from here, where that is possible
    )


@dataclass(frozen=True)
class Resume:
    """Where an earlier, equal render stands after its last complete chunk."""

    state: RolloutState
    latents: Tensor  # [24, n, h, w] float32, every latent so far; may be memory-mapped
    frames: int  # published so far


def check_settings(settings: Settings) -> None:
    """Refuse settings that no input can make right. Raises `RenderError`."""
    if not 0 <= settings.seed <= MAX_SEED:
        raise RenderError(
            f"seed is {settings.seed}; a whole number from 0 to {MAX_SEED} is needed. Use for example {DEFAULT_SEED}"
        )
    if settings.attention not in (PREFIX, DENSE):
        raise RenderError(f"attention is {settings.attention!r}; choose {PREFIX!r} or {DENSE!r}")
    if settings.bank not in FORMS:
        raise RenderError(f"form of the prefix bank is {settings.bank!r}; choose one of {', '.join(FORMS)}")
    if settings.window_keep is not None and settings.attention != PREFIX:
        raise RenderError(
            f"the sparse window goes with the prefix bank, and attention is {settings.attention!r}; choose {PREFIX!r}"
        )
    if settings.window_keep is not None and not 0 < settings.window_keep <= 100:
        raise RenderError(
            f"the sparse window is to keep {settings.window_keep:g} % of its tiles; set more than 0 and at most 100, "
            f"for example {KEEP_PERCENT:g}"
        )
    banks = settings.grid.steps * len(settings.branches)
    if settings.attention == PREFIX and settings.bank == SANDWICH and banks != 2:
        raise RenderError(
            f"the prefix bank is to be a sandwich, which holds two banks, and this render has {banks}; use split"
        )
    refusal = settings.schedule.prefix_bank_refusal
    if settings.attention == PREFIX and refusal is not None:
        raise RenderError(refusal)


def check_inputs(
    clip: SemanticClip, look: Look, model: H3Model, settings: Settings, encoder: Encoder, decoder: Decoder
) -> None:
    """Refuse what cannot be rendered, before any model runs. Raises `RenderError` naming the input and the remedy."""
    check_settings(settings)
    if not isinstance(look, Look):
        raise RenderError(
            "H3 Stream Sampler: the look has no picture, which a stream needs; connect H3 Look, not H3 Text"
        )
    geometry_of(clip, look)
    config = model.config
    for one in look.looks if isinstance(look, LookSequence) else (look,):
        check_look(one, text_dim=config.text_dim, size=look.size, channels=config.latent_channels)
    look_plan(look, settings.schedule, clip.frames)
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
    require_finite(look.text, "text states", 0)
    require_finite(picture, "picture latent", 0)
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
    resume: Resume | None = None,
) -> Generator[RenderedChunk, None, None]:
    """Render `clip` in the look given, chunk by chunk, exactly as many frames as the clip has.

    Chunks are always full: the clip is continued by its last frame and the result trimmed. `on_step(chunk, step)` runs
    after every denoising step and may raise to stop. The held-back frames of the decoder come with the last chunk.
    `resume` goes on after the chunks of an earlier render of the same inputs; the rest is then equal to what that one
    would have made, on the CPU bit for bit. Raises `NonFiniteError` at the first stage with a value that is no number.
    """
    check_inputs(clip, look, model, settings, encoder, decoder)
    clip = clip.in_video(look.size)
    plan = look_plan(look, settings.schedule, clip.frames)
    total = settings.schedule.chunks_for(clip.frames)
    first = resume.state.index if resume else 0
    if first == total:
        return
    device = device_of(model)
    tables = model.modulation.tables(settings.grid.h3_times()).to(device)
    form = choose_form(model.model, device)
    sparse = None
    if settings.window_keep is not None:
        sparse = SparseWindow.choose(settings.window_keep, model.model, device)

    def network_for(conditions: Conditions) -> Network:
        return Network(
            model.model,
            tables,
            conditions,
            settings.grid,
            attention=settings.attention,
            branches=settings.branches,
            bank=PrefixBank(settings.bank),
            sparse=sparse,
            form=form,
        )

    current = plan[max(chunk for chunk in plan if chunk <= first)]
    if conditions is None or current is not look:
        conditions = conditions_for(clip, current, model, encoder)
    network, prefills = network_for(conditions), 0
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
    if resume:
        rollout.restore(RolloutState.from_tensors(resume.state.tensors(), device))
    latents_in, maps = encoder_at(encoder, clip, rollout.next_window.frames.start)
    pictures_out = decoder_at(decoder, resume.latents) if resume else decoder.stream()
    shown = resume.frames if resume else 0
    try:
        for index in range(first, total):
            if index in plan and index > first:
                prefills += network.bank.prefills
                conditions = conditions_for(clip, plan[index], model, encoder)
                network = network_for(conditions)
                rollout.change_look(network, conditions.picture)
            window = rollout.next_window
            start = time.perf_counter()
            read = torch.stack(list(islice(maps, len(window.frames))))
            reference = encode_frames(read, latents_in).to(device)
            require_finite(reference, "map latents", index)
            encoded = time.perf_counter()
            chunk = rollout.step(reference)
            denoised = time.perf_counter()
            frames = decode_chunk(pictures_out, chunk.video, last=index == total - 1)[: clip.frames - shown]
            require_finite(frames, "decoded frames", index)
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
                prefills=prefills + network.bank.prefills,
                state=rollout.state(),
            )
    finally:
        network.bank = PrefixBank()  # gigabytes, which an error would hold with its traceback


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
