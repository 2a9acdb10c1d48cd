"""Latents to packed rows and back: 1x2x2 patches of video, one row per stereo channel and time of audio."""

from __future__ import annotations

from einops import rearrange
from torch import Tensor


def patchify(latent: Tensor) -> Tensor:
    """[..., 24, n, h, w] -> [..., n * h/2 * w/2, 96].

    Rows run over time, then height, then width; the features of a row over channel, then patch row, then patch column.
    """
    h, w = latent.shape[-2:]
    if h % 2 or w % 2:
        raise ValueError(
            f"a latent {h}x{w} arrived; patches are 2x2, so both sides must be even. Use multiples of 32 pixels."
        )
    return rearrange(latent, "... c n (h p) (w q) -> ... (n h w) (c p q)", p=2, q=2)


def unpatchify(rows: Tensor, n: int, h: int, w: int) -> Tensor:
    """Inverse of `patchify` for n frames of an h x w latent grid."""
    if rows.shape[-2] != n * (h // 2) * (w // 2):
        raise ValueError(
            f"{rows.shape[-2]} rows arrived; {n} latent frames of {h}x{w} are {n * (h // 2) * (w // 2)} rows. "
            "Pass the rows of exactly these frames."
        )
    return rearrange(rows, "... (n h w) (c p q) -> ... c n (h p) (w q)", n=n, h=h // 2, p=2, q=2)


def audio_rows(latent: Tensor) -> Tensor:
    """[..., 2, 32, A] -> [..., 2A, 32]: all of the left channel in time order, then all of the right."""
    return rearrange(latent, "... channel c a -> ... (channel a) c")


def audio_from_rows(rows: Tensor) -> Tensor:
    """Inverse of `audio_rows`."""
    return rearrange(rows, "... (channel a) c -> ... channel c a", channel=2)
