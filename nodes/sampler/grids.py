"""Time grids: the noise levels a render visits, for picture and sound, and the deterministic DDIM step between them.

sigma is the noise level (1 noise, 0 clean); the network's own time is t = 1 - sigma (1 clean), rounded to float32 because
modulation tables are keyed by its bit pattern. A trailing grid of N steps with shift a is
`u_i = 1 - i/N`, `sigma_i = a*u_i / (1 + (a-1)*u_i)`, followed by 0. Levels stay floating point and are never rounded to
integers: the release's configuration reads `"T": 1`, which a literal reading would collapse to one step done twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

VIDEO_SHIFT = 6.0
AUDIO_SHIFT = 1.5
CLEAN_SIGMA = 0.001
MAX_STEPS = 200


def h3_time(sigma: float) -> float:
    """The network's time for a noise level: 1 - sigma, both in float32 (returned as the exact Python float)."""
    return float(np.float32(1.0) - np.float32(sigma))


CLEAN_TIME = h3_time(CLEAN_SIGMA)


def trailing_sigmas(steps: int, shift: float) -> tuple[float, ...]:
    """Noise levels of the `steps` forwards, float64, descending from 1; the final 0 is implied."""
    if not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps is {steps}; it must be from 1 to {MAX_STEPS}. The released model is made for 2.")
    base = [1.0 - i / steps for i in range(steps)]
    return tuple(shift * u / (1.0 + (shift - 1.0) * u) for u in base)


@dataclass(frozen=True)
class TimeGrid:
    """Noise levels of picture and sound, one pair per forward; both end at 0 after the last one."""

    video: tuple[float, ...]
    audio: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.video) != len(self.audio) or not self.video:
            raise ValueError(
                f"a time grid has {len(self.video)} video and {len(self.audio)} audio levels; give the same number of each"
            )

    @classmethod
    def trailing(cls, steps: int, video_shift: float = VIDEO_SHIFT, audio_shift: float = AUDIO_SHIFT) -> TimeGrid:
        """The streaming model's grid: shift 6 for the picture and 1.5 for the sound; 2 steps give (1, 6/7) and (1, 0.6)."""
        return cls(trailing_sigmas(steps, video_shift), trailing_sigmas(steps, audio_shift))

    @property
    def steps(self) -> int:
        return len(self.video)

    def h3_times(self) -> tuple[float, ...]:
        """Every distinct network time a render on this grid can ask for, clean rows included, ascending."""
        return tuple(sorted({h3_time(s) for s in (*self.video, *self.audio)} | {CLEAN_TIME}))

    def ddim(
        self, step: int, x0_video: Tensor, x_video: Tensor, x0_audio: Tensor, x_audio: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One deterministic step for both streams: float32 in, float32 out; the last step returns the predictions."""
        return (
            ddim_step(x0_video, x_video, self.video, step),
            ddim_step(x0_audio, x_audio, self.audio, step),
        )


def ddim_coefficients(sigmas: tuple[float, ...], step: int) -> tuple[float, float]:
    """(a, b) of `x_next = a*x0 + b*x_t`: b = sigma_next/sigma, a = 1 - b; no fresh noise enters."""
    following = sigmas[step + 1] if step + 1 < len(sigmas) else 0.0
    keep = following / sigmas[step]
    return 1.0 - keep, keep


def ddim_step(x0: Tensor, x_t: Tensor, sigmas: tuple[float, ...], step: int) -> Tensor:
    """From the prediction `x0` at noise level `sigmas[step]` to the next level of the lerp schedule."""
    towards, keep = ddim_coefficients(sigmas, step)
    if keep == 0.0:
        return x0
    return towards * x0 + keep * x_t
