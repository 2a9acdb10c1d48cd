"""Latent space of the H3 video codecs: block clock, channel statistics and pixel normalisation.

17 RGB frames are 5 latents. Every block behaves as if three frames stood in front of it (17 + 3 = 5 * 4): encoders
see black there, decoders drop what they produce for them. Statistics as published with the MiniMax-H3 video VAE.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import CodecError

LATENT_CHANNELS = 24
FRAMES_PER_LATENT = 4
BLOCK_LATENTS = 5
BLOCK_FRAMES = 17
ALIGNMENT_FRAMES = 3

# raw = normalised * std + mean, per channel; the diffusion model lives in the normalised space.
# fmt: off
LATENT_MEAN = (
    0.858090341091156, -0.9606591463088989, 1.0661640167236328, -0.5090325474739075,
    -0.2727581858634949, -1.3675414323806763, -0.2553254961967468, -0.26907554268836975,
    -0.5376840829849243, -0.0464097298681736, 0.6657370328903198, 0.19690127670764923,
    -0.5460608005523682, -0.4035342037677765, -0.23683024942874908, 0.25928452610969543,
    -0.30133944749832153, 0.211341992020607, -1.1206848621368408, 0.3581933379173279,
    -0.04225143790245056, 0.2604829967021942, 0.22864092886447906, 0.7056031823158264,
)
LATENT_STD = (
    1.2223774194717407, 1.2767263650894165, 1.6831774711608887, 1.7549455165863037,
    1.5636216402053833, 2.194143533706665, 0.9653137922286987, 1.0569885969161987,
    0.841948926448822, 0.7729952931404114, 1.8955937623977661, 0.946841835975647,
    0.7996809482574463, 0.44988900423049927, 0.7197399735450745, 0.6936293244361877,
    2.961095094680786, 2.7694199085235596, 3.0496184825897217, 2.1088054180145264,
    3.276226282119751, 3.1627357006073, 2.2816812992095947, 2.6127843856811523,
)
# fmt: on
# The statistics of ImageNet, the pixel space of the ViT decoders.
PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)


def frames_before(latents: int) -> int:
    """RGB frames covered by the first `latents` latents of a stream: 1 -> 1, 2 -> 5, 5 -> 17, 9 -> 30."""
    blocks, rest = divmod(latents, BLOCK_LATENTS)
    return BLOCK_FRAMES * blocks + (0 if rest == 0 else FRAMES_PER_LATENT * rest - ALIGNMENT_FRAMES)


def frames_to_drop(latent: int) -> int:
    """How many of the four raw frames of latent `latent` (absolute index) are alignment frames, never shown."""
    return ALIGNMENT_FRAMES if latent % BLOCK_LATENTS == 0 else 0


def denormalise(latent: Tensor) -> Tensor:
    """Normalised latent [..., 24, h, w] -> raw latent, in float32."""
    mean, std = (latent.new_tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (LATENT_MEAN, LATENT_STD))
    return latent.float() * std + mean


def pixels_to_rgb(pixels: Tensor) -> Tensor:
    """ImageNet-normalised pixels [..., 3, H, W] -> RGB float32 in [0, 1]."""
    mean, std = (pixels.new_tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (PIXEL_MEAN, PIXEL_STD))
    return (pixels.float() * std + mean).clamp(0, 1)


def rgb_to_pixels(rgb: Tensor) -> Tensor:
    """RGB in [0, 1], [..., 3, H, W] -> ImageNet-normalised pixels, float32."""
    mean, std = (rgb.new_tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (PIXEL_MEAN, PIXEL_STD))
    return (rgb.float() - mean) / std


def check_frames(frames: Tensor, ratio: int) -> None:
    """Refuse anything but RGB frames [n, 3, H, W] with sides that are multiples of `ratio`."""
    shape = tuple(frames.shape)
    if frames.ndim != 4 or shape[1] != 3:
        raise CodecError(f"Frames of shape {shape} arrived; the encoder needs [frames, 3, height, width] in RGB.")
    if shape[2] % ratio or shape[3] % ratio or not shape[2] or not shape[3]:
        raise CodecError(
            f"Frames of {shape[3]}x{shape[2]} arrived; both sides must be multiples of {ratio}. Resize them first."
        )
    if not frames.is_floating_point():
        raise CodecError(f"Frames of type {frames.dtype} arrived; the encoder needs floats in [0, 1]. Divide by 255.")


def check_latents(latents: Tensor, channels: int, first: int, grid: tuple[int, int] | None, chunk: int) -> None:
    """Refuse latents that are not finite [channels, n, h, w] on the grid of the stream.

    `first` is the index in the stream of the first latent given, `chunk` counts the pushes before this one; both name
    a bad latent.
    """
    shape = tuple(latents.shape)
    if latents.ndim != 4 or shape[0] != channels:
        raise CodecError(
            f"Latents of shape {shape} arrived; the decoder needs [{channels}, latents, height / 16, width / 16]. "
            "Connect a video latent of MiniMax-H3."
        )
    if not shape[2] or not shape[3]:
        raise CodecError(f"Latents of shape {shape} have an empty picture grid; at least one row and column is needed.")
    if grid is not None and shape[2:] != grid:
        raise CodecError(
            f"Latents on a {shape[2]}x{shape[3]} grid arrived in a stream of {grid[0]}x{grid[1]}; "
            "one stream has one size. Start a new stream for another size."
        )
    finite = latents.isfinite().all(dim=3).all(dim=2).all(dim=0)
    if not bool(finite.all()):
        bad = first + int((~finite).nonzero()[0, 0])
        raise CodecError(
            f"Latent {bad} of the stream, in chunk {chunk}, holds NaN or infinite values; a decoder needs finite latents. "
            "Lower the guidance or use a wider dtype for the model (bf16 or fp32)."
        )
