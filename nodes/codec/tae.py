"""TAE, the tiny causal autoencoder of MiniMax-H3 (family of madebyollin/taehv), as one graph for streams and training.

Time lives in three layers only: a memory block sees the previous input of its own, a pool joins consecutive frames,
a grow splits one step into consecutive frames. `run` pushes any number of steps through a part and carries what the
three remember, so the streaming form (one step at a time) and the parallel form (all steps at once) are the same code.
Tensor names are those of the released file: `encoder.N...`, `decoder.N...`.
Joins and splits of frames keep channels last in memory, where convolutions are fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from .errors import CodecError, CodecFileError
from .space import ALIGNMENT_FRAMES, BLOCK_FRAMES, BLOCK_LATENTS, FRAMES_PER_LATENT, LATENT_CHANNELS, frames_to_drop

PATCH = 2  # pixels per side folded into channels before the first convolution
SPATIAL_RATIO = 16  # the fold, then three strided convolutions

# Layer index -> what it remembers: the last input [batch, C, H, W] of a memory block, the pending frames of a pool.
Memory = dict[int, Tensor]


@dataclass(frozen=True)
class TAEWidths:
    """Channels of the encoder (one width) and of the four decoder levels, from latent to pixel resolution."""

    encoder: int = 64
    decoder: tuple[int, int, int, int] = (256, 128, 64, 64)

    def __post_init__(self) -> None:
        if self.encoder < 1 or len(self.decoder) != 4 or min(self.decoder) < 1:
            raise CodecError(f"TAE widths {self} arrived; one encoder width and four decoder widths >= 1 are needed.")

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> TAEWidths:
        """Read the widths from the tensor shapes of a TAE file; refuse another patch size or latent."""
        first, latent = shapes["encoder.0.weight"], shapes["decoder.1.weight"]
        pixels = 3 * PATCH**2
        if first[1] != pixels or shapes["decoder.22.weight"][0] != pixels:
            raise CodecFileError(
                f"A TAE with {first[1]} input and {shapes['decoder.22.weight'][0]} output channels arrived; H3 folds "
                f"2x2 pixels, so both must be {pixels}. Use the taeh3 file of the TAEHV project."
            )
        if latent[1] != LATENT_CHANNELS:
            raise CodecFileError(
                f"A TAE for {latent[1]}-channel latents arrived; MiniMax-H3 has {LATENT_CHANNELS}. Use taeh3."
            )
        levels = (latent[0], shapes["decoder.8.weight"][0], shapes["decoder.14.weight"][0])
        return cls(first[0], (*levels, shapes["decoder.20.weight"][0]))


class MemBlock(nn.Module):
    """Residual block over the current frame and the previous input of this block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(2 * channels, channels, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor, past: Tensor) -> Tensor:
        """x, past [n, C, H, W] -> [n, C, H, W]."""
        return F.relu(self.conv(torch.cat((x, past), dim=1)) + x)


class TemporalPool(nn.Module):
    """`stride` consecutive frames, oldest first in the channels, to one."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(stride * channels, channels, 1, bias=False)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """x [n * stride * batch, C, H, W] -> [n * batch, C, H, W], time first."""
        joined = rearrange(x, "(n s b) c h w -> (n b) h w (s c)", s=self.stride, b=batch)
        return self.conv(joined.permute(0, 3, 1, 2))


class TemporalGrow(nn.Module):
    """One frame to `stride` consecutive frames, the earliest first in the channels."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(channels, stride * channels, 1, bias=False)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """x [n * batch, C, H, W] -> [n * stride * batch, C, H, W], time first."""
        split = rearrange(self.conv(x), "(n b) (s c) h w -> (n s b) h w c", s=self.stride, b=batch)
        return split.permute(0, 3, 1, 2)


class SoftClamp(nn.Module):
    """3 tanh(x / 3): latents far outside the training range cannot blow up the decoder."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * torch.tanh(x / 3)


def build_encoder(widths: TAEWidths) -> nn.Sequential:
    """Frames folded to 12 channels -> latents; 1/8 in space, 1/4 in time."""
    c = widths.encoder
    layers: list[nn.Module] = [nn.Conv2d(3 * PATCH**2, c, 3, padding=1), nn.ReLU(inplace=True)]
    for stride in (2, 2, 1):
        layers += [TemporalPool(c, stride), nn.Conv2d(c, c, 3, stride=2, padding=1, bias=False)]
        layers += [MemBlock(c) for _ in range(3)]
    return nn.Sequential(*layers, nn.Conv2d(c, LATENT_CHANNELS, 3, padding=1))


def build_decoder(widths: TAEWidths) -> nn.Sequential:
    """Latents -> frames folded to 12 channels; 8 times in space, 4 times in time."""
    levels = widths.decoder
    layers: list[nn.Module] = [SoftClamp(), nn.Conv2d(LATENT_CHANNELS, levels[0], 3, padding=1), nn.ReLU(inplace=True)]
    for c, finer, stride in zip(levels[:3], levels[1:], (1, 2, 2), strict=True):
        layers += [MemBlock(c) for _ in range(3)]
        layers += [nn.Upsample(scale_factor=2), TemporalGrow(c, stride), nn.Conv2d(c, finer, 3, padding=1, bias=False)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Conv2d(levels[3], 3 * PATCH**2, 3, padding=1))


class TAE(nn.Module):
    """Both parts with the tensor names of the released file; build one with small widths to train an example."""

    def __init__(self, widths: TAEWidths | None = None) -> None:
        super().__init__()
        self.widths = widths or TAEWidths()
        self.encoder = build_encoder(self.widths)
        self.decoder = build_decoder(self.widths)


def run(layers: nn.Sequential, x: Tensor, memory: Memory, batch: int = 1) -> tuple[Tensor | None, Memory]:
    """Push T steps of `batch` clips through one part; the same result as one step after the other.

    x [T * batch, C, H, W], time first. Returns [T' * batch, C', H', W'], or None when a pool still waits for frames,
    and the new memory; the one given is not changed. An empty memory means nothing came before: a memory block then
    sees zeros.
    """
    kept = dict(memory)
    for index, layer in enumerate(layers):
        if isinstance(layer, MemBlock):
            before = kept.get(index)
            if before is None:
                before = torch.zeros_like(x[:batch])
            alone = len(x) == batch
            # a clone, so that the memory does not keep all steps of this call alive
            kept[index] = x if alone else x[-batch:].clone()
            x = layer(x, before if alone else torch.cat((before, x[:-batch])))
        elif isinstance(layer, TemporalPool):
            if (pending := kept.pop(index, None)) is not None:
                x = torch.cat((pending, x))
            whole = len(x) - len(x) % (layer.stride * batch)
            if whole < len(x):
                kept[index] = x[whole:]
            if not whole:
                return None, kept
            x = layer(x[:whole], batch)
        elif isinstance(layer, TemporalGrow):
            x = layer(x, batch)
        else:
            x = layer(x)
    return x, kept


def fold(frames: Tensor) -> Tensor:
    """Frames [..., 3, H, W] -> [..., 12, H/2, W/2], the layout the encoder takes."""
    return F.pixel_unshuffle(frames, PATCH)


def unfold(folded: Tensor) -> Tensor:
    """[..., 12, H/2, W/2] -> frames [..., 3, H, W], not clamped."""
    return rearrange(folded, "... (c p q) h w -> ... c (h p) (w q)", p=PATCH, q=PATCH)


def encode_blocks(encoder: nn.Sequential, frames: Tensor) -> Tensor:
    """Whole 17-frame blocks at once, differentiable; equal to the stream.

    frames [B, 17 n, 3, H, W] in [0, 1] -> normalised latents [B, 5 n, 24, H/16, W/16]. Blocks do not see each other.
    """
    batch, length = frames.shape[:2]
    if length % BLOCK_FRAMES:
        raise CodecError(
            f"{length} frames arrived; the parallel encoder needs whole blocks of {BLOCK_FRAMES}. "
            "Repeat the last frame to fill the block."
        )
    steps = rearrange(fold(frames), "b (n f) c h w -> f (b n) c h w", f=BLOCK_FRAMES)
    steps = torch.cat((steps.new_zeros(ALIGNMENT_FRAMES, *steps.shape[1:]), steps)).flatten(0, 1)
    latents, _ = run(encoder, steps, {}, len(steps) // (ALIGNMENT_FRAMES + BLOCK_FRAMES))
    assert latents is not None  # 20 frames always fill the pools
    return rearrange(latents, "(t b n) c h w -> b (n t) c h w", t=BLOCK_LATENTS, b=batch)


def decode_clip(decoder: nn.Sequential, latents: Tensor, *, clamp: bool = True) -> Tensor:
    """A latent sequence from the start of a stream at once, differentiable; equal to the stream.

    latents [B, T, 24, h, w] -> frames [B, F, 3, 16h, 16w]; T = 5 gives F = 17. `clamp=False` keeps values outside
    [0, 1], where a clamp would stop the gradient.
    """
    batch, length = latents.shape[:2]
    folded, _ = run(decoder, rearrange(latents, "b t c h w -> (t b) c h w"), {}, batch)
    assert folded is not None  # a decoder never waits
    frames = unfold(rearrange(folded, "(f b) c h w -> b f c h w", b=batch))
    each = FRAMES_PER_LATENT
    shown = [i * each + j for i in range(length) for j in range(frames_to_drop(i), each)]
    return frames[:, shown].clamp(0, 1) if clamp else frames[:, shown]
