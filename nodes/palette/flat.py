"""The flat colours of a clip: what it is drawn in, leaving out edges, blends and noise."""

from __future__ import annotations

import numpy as np

from .hypotheses import FlatColours

# A pixel is flat when no channel differs from its four neighbours by more than this.
FLAT_STEP = 6
# Colours this close belong together.
CLUSTER_RADIUS = 14.0
# Areas smaller than this share of the flat pixels are noise.
MIN_SHARE = 2e-4
_MOST_COLOURS = 4000


def flat_colours(frames: list[np.ndarray]) -> FlatColours:
    """Clusters of the flat colours of frames uint8 [H, W, 3], each by its most frequent colour."""
    packed = np.concatenate([_flat_packed(frame) for frame in frames]) if frames else np.zeros(0, dtype=np.int32)
    values, counts = np.unique(packed, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_COLOURS]
    values, counts = values[order], counts[order]
    colours = np.stack([values >> 16, values >> 8 & 255, values & 255], axis=-1).astype(np.float64)
    centres: list[int] = []
    totals: list[int] = []
    free = np.ones(len(values), dtype=bool)
    for index in range(len(values)):
        if free[index]:
            near = free & (((colours - colours[index]) ** 2).sum(-1) <= CLUSTER_RADIUS**2)
            free &= ~near
            centres.append(index)
            totals.append(int(counts[near].sum()))
    shares = np.array(totals, dtype=np.float64) / max(1, len(packed))
    kept = np.flatnonzero(shares >= MIN_SHARE)
    kept = kept[np.argsort(-shares[kept], kind="stable")]
    return FlatColours(colours[np.array(centres, dtype=int)[kept]].astype(np.uint8), shares[kept])


def _flat_packed(frame: np.ndarray) -> np.ndarray:
    """int32 [n]: the packed colours of a frame's flat pixels, its border left out."""
    centre = frame[1:-1, 1:-1].astype(np.int16)
    flat = np.ones(centre.shape[:2], dtype=bool)
    for neighbour in (frame[:-2, 1:-1], frame[2:, 1:-1], frame[1:-1, :-2], frame[1:-1, 2:]):
        flat &= (np.abs(centre - neighbour) <= FLAT_STEP).all(axis=-1)
    rgb = centre[flat].astype(np.int32)
    return rgb[:, 0] << 16 | rgb[:, 1] << 8 | rgb[:, 2]
