"""The random numbers of one render: a single CPU stream, float32, drawn in a fixed order, so that every device agrees.

Order per chunk: video `[24, new, h, w]`, audio `[2, 32, new]`, history `[24, window, h, w]`, reference
`[24, references, h', w']`. The last two keep their full shape although frozen or noisy latents are overwritten: skipping a
draw would shift every later number.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

DEFAULT_SEED = 20260830
PICTURE_PURPOSE = ("streaming_picture_noise", "picture")


def combine_seed(*parts: object) -> int:
    """Derive a seed: sha256 of the parts joined by "_", read as an integer, modulo 2**63."""
    text = "_".join(str(part) for part in parts)
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % 2**63


def picture_noise(seed: int, shape: tuple[int, ...]) -> Tensor:
    """The picture's own noise, float32 on the CPU, constant for a whole render."""
    generator = torch.Generator("cpu").manual_seed(combine_seed(seed, *PICTURE_PURPOSE))
    return torch.randn(shape, generator=generator)


class Noise:
    """The render's random stream. `prepare` draws ahead, while the device computes; it changes no number and no state."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self._generator = torch.Generator("cpu").manual_seed(seed)
        self._device = torch.device(device)
        self._ready: deque[tuple[Tensor, Tensor]] = deque()  # the stream's state before a draw, and its numbers

    def draw(self, *shape: int) -> Tensor:
        """Standard normal float32 numbers of `shape`, moved to the render's device."""
        if self._ready and self._ready[0][1].shape == shape:
            return self._ready.popleft()[1].to(self._device, non_blocking=True)
        self.restore(self.state())
        return torch.randn(shape, generator=self._generator).to(self._device)

    def prepare(self, shapes: Iterable[tuple[int, ...]]) -> None:
        """Draw the next numbers now, expected in these shapes; another shape asked for later draws them again."""
        pin = self._device.type == "cuda"
        for shape in shapes:
            before = self._generator.get_state()
            numbers = torch.randn(shape, generator=self._generator)
            self._ready.append((before, numbers.pin_memory() if pin else numbers))

    def state(self) -> Tensor:
        """Where the stream stands, uint8; numbers drawn ahead do not count."""
        return self._ready[0][0] if self._ready else self._generator.get_state()

    def restore(self, state: Tensor) -> None:
        """Go on from an earlier `state`."""
        self._ready.clear()
        self._generator.set_state(state)
