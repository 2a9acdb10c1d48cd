"""The causal ViT decoder as a stream: pairs of latents, a ring of keys and values, and the way around the wait.

The released decoder works on pairs (2k, 2k + 1), so a lone latent waits for its partner (mode "pair"). The early modes
show it at once and keep nothing of it: "early_single" decodes it alone against the five latents before it,
"early_pair" decodes it again with its predecessor. Its partner's frames later come from the regular pair.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from .errors import CodecError
from .ring import Call, Ring, ring_bytes
from .space import LATENT_CHANNELS, check_latents, frames_to_drop, pixels_to_rgb
from .vit import CausalViT, Layout
from .vit_form import Form, choose_form
from .windows import CHUNK_LATENTS, SLOTS

if TYPE_CHECKING:
    from .vit_fast import FastPass

DecodeMode = Literal["pair", "early_single", "early_pair"]


class ViTDecoder:
    """Causal ViT decoder; `identity` names the weights, `mode` is that of its streams.

    `form` says how its streams compute; None chooses what suits the device.
    """

    latent_channels = LATENT_CHANNELS

    def __init__(
        self, layers: CausalViT, identity: str = "", mode: DecodeMode = "pair", form: Form | None = None
    ) -> None:
        if mode not in get_args(DecodeMode):
            raise CodecError(f"Decode mode {mode!r} arrived; choose one of {', '.join(get_args(DecodeMode))}.")
        self.layers = layers.eval()
        self.identity, self.mode, self.form = identity, mode, form
        self.spatial_ratio = layers.config.patch

    @property
    def dtype(self) -> torch.dtype:
        return self.layers.compute_dtype

    @property
    def device(self) -> torch.device:
        return self.layers.register_tokens.device

    @property
    def reach(self) -> int:
        """Latents after which nothing of an earlier one is left in the ring: each layer sees four latents back."""
        return (SLOTS - CHUNK_LATENTS) * self.layers.config.layers + SLOTS

    def working_bytes(self, grid: tuple[int, int]) -> int:
        """Bytes of a stream on a latent grid (h, w) beside the weights, an upper estimate: the ring, and what a pass holds.

        The widest moment of a pass has the float32 tokens, the rows before and after the feed-forward's gate, and the
        pictures three times.
        """
        config = self.layers.config
        tokens = CHUNK_LATENTS * grid[0] * grid[1] + config.suffix
        per_token = 3 * 4 * config.hidden + (3 * config.ffn + 4 * config.hidden) * self.dtype.itemsize
        pictures = 3 * 4 * CHUNK_LATENTS * 4 * 3 * grid[0] * grid[1] * config.patch**2
        return ring_bytes(config, grid, self.dtype.itemsize) + tokens * per_token + pictures

    def stream(self, clock: int = 0) -> ViTDecoderStream:
        """A new stream; `clock` is the absolute index of its first latent, whose cache is empty in any case."""
        return ViTDecoderStream(self, clock)


class ViTDecoderStream:
    """State of one stream: the clock, the count of latents written, the latent that waits, and the ring.

    The ring of keys and values is the only memory of note and does not grow, see `Ring`.
    """

    def __init__(self, decoder: ViTDecoder, clock: int = 0) -> None:
        self._decoder = decoder
        self._clock, self._written, self._chunks = clock, 0, 0
        self._previous: Tensor | None = None
        self._held: Tensor | None = None
        self._held_is_shown = False
        self._over = False
        self._ring: Ring | None = None
        self._fast: FastPass | None = None
        self._layouts: dict[int, Layout] = {}
        self._grid: tuple[int, int] | None = None

    @property
    def cache_bytes(self) -> int:
        """Bytes of the ring, 0 before the first latent and after the flush."""
        return self._ring.bytes if self._ring else 0

    def push(self, latents: Tensor) -> Tensor:
        """Normalised latents [24, n, h, w] -> the frames that can be shown, float32 [m, 3, H, W] in [0, 1]."""
        if self._over:
            raise CodecError("A latent arrived after flush; the stream is over. Start a new stream.")
        check_latents(latents, LATENT_CHANNELS, self._clock + (self._held is not None), self._grid, self._chunks)
        self._grid = (latents.shape[2], latents.shape[3])
        self._chunks += 1
        with torch.inference_mode():
            done = []
            for latent in latents.to(self._decoder.device, torch.float32).unbind(1):
                if self._held is None:
                    self._held = latent.clone()  # the caller may reuse its tensor
                    continue
                done.append(self._pair(self._held, latent, slice(int(self._held_is_shown), 2)))
                self._previous, self._held, self._held_is_shown = latent.clone(), None, False
            if self._held is not None and not self._held_is_shown and self._decoder.mode != "pair":
                done.append(self._early(self._held))
                self._held_is_shown = True
        return torch.cat(done) if done else self._nothing()

    def flush(self) -> Tensor:
        """The frames of a latent that still waits, decoded as if it were followed by itself. Frees the ring."""
        shown = self._nothing()
        if self._held is not None and not self._held_is_shown:
            with torch.inference_mode():
                last = self._pair(self._held, self._held, slice(0, 1))
            shown = last.clone()
        self._over, self._ring, self._fast = True, None, None
        self._held, self._previous, self._layouts = None, None, {}
        return shown

    def _pair(self, first: Tensor, second: Tensor, shown: slice) -> Tensor:
        slot = self._written % SLOTS
        used = min(self._written + CHUNK_LATENTS, SLOTS)
        call = Call(self._clock, self._clock, (slot, slot + 1), used)
        frames = self._decode((first, second), call, shown)
        self._clock += CHUNK_LATENTS
        self._written += CHUNK_LATENTS
        return frames

    def _early(self, latent: Tensor) -> Tensor:
        # The slot of the lone latent holds one that no later pair can see, and the pair itself will overwrite it.
        slot = self._written % SLOTS
        used = min(self._written + 1, SLOTS)
        if self._previous is None:
            return self._decode((latent,), Call(self._clock, self._clock, (slot,), used), slice(None))
        before = self._clock - 1
        if self._decoder.mode == "early_single":
            return self._decode((latent,), Call(self._clock, before, (slot,), used), slice(None))
        last = (slot - 1) % SLOTS
        return self._decode((self._previous, latent), Call(before, before, (last, slot), used, last), slice(1, 2))

    def _decode(self, latents: tuple[Tensor, ...], call: Call, shown: slice) -> Tensor:
        network = self._decoder.layers
        if self._ring is None:
            self._start(network)
        assert self._ring is not None
        if self._fast is not None:
            pixels = self._fast(torch.stack(latents), call, shown)
        else:
            layout = self._layout(len(latents))
            rope = layout.rope(call.clock, call.suffix_clock)
            pixels = network(torch.stack(latents), layout, rope, partial(self._ring.attend, call), shown)
        first = call.clock + (shown.start or 0)
        return pixels_to_rgb(torch.cat([p[frames_to_drop(first + i) :] for i, p in enumerate(pixels)]))

    def _start(self, network: CausalViT) -> None:
        """Choose how to compute and reserve the ring, once the size of the pictures is known."""
        form = self._decoder.form or choose_form(network)
        windows = self._layout(CHUNK_LATENTS).windows
        self._ring = Ring(network, windows, self._decoder.device, form.attention.run)
        if form.fast:
            from .vit_fast import FastPass  # imports Triton where there is one

            self._fast = FastPass(network, self._ring, form)

    def _layout(self, chunk: int) -> Layout:
        assert self._grid is not None  # set by push
        if chunk not in self._layouts:
            self._layouts[chunk] = Layout(self._decoder.layers.config, self._grid, chunk, self._decoder.device)
        return self._layouts[chunk]

    def _nothing(self) -> Tensor:
        height, width = self._grid or (0, 0)
        patch = self._decoder.spatial_ratio
        return torch.empty(0, 3, height * patch, width * patch, device=self._decoder.device)
