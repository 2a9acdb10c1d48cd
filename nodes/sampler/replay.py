"""Codec streams in the middle of a clip: their memory is rebuilt by feeding them the little that still reaches into the present.

That is exact, bit for bit, because both codecs have a finite memory: the encoder forgets everything at each block of 17
frames, a decoder's layers each look back a fixed number of latents. Nothing of a decoder needs to be stored, which for the
causal ViT would be gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..codec import Decoder, DecoderStream, Encoder, EncoderStream
from ..palette import SemanticClip
from ..schedule.clock import FRAMES_PER_CYCLE
from .finite import RenderError

PHASE = 30  # latents: after so many, block, pair and ring of every decoder stand as at the start


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
def encoder_at(encoder: Encoder, clip: SemanticClip, frame: int) -> tuple[EncoderStream, Iterator[Tensor]]:
    """A stream that has taken the clip's frames before `frame`, and the frames from there on, continued for ever."""
    start = frame - frame % FRAMES_PER_CYCLE
    stream, frames = encoder.stream(), continued(clip.reference_frames(start))
    for _ in range(start, frame):
        stream.push(next(frames)[None])
    return stream, frames


def replay_start(decoder: Decoder, latents: int) -> int:
    """First latent to feed a fresh stream so that after `latents` of them its memory is that of the whole stream."""
    return max(0, latents - decoder.reach) // PHASE * PHASE


@torch.inference_mode()
def decoder_at(decoder: Decoder, latents: Tensor) -> DecoderStream:
    """A stream that has taken `latents` [24, n, h, w], all of the clip so far (they may be memory-mapped)."""
    done = latents.shape[1]
    start = replay_start(decoder, done)
    stream = decoder.stream(start)
    for index in range(start, done):  # one by one, so that a long reach needs no more memory than a chunk
        stream.push(latents[:, index : index + 1])
    return stream
