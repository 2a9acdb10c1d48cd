"""The network of the causal ViT decoder (StreamRender-H3's distilled student of the MiniMax-H3 video decoder).

Every latent cell is a token; tokens attend inside their window to the current chunk and the four latents before it,
five suffix tokens (registers and a zero class token) attend to the whole picture. What is seen is the caller's
business: a block hands q, k and v to an `Attend`, which a stream answers from its ring and training from whole clips.
Tensor names are those of the released file; every size comes from its shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from .errors import CodecFileError
from .space import FRAMES_PER_LATENT, LATENT_CHANNELS, denormalise
from .windows import Windows

HEAD_DIM = 64  # of the release, where a file does not say its number of heads
WINDOW = 16
ROPE_THETA = 100.0
ROPE_SHARE = 3 / 4  # of the head channels are rotated
TIME_SPAN = 7.0  # latents of a clip of the teacher: the unit of the time axis
EPS = 1e-5


@dataclass(frozen=True)
class ViTConfig:
    """Sizes of the decoder. `patch` is in pixels, `window` in tokens; odd layers are shifted by half a window."""

    layers: int = 24
    hidden: int = 2048
    heads: int = 32
    ffn: int = 8192
    window: int = WINDOW
    patch: int = 16
    registers: int = 4

    def __post_init__(self) -> None:
        if min(self.layers, self.hidden, self.heads, self.ffn, self.patch) < 1 or self.registers < 0:
            raise CodecFileError(f"{self} has an empty part; every size must be at least 1.")
        if self.hidden % (8 * self.heads):
            raise CodecFileError(
                f"A width of {self.hidden} with {self.heads} heads arrived; the head width must be a multiple of 8, "
                "so that three axes share its rotary channels. State `heads` in the metadata of the file."
            )
        if self.window < 2 or self.window % 2:
            raise CodecFileError(f"A window of {self.window} tokens arrived; it must be even, to be shifted by half.")

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def rope_freqs(self) -> int:
        """Frequencies per axis."""
        return int(self.head_dim * ROPE_SHARE) // 6

    @property
    def suffix(self) -> int:
        """Suffix tokens: the registers and one class token."""
        return self.registers + 1

    @classmethod
    def from_file(cls, shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str]) -> ViTConfig:
        """Sizes from tensor shapes; head count and window, which no shape shows, from the metadata `heads`, `window`.

        A file without them (the released one) has heads of 64 channels and windows of 16x16 tokens.
        """
        hidden, pixels = shapes["x_embedder.weight"][0], shapes["proj_out.weight"][0]
        patch = math.isqrt(pixels // (3 * FRAMES_PER_LATENT))
        if 3 * FRAMES_PER_LATENT * patch**2 != pixels:
            raise CodecFileError(
                f"proj_out makes {pixels} values per token; 3 colours x {FRAMES_PER_LATENT} frames x a square patch "
                "are needed. This is not a video decoder of H3."
            )
        try:
            heads, window = int(metadata.get("heads", hidden // HEAD_DIM)), int(metadata.get("window", WINDOW))
        except ValueError as error:
            raise CodecFileError(f"The metadata `heads` and `window` must be whole numbers ({error}).") from None
        return cls(
            layers=len({name.split(".")[1] for name in shapes if name.startswith("blocks.")}),
            hidden=hidden,
            heads=heads,
            ffn=shapes["blocks.0.ff.w2.weight"][1],
            window=window,
            patch=patch,
            registers=shapes["register_tokens"][1],
        )

    def metadata(self) -> dict[str, str]:
        """What a file of this decoder must carry in its metadata."""
        return {"heads": str(self.heads), "window": str(self.window)}


@dataclass(frozen=True)
class Rope:
    """Rotary tables [..., tokens, 3 * freqs] float32, axes in the order time, row, column."""

    cos: Tensor
    sin: Tensor

    def rotate(self, x: Tensor) -> Tensor:
        """x [..., tokens, heads, head_dim] float32; the first 6 * freqs channels turn, split in halves."""
        cos, sin = self.cos.unsqueeze(-2), self.sin.unsqueeze(-2)
        half = cos.shape[-1]
        a, b, still = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, still), dim=-1)


class Attend(Protocol):
    """Attention over everything visible. q, k (rotated), v and the result are [..., tokens + suffix, heads, head_dim];
    tokens in window order."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


def turning_rates(config: ViTConfig) -> Tensor:
    """Rotary frequencies of one axis, float64 [freqs]."""
    return ROPE_THETA ** (-torch.arange(config.rope_freqs, dtype=torch.float64) / config.rope_freqs)


def space_angles(config: ViTConfig, windows: Windows, tokens: Tensor) -> Tensor:
    """Angles of row and column for these token numbers, then of the suffix: float64 [tokens + suffix, 2 * freqs]."""
    ids = torch.stack(windows.local_ids(tokens), dim=1).double()
    angles = ((ids + 0.5) / config.window * 2 - 1)[..., None] * turning_rates(config) * 2 * math.pi
    return torch.cat((angles.flatten(1), angles.new_zeros(config.suffix, 2 * config.rope_freqs)))


def time_angles(config: ViTConfig, clock: int, latents: int, suffix_clock: int) -> Tensor:
    """Angles of latents clock, clock + 1, ... and of the suffix: float64 [latents + 1, freqs].

    Time is absolute, so angles grow without end: they are formed in float64 on the host.
    """
    times = torch.tensor([*range(clock, clock + latents), suffix_clock], dtype=torch.float64)
    return ((times + 0.5) / TIME_SPAN * 2 - 1)[:, None] * turning_rates(config) * 2 * math.pi


class Layout:
    """Token orders and rotary tables of a chunk of `latents` on a grid, for plain (0) and shifted (1) layers."""

    def __init__(self, config: ViTConfig, grid: tuple[int, int], latents: int, device: torch.device) -> None:
        self.windows = tuple(Windows(grid, config.window, s, config.suffix) for s in (0, config.window // 2))
        self.latents, self.device, self._config = latents, device, config
        orders = [self._with_suffix(w.order(latents), config.suffix) for w in self.windows]
        inverse = [torch.argsort(order) for order in orders]
        self.enter = orders[0].to(device)  # raster -> plain
        self.change = (inverse[1][orders[0]].to(device), inverse[0][orders[1]].to(device))  # to plain, to shifted
        self.leave = tuple(i[: latents * grid[0] * grid[1]].to(device) for i in inverse)  # to raster, suffix dropped
        self._space, self._latent_of = [], []
        for windows, order in zip(self.windows, orders, strict=True):
            tokens = order[: -config.suffix]
            angles = space_angles(config, windows, tokens)
            self._space.append(Rope(angles.cos().float().to(device), angles.sin().float().to(device)))
            latent_of = torch.cat((tokens // (grid[0] * grid[1]), torch.full((config.suffix,), latents)))
            self._latent_of.append(latent_of.to(device))

    @staticmethod
    def _with_suffix(order: Tensor, suffix: int) -> Tensor:
        return torch.cat((order, len(order) + torch.arange(suffix)))

    def rope(self, clock: int, suffix_clock: int) -> tuple[Rope, Rope]:
        """Tables for latents clock, clock + 1, ... and suffix tokens at `suffix_clock`, for both kinds of layer."""
        angles = time_angles(self._config, clock, self.latents, suffix_clock)
        cos, sin = angles.cos().float().to(self.device), angles.sin().float().to(self.device)
        plain, shifted = (
            Rope(torch.cat((cos[latent_of], space.cos), 1), torch.cat((sin[latent_of], space.sin), 1))
            for space, latent_of in zip(self._space, self._latent_of, strict=True)
        )
        return plain, shifted


class Attention(nn.Module):
    """q, k, v from one projection whose rows are interleaved per head: q, k, v of head 0, then of head 1, ..."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.to_qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.to_out = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor, rope: Rope, layer: int, attend: Attend) -> Tensor:
        q, k, v = self.to_qkv(x).unflatten(-1, (self.heads, -1)).chunk(3, dim=-1)
        q, k = (rope.rotate(F.rms_norm(y.float(), y.shape[-1:], eps=EPS)).to(x.dtype) for y in (q, k))
        return self.to_out(attend(layer, q, k, v).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU; the first half of w1 is the gate."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden, 2 * config.ffn)
        self.w2 = nn.Linear(config.ffn, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)


class Block(nn.Module):
    """Pre-norm block with a learned scale per channel on each branch; the residual stream stays float32."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden, eps=EPS)
        self.attn = Attention(config)
        self.scale1 = nn.Parameter(torch.full((config.hidden,), 0.1))
        self.norm2 = nn.RMSNorm(config.hidden, eps=EPS)
        self.ff = FeedForward(config)
        self.scale2 = nn.Parameter(torch.full((config.hidden,), 0.1))

    def forward(self, x: Tensor, rope: Rope, layer: int, attend: Attend) -> Tensor:
        compute = self.attn.to_qkv.weight.dtype
        x = x + self.attn(self.norm1(x).to(compute), rope, layer, attend).float() * self.scale1
        return x + self.ff(self.norm2(x).to(compute)).float() * self.scale2


class CausalViT(nn.Module):
    """The decoder network. Linears of the blocks may be narrow (`narrow`); everything else is float32."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.post_quant_conv = nn.Conv3d(LATENT_CHANNELS, LATENT_CHANNELS, 1)
        self.x_embedder = nn.Linear(LATENT_CHANNELS, config.hidden)
        self.register_tokens = nn.Parameter(torch.empty(1, config.registers, config.hidden).uniform_(-0.02, 0.02))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm_out = nn.LayerNorm(config.hidden, eps=EPS)
        self.proj_out = nn.Linear(config.hidden, 3 * FRAMES_PER_LATENT * config.patch**2)

    @staticmethod
    def narrow(name: str) -> bool:
        """Whether a tensor belongs to the Linears of the blocks, the only ones stored in the compute dtype."""
        return name.startswith("blocks.") and (".attn." in name or ".ff." in name)

    @property
    def compute_dtype(self) -> torch.dtype:
        return self.blocks[0].attn.to_qkv.weight.dtype  # type: ignore[union-attr, return-value]

    def forward(
        self, latents: Tensor, layout: Layout, rope: Sequence[Rope], attend: Attend, shown: slice = slice(None)
    ) -> Tensor:
        """One chunk: normalised latents [..., C, 24, h, w] -> pixels [..., C', 4, 3, H, W] of the latents `shown`.

        Pixels are ImageNet-normalised float32, alignment frames included. `rope` holds the tables of plain and of
        shifted layers.
        """
        *_, chunk, _, height, width = latents.shape
        x = self.embed(latents).index_select(-2, layout.enter)
        for layer, block in enumerate(self.blocks):
            if layer:
                x = x.index_select(-2, layout.change[layer % 2])
            x = block(x, rope[layer % 2], layer, attend)
        x = x.index_select(-2, layout.leave[(self.config.layers - 1) % 2])
        x = x.unflatten(-2, (chunk, height, width))[..., shown, :, :, :]
        return self.arrange(self.proj_out(self.norm_out(x)))

    def embed(self, latents: Tensor) -> Tensor:
        """Normalised latents [..., C, 24, h, w] -> tokens in picture order, then the suffix, float32 [..., n, hidden].

        Values are rounded to the compute dtype, as the released decoder rounds them.
        """
        return self.embed_raw(denormalise(latents))

    def embed_raw(self, latents: Tensor) -> Tensor:
        """`embed` of raw latents, float32."""
        x = rearrange(latents, "... t c h w -> ... (t h w) c")
        x = self.x_embedder(F.linear(x, self.post_quant_conv.weight.flatten(1), self.post_quant_conv.bias))
        suffix = F.pad(self.register_tokens[0], (0, 0, 0, 1))
        x = torch.cat((x, suffix.expand(*x.shape[:-2], -1, -1)), dim=-2)
        return x.to(self.compute_dtype).float()

    def arrange(self, pixels: Tensor) -> Tensor:
        """Output rows [..., h, w, 3 * 4 * patch * patch] -> pictures [..., 4, 3, H, W]."""
        return rearrange(
            pixels, "... h w (c s p q) -> ... s c (h p) (w q)", c=3, s=FRAMES_PER_LATENT, p=self.config.patch
        )
