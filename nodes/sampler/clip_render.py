"""The render of a whole clip: every segment is denoised at once, then decoded and handed on a few latents at a time.

A segment's latents are all that is kept of it, and its last frame, from which the next one starts. Random numbers come from
one stream, per segment video `[24, T, h, w]`, sound `[2, 32, A]`, reference `[24, T, h', w']`; the picture has its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from ..codec import Decoder, Encoder
from ..loader import H3Model
from ..look import Look, LookError, TextLook, check_text_width, encode_picture, with_picture_latent
from ..model import choose_form
from ..palette import SemanticClip
from .clip_attention import ClipAttention
from .clip_network import ClipLatents, ClipNetwork, ClipText, ladder
from .clip_plan import ClipChunk, ClipPlan, ClipShape, Segment
from .clip_recipes import Recipe
from .finite import RenderError, require_finite, require_finite_step
from .grids import TimeGrid
from .guidance import SINGLE, Branch
from .looks import LookSequence
from .noise import DEFAULT_SEED, Noise, picture_noise
from .render import MAX_SEED, RenderedChunk, decode_chunk, device_of, encode_frames
from .replay import continued
from .rollout import with_noise

NODE = "H3 Clip Sampler"


@dataclass(frozen=True)
class ClipSettings:
    """How to render a whole clip, apart from the inputs themselves. `attention` None is dense."""

    recipe: Recipe
    plan: ClipPlan
    seed: int = DEFAULT_SEED
    branches: tuple[Branch, ...] = SINGLE
    attention: ClipAttention | None = None

    @property
    def grid(self) -> TimeGrid:
        return self.recipe.grid

    def latent_counts(self, frames: int) -> tuple[int, int]:
        """Video latents, and sound latents per channel, of all segments together."""
        return sum(s.latents for s in self.plan.segments), sum(s.sound for s in self.plan.segments)

    def facts(self) -> dict[str, Any]:
        """Seed, noise levels, segments and attention, ready for JSON: what another implementation needs to repeat a render.

        What the attention found out while rendering stands beside it.
        """
        grid = self.grid
        segments = [{"frames": [s.shown.start, s.shown.stop], "made": s.frames} for s in self.plan.segments]
        return {
            "seed": self.seed,
            "recipe": self.recipe.name,
            "grids": {"video": list(grid.video), "audio": list(grid.audio)},
            "segments": segments,
            "attention": "dense" if self.attention is None else self.attention.facts(),
            **({} if self.attention is None else self.attention.found()),
        }


@dataclass(frozen=True)
class ClipInputs:
    """What is rendered: text alone, or a look with a semantic clip and the encoder for both."""

    look: Look | TextLook
    model: H3Model
    decoder: Decoder
    clip: SemanticClip | None = None
    encoder: Encoder | None = None

    def shape(self, frames: int) -> ClipShape:
        """Grids of one call of `frames` frames. Raises `ScheduleError` for sizes that do not fit."""
        return ClipShape.of(frames, self.look.size, self.clip.reference_size if self.clip else None)


def check_clip(inputs: ClipInputs, settings: ClipSettings) -> None:
    """Refuse what cannot be rendered, before any model runs. Raises `RenderError` naming the input and the remedy."""
    look, clip, config = inputs.look, inputs.clip, inputs.model.config
    if not 0 <= settings.seed <= MAX_SEED:
        raise RenderError(f"seed is {settings.seed}; a whole number from 0 to {MAX_SEED} is needed. Use {DEFAULT_SEED}")
    if clip is None and isinstance(look, Look):
        raise RenderError(
            f"{NODE}: the look has a picture and no semantic clip is connected; connect 'clip' for Ref2VA, or H3 Text for T2VA"
        )
    if clip is not None and not isinstance(look, Look):
        raise RenderError(
            f"{NODE}: a semantic clip is connected and the text has no picture; connect H3 Look, or disconnect 'clip' for T2VA"
        )
    if isinstance(look, LookSequence):
        raise RenderError(
            f"{NODE}: the look changes on the way, which only H3 Stream Sampler does; connect a single H3 Look"
        )
    if clip is not None and inputs.encoder is None:
        raise RenderError(f"{NODE}: Ref2VA encodes the clip and the picture; connect Load H3 Encoder to 'encoder'")
    if clip is None and settings.branches != SINGLE:
        raise RenderError(
            f"{NODE}: the guidance chain steers by the semantic clip, and none is connected; choose 'single'"
        )
    if clip is not None and clip.frames != settings.plan.frames:
        raise RenderError(
            f"the plan is for {settings.plan.frames} frames and the clip has {clip.frames}; make it from the clip"
        )
    inputs.shape(settings.plan.segments[0].frames)
    check_text_width(look.text, config.text_dim)
    if isinstance(look, Look) and look.picture is not None and look.picture.shape[0] != config.latent_channels:
        raise LookError(
            f"The picture latent has {look.picture.shape[0]} channels and the model {config.latent_channels}; "
            "encode the picture with an H3 encoder (TAE-H3)."
        )
    for name, codec in (("H3 encoder", inputs.encoder), ("H3 decoder", inputs.decoder)):
        if codec is not None and codec.latent_channels != config.latent_channels:
            raise RenderError(
                f"{name}: it works with {codec.latent_channels} latent channels and the model with "
                f"{config.latent_channels}; load the codec made for MiniMax-H3 (24 channels)"
            )


class Maps:
    """The class maps of a clip, segment after segment; the first of each is the last of the one before."""

    def __init__(self, clip: SemanticClip) -> None:
        self._frames: Iterator[Tensor] = continued(clip.reference_frames(0))
        self._last: Tensor | None = None

    def encode(self, segment: Segment, encoder: Encoder) -> tuple[Tensor, Tensor]:
        """(reference latents [24, T, h', w'] float32, the map frames [frames, 3, h', w'] uint8) of a segment."""
        stream, latents, maps = encoder.stream(), [], []
        fresh = segment.frames - (self._last is not None)
        for frame in chain([self._last] if self._last is not None else [], islice(self._frames, fresh)):
            latents.append(encode_frames(frame[None], stream))
            maps.append((frame * 255).round().byte())
            self._last = frame
        return torch.cat(latents, dim=1), torch.stack(maps)


def render_clip(
    inputs: ClipInputs, settings: ClipSettings, *, on_step: Callable[[int, int], None] = lambda chunk, step: None
) -> Generator[RenderedChunk, None, None]:
    """Render exactly as many frames as the plan has, as chunks of 17 in the form of the stream's.

    `on_step(chunk, step)` runs after every denoising step, with the index of the segment's first chunk, and may raise to
    stop. Raises `NonFiniteError` at the first stage with a value that is no number.
    """
    check_clip(inputs, settings)
    look, model, plan, device = inputs.look, inputs.model, settings.plan, device_of(inputs.model)
    require_finite(look.text, "text states", 0)
    maps, picture, hum = None, None, None
    if inputs.clip is not None and inputs.encoder is not None and isinstance(look, Look):
        maps = Maps(inputs.clip.in_video(look.size))
        picture = with_picture_latent(look, inputs.encoder).picture
        assert picture is not None  # with_picture_latent leaves a latent
        require_finite(picture, "picture latent", 0)
        hum = picture_noise(settings.seed, tuple(picture.shape))
    network = ClipNetwork(
        model.model,
        model.modulation.tables(ladder(settings.grid, clean=inputs.clip is not None)).to(device),
        ClipText(look.text.to(device), look.tags.to(device), look.media_rows),
        inputs.shape(plan.segments[0].frames),
        settings.grid,
        branches=settings.branches,
        form=choose_form(model.model, device),
        attention=settings.attention,
    )
    noise = Noise(settings.seed, device)
    for segment in plan.segments:
        start = time.perf_counter()
        chunks = [chunk for chunk in plan.chunks if chunk.segment == segment]
        reference, shown = None, torch.zeros(segment.frames, 3, 2, 2, dtype=torch.uint8)
        if maps is not None and inputs.encoder is not None:
            reference, shown = maps.encode(segment, inputs.encoder)
            require_finite(reference, "map latents", chunks[0].index)
        encode_ms = 1000 * (time.perf_counter() - start)
        given = ClipLatents(
            video=noise.draw(model.config.latent_channels, segment.latents, *network.shape.target),
            audio=noise.draw(2, model.config.audio_channels, segment.sound),
            picture=None if picture is None or hum is None else with_noise(picture, hum).to(device),
            reference=None if reference is None else with_noise(reference.to(device), noise.draw(*reference.shape)),
        )
        done, step_ms = sample(network, given, partial(on_step, chunks[0].index))
        made = Made(done.video.cpu(), done.audio.cpu(), reference, shown, encode_ms, step_ms)
        last = yield from decoded(made, chunks, len(plan.chunks), inputs.decoder, device)
        if segment is not plan.segments[-1] and inputs.encoder is not None:
            picture = encode_picture(inputs.encoder, (last.clamp(0, 1) * 255).round().byte().permute(1, 2, 0))
            require_finite(picture, "picture latent", chunks[-1].index)


@dataclass(frozen=True)
class Made:
    """A finished segment, on the CPU: its latents, what they were made over, and the time that took."""

    video: Tensor  # [24, T, h, w]
    audio: Tensor  # [2, 32, A]
    reference: Tensor | None  # [24, T, h', w']
    maps: Tensor  # [frames, 3, h', w'] uint8
    encode_ms: float
    step_ms: tuple[float, ...]


def decoded(
    made: Made, chunks: Sequence[ClipChunk], total: int, decoder: Decoder, device: torch.device
) -> Generator[RenderedChunk, None, Tensor]:
    """The chunks of a segment as they are decoded; returns its last frame [3, H, W]. Times of the segment are spread evenly."""
    pictures, segment, last = decoder.stream(), chunks[0].segment, torch.empty(0)
    at, share = segment.start, 1.0 / len(chunks)
    for chunk in chunks:
        start, own = time.perf_counter(), slice(chunk.latents.start, chunk.latents.stop)
        new = decode_chunk(pictures, made.video[:, own].to(device), last=chunk.last)
        require_finite(new, "decoded frames", chunk.index)
        shown = new[max(0, segment.shown.start - at) : max(0, segment.stop - at)]
        at, last = at + len(new), new[-1] if len(new) else last
        heard = [round(segment.sound * latents / segment.latents) for latents in (own.start, own.stop)]
        yield RenderedChunk(
            index=chunk.index,
            total=total,
            frames=shown,
            maps=made.maps[chunk.frames.start - segment.start : chunk.frames.stop - segment.start],
            video=made.video[:, own],
            audio=made.audio[:, :, heard[0] : heard[1]],
            reference=made.video[:, :0] if made.reference is None else made.reference[:, own],
            encode_ms=share * made.encode_ms,
            step_ms=tuple(share * ms for ms in made.step_ms),
            decode_ms=1000 * (time.perf_counter() - start),
            prefills=0,
        )
    return last


@torch.inference_mode()
def sample(
    network: ClipNetwork, given: ClipLatents, on_step: Callable[[int], None] = lambda step: None
) -> tuple[ClipLatents, tuple[float, ...]]:
    """From the noise in `given` to clean latents, and the milliseconds of every step."""
    grid, step_ms = network.grid, []
    for step in range(grid.steps):
        start = time.perf_counter()
        x0_video, x0_audio = network(given, step)
        require_finite_step(x0_video, x0_audio, step, grid.steps, 0)
        video, audio = grid.ddim(step, x0_video, given.video, x0_audio, given.audio)
        given = replace(given, video=video, audio=audio)
        on_step(step)
        step_ms.append(1000 * (time.perf_counter() - start))
    return given, tuple(step_ms)
