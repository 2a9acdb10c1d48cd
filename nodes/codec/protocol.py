"""What the rest of the pack knows of a codec: streams that take frames or latents as they come.

Latents are normalised float32 [24, n, h, w]; frames are RGB float32 [n, 3, H, W] in [0, 1]. A stream never needs a
whole clip: any split of the same input into pushes gives the same output.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


class EncoderStream(Protocol):
    """State of one clip being encoded."""

    def push(self, frames: Tensor) -> Tensor:
        """Frames [n, 3, H, W] in [0, 1] -> the latents completed by them, [24, m, h, w] with m >= 0."""
        ...


class DecoderStream(Protocol):
    """State of one latent sequence being decoded."""

    def push(self, latents: Tensor) -> Tensor:
        """Latents [24, n, h, w] -> the frames that can be shown now, [m, 3, H, W] with m >= 0."""
        ...

    def flush(self) -> Tensor:
        """The frames still held back, [m, 3, H, W]; the stream is over, a later push is an error."""
        ...


class Codec(Protocol):
    """What encoders and decoders have in common."""

    latent_channels: int
    spatial_ratio: int  # pixels per latent cell and side
    identity: str  # names the content of the weights file

    @property
    def layers(self) -> nn.Module:
        """The weights; a host may move them to another device between streams."""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...


@runtime_checkable
class Encoder(Codec, Protocol):
    """RGB frames to latents, strictly causal: a latent exists as soon as its last frame arrived."""

    def stream(self) -> EncoderStream: ...

    def encode_picture(self, rgb: Tensor) -> Tensor:
        """A still [3, H, W] in [0, 1] -> [24, 1, h, w]: the first frame of a block."""
        ...


@runtime_checkable
class Decoder(Codec, Protocol):
    """Latents to RGB frames, strictly causal with bounded memory.

    A stream that begins at latent `clock`, a multiple of 30, gives the same frames as one from the start of the clip once
    it has taken `reach` latents: this is how a decoder's memory is rebuilt.
    """

    @property
    def reach(self) -> int: ...

    def stream(self, clock: int = 0) -> DecoderStream: ...
