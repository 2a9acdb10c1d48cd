"""Guidance: which conditions a forward sees, and how the predictions of several forwards are added up.

A guidance-fitted checkpoint answers with the guided prediction in one call. For other Ref2VA checkpoints the chain
`G = f0 + s0*(fT - f0) + s1*(fTS - fT)` adds three calls: null (no caption, no map), text, text and map. The picture and the
generated history are kept in all three.
"""

from __future__ import annotations

from dataclasses import dataclass

TEXT_SCALE = 1.5
STRUCTURE_SCALE = 3.0


@dataclass(frozen=True)
class Branch:
    """One forward of a step: its conditions and its weight in the sum."""

    name: str
    caption: bool
    reference: bool
    weight: float


FULL = Branch("text+map", caption=True, reference=True, weight=1.0)
SINGLE = (FULL,)


def chain(
    text_scale: float = TEXT_SCALE, structure_scale: float = STRUCTURE_SCALE, caption: bool = True
) -> tuple[Branch, ...]:
    """Branches of the two-edge chain; without a caption the first edge vanishes and the map edge starts at the null call.

    Weights sum to 1. Equal scales give ordinary classifier-free guidance between null and full; branches of weight 0 are
    left out.
    """
    for name, scale in (("text scale", text_scale), ("structure scale", structure_scale)):
        if not 0.0 <= scale <= 20.0:
            raise ValueError(
                f"{name} is {scale}; it must be from 0 to 20. Use 1.5 (text) and 3.0 (structure) to start."
            )
    if not caption:
        branches = [
            Branch("null", caption=False, reference=False, weight=1.0 - structure_scale),
            Branch("map", caption=False, reference=True, weight=structure_scale),
        ]
    else:
        branches = [
            Branch("null", caption=False, reference=False, weight=1.0 - text_scale),
            Branch("text", caption=True, reference=False, weight=text_scale - structure_scale),
            Branch("text+map", caption=True, reference=True, weight=structure_scale),
        ]
    return tuple(branch for branch in branches if branch.weight != 0.0)


def fitting_weights(
    text_scale: float = TEXT_SCALE, structure_scale: float = STRUCTURE_SCALE
) -> tuple[float, float, float]:
    """Weights (null, text, text+map) that turn guided predictions back into the unguided full prediction.

    This is the reverse reading used when a checkpoint is fitted: `u(T) = f0 + (fT - f0)/s0`,
    `u(TS) = u(T) + (fTS - fT)/s1`; a third each at the scales 1.5 and 3. Never applied at inference.
    """
    return 1.0 - 1.0 / text_scale, 1.0 / text_scale - 1.0 / structure_scale, 1.0 / structure_scale
