"""A finished latent sequence decoded piece by piece: what is alive at any moment does not depend on its length."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from .errors import CodecError
from .protocol import Decoder
from .space import frames_before

PIECE = 2  # latents per push, the pair of the ViT


def frames_wanted(latents: int, frames: int) -> int:
    """Frames to show of `latents` latents: all for 0. Raises `CodecError` when they do not hold so many."""
    there = frames_before(latents)
    if not 0 <= frames <= there:
        raise CodecError(
            f"{frames} frames are asked for and the latent holds {there} ({latents} latents); "
            f"choose 1 to {there}, or 0 for all."
        )
    return frames or there


def decode_pieces(decoder: Decoder, latents: Tensor, frames: int) -> Generator[tuple[int, Tensor], None, None]:
    """Latents [24, T, h, w] on any device -> (latents done, frames [m, 3, H, W] on the CPU), `frames` frames in all.

    Latents behind the pair of the last frame asked for are not decoded. The caller may stop at any moment.
    """
    needed = next(count for count in range(latents.shape[1] + 1) if frames_before(count) >= frames)
    needed = min(latents.shape[1], needed + needed % PIECE)  # the partner changes the frames of its pair
    stream, left = decoder.stream(), frames
    for start in range(0, needed, PIECE):
        stop = min(start + PIECE, needed)
        with torch.inference_mode():
            shown = [stream.push(latents[:, start:stop].float())]
            if stop == needed:
                shown.append(stream.flush())
            made = torch.cat([part.float().cpu() for part in shown])[:left]
        left -= len(made)
        yield stop, made
