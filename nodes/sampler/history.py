"""What a stream remembers: clean generated latents, clean sound and raw map latents, by absolute index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..schedule import Window, audio_of_latent


class History:
    """Latents kept between chunks; only the sink and the recent units survive `forget`."""

    def __init__(self) -> None:
        self.video: dict[int, Tensor] = {}  # [24, h, w]
        self.reference: dict[int, Tensor] = {}  # [24, h', w'], never noised
        self.audio: dict[int, Tensor] = {}  # [2, 32]

    def add(self, window: Window, video: Tensor, audio: Tensor, reference: Tensor) -> None:
        """Remember a finished chunk: `[24, new, h, w]`, `[2, 32, new]`, `[24, new, h', w']`."""
        self.video.update(zip(window.latents, video.unbind(1), strict=True))
        self.reference.update(zip(window.latents, reference.unbind(1), strict=True))
        self.audio.update(zip(window.audio_new, audio.unbind(2), strict=True))

    def forget(self, window: Window) -> None:
        """Drop what no window after `window` sees: everything between the sink and the recent units."""
        sink, recent = window.keep_sink_stop, window.keep_recent_start
        for latents in (self.video, self.reference):
            _forget(latents, sink, recent)
        _forget(self.audio, audio_of_latent(sink), audio_of_latent(recent))


def _forget(store: dict[int, Tensor], sink_stop: int, recent_start: int) -> None:
    for index in [i for i in store if sink_stop <= i < recent_start]:
        del store[index]


def gather(store: dict[int, Tensor], indices: Sequence[int], like: Tensor, dim: int) -> Tensor:
    """Stack the latents of `indices` along `dim`; an index not in the store gives zeros shaped as `like`."""
    if not indices:
        shape = list(like.shape)
        shape.insert(dim, 0)
        return like.new_zeros(shape)
    return torch.stack([store.get(i, like) for i in indices], dim=dim)


def join(indices: Iterable[int], known: dict[int, Tensor], fresh_start: int, fresh: Tensor) -> Tensor:
    """Map latents of a window: the remembered ones, and from `fresh_start` on those just encoded, `[24, new, h', w']`."""
    return torch.stack([known[i] if i < fresh_start else fresh[:, i - fresh_start] for i in indices], dim=1)
