"""A LATENT of the host as the video latents of a decoder: our own audio-video pairs, native ones, and plain video latents.

All are normalised already: H3's latent format scales nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .errors import CodecError
from .space import LATENT_CHANNELS


def video_latents(latent: Mapping[str, Any]) -> Tensor:
    """{"samples": pair or [1, 24, T, h, w]} -> [24, T, h, w], a view; the sound of a pair is left alone.

    Raises `CodecError` for anything else, naming the shape.
    """
    samples = latent.get("samples") if isinstance(latent, Mapping) else None
    if getattr(samples, "is_nested", False):
        streams = list(samples.unbind())  # type: ignore[union-attr]
        if not streams:
            raise CodecError("An empty audio-video latent arrived; one with a video stream is needed.")
        samples = streams[0]
    if not isinstance(samples, Tensor):
        raise CodecError(f"{type(samples).__name__} arrived as samples of the latent; connect a LATENT of MiniMax-H3.")
    shape = list(samples.shape)
    if samples.ndim != 5 or shape[0] != 1 or shape[1] != LATENT_CHANNELS:
        raise CodecError(
            f"A latent of shape {shape} arrived; one video [1, {LATENT_CHANNELS}, latents, height / 16, width / 16] is "
            "needed. Connect a latent of MiniMax-H3, one at a time."
        )
    if not samples.is_floating_point():
        raise CodecError(f"A latent of type {samples.dtype} arrived; floating point numbers are needed.")
    if not all(shape[2:]):
        raise CodecError(f"A latent of shape {shape} arrived; it holds nothing to decode. Use a longer or larger one.")
    return samples[0]
