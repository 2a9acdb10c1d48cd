"""The temporal clock of MiniMax-H3: how RGB frames, video latents, scheduling units and audio latents meet.

Everything is absolute and never restarts. One codec cycle is 17 RGB frames and 5 video latents spanning 1, 4, 4, 4, 4
frames. Audio latents run at 40 Hz, so one frame is 5/3 of an audio latent; positions are kept as whole thirds.
"""

from __future__ import annotations

from itertools import accumulate

FPS = 24
AUDIO_HZ = 40
LATENT_SPANS = (1, 4, 4, 4, 4)  # RGB frames per video latent
MERGED_UNIT_SPANS = (2, 1, 1, 1)  # video latents per unit: the 1-frame latent travels with the 4-frame latent after it

LATENTS_PER_CYCLE = len(LATENT_SPANS)
FRAMES_PER_CYCLE = sum(LATENT_SPANS)
THIRDS_PER_FRAME = 3 * AUDIO_HZ // FPS

_FRAME_IN_CYCLE = (0, *accumulate(LATENT_SPANS[:-1]))
_LATENT_IN_CYCLE = (0, *accumulate(MERGED_UNIT_SPANS[:-1]))


def frame_of_latent(latent: int) -> int:
    """First RGB frame of video latent `latent`; the latent owns the frames up to the next latent's first one."""
    cycle, rest = divmod(latent, LATENTS_PER_CYCLE)
    return FRAMES_PER_CYCLE * cycle + _FRAME_IN_CYCLE[rest]


def position_thirds(latent: int) -> int:
    """Start of a video latent on the 40 Hz clock, in exact thirds of an audio latent: 5 * first frame."""
    return THIRDS_PER_FRAME * frame_of_latent(latent)


def position_of_latent(latent: int) -> float:
    """Start of a video latent on the 40 Hz clock, in audio latents (first frame * 5/3)."""
    return position_thirds(latent) / 3


def audio_of_latent(latent: int) -> int:
    """First audio latent that belongs to video latent `latent`: the position rounded up."""
    return -(-position_thirds(latent) // 3)


def latent_of_unit(unit: int, merged: bool = True) -> int:
    """First video latent of scheduling unit `unit`; unmerged units are single latents."""
    if not merged:
        return unit
    cycle, rest = divmod(unit, len(MERGED_UNIT_SPANS))
    return LATENTS_PER_CYCLE * cycle + _LATENT_IN_CYCLE[rest]


def units_covering(frames: int, merged: bool = True) -> int:
    """Fewest units, counted from the start of the stream, that hold `frames` RGB frames."""
    per_cycle = len(MERGED_UNIT_SPANS) if merged else LATENTS_PER_CYCLE
    units = per_cycle * (frames // FRAMES_PER_CYCLE)
    while frame_of_latent(latent_of_unit(units, merged)) < frames:
        units += 1
    return units
