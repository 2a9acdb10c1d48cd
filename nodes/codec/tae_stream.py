"""TAE streams: one frame or one latent per step, with the block clock of H3.

The encoder forgets everything at each 17-frame block and starts it with three black frames; the decoder never forgets
and only drops the three alignment frames of each block. No look-ahead in either direction.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .errors import CodecError
from .space import (
    ALIGNMENT_FRAMES,
    BLOCK_FRAMES,
    LATENT_CHANNELS,
    check_frames,
    check_latents,
    frames_to_drop,
)
from .tae import SPATIAL_RATIO, MemBlock, Memory, fold, run, unfold


class TAEPart:
    """One half of a TAE ready for streams: layers with channels last, `identity` names the weights."""

    latent_channels = LATENT_CHANNELS
    spatial_ratio = SPATIAL_RATIO

    def __init__(self, layers: nn.Sequential, identity: str = "") -> None:
        layers.eval()
        self.layers: nn.Sequential = layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.identity = identity

    @property
    def dtype(self) -> torch.dtype:
        return next(self.layers.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.layers.parameters()).device


class TAEEncoder(TAEPart):
    """Streaming encoder over the `encoder.*` half of a TAE."""

    def stream(self) -> TAEEncoderStream:
        return TAEEncoderStream(self)

    def encode_picture(self, rgb: Tensor) -> Tensor:
        """A still [3, H, W] in [0, 1] -> normalised latent float32 [24, 1, H/16, W/16]."""
        return self.stream().push(rgb[None])


class TAEEncoderStream:
    """One clip being encoded. Latents appear after frames 0, 4, 8, 12 and 16 of every block."""

    def __init__(self, encoder: TAEEncoder) -> None:
        self._encoder = encoder
        self._position = 0  # inside the block
        self._memory: Memory = {}
        self._block_start: Memory = {}  # what three black frames leave behind: the same at every block
        self._size: tuple[int, int] | None = None

    def push(self, frames: Tensor) -> Tensor:
        """Frames [n, 3, H, W] in [0, 1] -> normalised latents float32 [24, m, H/16, W/16] on the codec's device."""
        check_frames(frames, SPATIAL_RATIO)
        height, width = frames.shape[2:]
        if self._size is not None and self._size != (height, width):
            raise CodecError(
                f"Frames of {width}x{height} arrived in a stream of {self._size[1]}x{self._size[0]}; "
                "one stream has one size. Start a new stream for another size."
            )
        self._size = (height, width)
        with torch.inference_mode():
            done = [latent for frame in frames if (latent := self._step(frame)) is not None]
        if not done:
            grid = (height // SPATIAL_RATIO, width // SPATIAL_RATIO)
            return torch.empty(LATENT_CHANNELS, 0, *grid, device=self._encoder.device)
        return torch.stack(done, dim=1).float()

    def _step(self, frame: Tensor) -> Tensor | None:
        layers, device, dtype = self._encoder.layers, self._encoder.device, self._encoder.dtype
        folded = fold(frame.to(device, dtype))[None]
        if self._position == 0:
            if not self._block_start:
                black = torch.zeros(ALIGNMENT_FRAMES, *folded.shape[1:], device=device, dtype=dtype)
                _, self._block_start = run(layers, black, {})
            self._memory = self._block_start
        latent, self._memory = run(layers, folded, self._memory)
        self._position = (self._position + 1) % BLOCK_FRAMES
        return None if latent is None else latent[0]


class TAEDecoder(TAEPart):
    """Streaming decoder over the `decoder.*` half of a TAE."""

    @property
    def reach(self) -> int:
        """Latents after which nothing of an earlier one is left in the memory: each block remembers one step."""
        return sum(isinstance(layer, MemBlock) for layer in self.layers)

    def stream(self, clock: int = 0) -> TAEDecoderStream:
        """A new stream; `clock` is the absolute index of its first latent, whose memory is empty in any case."""
        return TAEDecoderStream(self, clock)


class TAEDecoderStream:
    """One latent sequence being decoded: 1, 4, 4, 4, 4, 1, 4, ... frames per latent, nothing ever held back."""

    def __init__(self, decoder: TAEDecoder, clock: int = 0) -> None:
        self._decoder = decoder
        self._latents, self._chunks = clock, 0
        self._memory: Memory = {}
        self._grid: tuple[int, int] | None = None
        self._over = False

    def push(self, latents: Tensor) -> Tensor:
        """Normalised latents [24, n, h, w] -> frames float32 [m, 3, 16h, 16w] in [0, 1] on the codec's device."""
        if self._over:
            raise CodecError("A latent arrived after flush; the stream is over. Start a new stream.")
        check_latents(latents, LATENT_CHANNELS, self._latents, self._grid, self._chunks)
        self._grid = (latents.shape[2], latents.shape[3])
        self._chunks += 1
        with torch.inference_mode():
            done = [self._step(latent) for latent in latents.unbind(1)]
        return torch.cat(done) if done else self._nothing()

    def flush(self) -> Tensor:
        """Nothing is held back: no frames [0, 3, H, W]."""
        self._over, self._memory = True, {}
        return self._nothing()

    def _step(self, latent: Tensor) -> Tensor:
        decoder = self._decoder
        folded, self._memory = run(decoder.layers, latent.to(decoder.device, decoder.dtype)[None], self._memory)
        assert folded is not None  # a decoder never waits
        shown = folded[frames_to_drop(self._latents) :]
        self._latents += 1
        return unfold(shown).float().clamp(0, 1)

    def _nothing(self) -> Tensor:
        height, width = self._grid or (0, 0)
        return torch.empty(0, 3, height * SPATIAL_RATIO, width * SPATIAL_RATIO, device=self._decoder.device)
