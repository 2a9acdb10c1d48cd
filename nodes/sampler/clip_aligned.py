"""Tiles of a reference video that lie where a tile of the target lies: the same latents, and an area that touches its own.

The aligned reference is what tells the target its layout, so sparse attention over both grids never leaves it out. Areas are
compared in shares of the picture, the target's grown by one patch of the reference on every side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.tiles import Triple


def aligned_tiles(reference: Triple, target: Triple, tile: Triple) -> Tensor:
    """Grids of rows (t, h, w) of both, the same t -> [n, n] bool (query tile, key tile), n tiles of the reference, then target.

    True where a tile of the reference is aligned with the query tile; a tile of the reference is so with itself alone.
    """
    if reference[0] != target[0]:
        raise ValueError(
            f"a reference of {reference[0]} latents for a target of {target[0]}; both need as many, encode them together"
        )
    slabs = -(-target[0] // tile[0])
    same_time = torch.eye(slabs, dtype=torch.bool)
    rows = _touching(reference[1], target[1], tile[1])
    columns = _touching(reference[2], target[2], tile[2])
    area = (
        (rows[:, None, :, None] & columns[None, :, None, :]).flatten(2).flatten(0, 1)
    )  # [target tiles, reference tiles]
    from_target = (same_time[:, None, :, None] & area[None, :, None, :]).flatten(2).flatten(0, 1)
    of_target, of_reference = from_target.shape
    mask = torch.zeros(of_reference + of_target, of_reference + of_target, dtype=torch.bool)
    mask[:of_reference, :of_reference] = torch.eye(of_reference, dtype=torch.bool)
    mask[of_reference:, :of_reference] = from_target
    return mask


def _touching(reference: int, target: int, tile: int) -> Tensor:
    """Along one side of so many patches: [target tiles, reference tiles] bool, in whole numbers of 1 / (reference * target)."""
    start = torch.arange(0, target, tile)
    stop = (start + tile).clamp(max=target)
    key_start = torch.arange(0, reference, tile)
    key_stop = (key_start + tile).clamp(max=reference)
    before = key_start[None] * target < (stop * reference + target)[:, None]
    after = key_stop[None] * target > (start * reference - target)[:, None]
    return before & after
