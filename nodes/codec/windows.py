"""Attention windows of the causal ViT decoder: which tokens share a window, and where their keys lie in the ring.

The grid is cut into `window` x `window` squares from a corner that lies `shift` tokens outside the picture on shifted
layers; windows at the border are simply smaller. Windows of equal size form a group, so that each group is one
attention call without a mask. All tokens of a layer stand in *window order*: group by group, window by window, and
inside a window latent by latent, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import torch
from torch import Tensor

from ...kernels import segments

CHUNK_LATENTS = 2  # latents decoded together
CACHE_LATENTS = 4  # earlier latents whose keys stay visible
SLOTS = CACHE_LATENTS + CHUNK_LATENTS


def partition(length: int, window: int, shift: int) -> list[range]:
    """Cut an axis of `length` tokens into windows; with a shift the first one is cut to `window - shift`."""
    edges = [0, *range(window - shift if shift else window, length, window), length]
    return [range(a, b) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class Group:
    """Windows of equal size, neighbours in window order and in the ring."""

    windows: int
    tokens: int  # per window and latent


class Windows:
    """The windows of one kind of layer (shifted or not) on one grid, with the row numbers of its key ring.

    The ring holds one segment per window, `[suffix | slot 0 | ... | slot 5]`, each slot the window's tokens of one
    latent; `rows` in all: 6 * height * width + suffix * windows.
    """

    def __init__(self, grid: tuple[int, int], window: int, shift: int, suffix: int) -> None:
        height, width = grid
        cells = [(y, x) for y in partition(height, window, shift) for x in partition(width, window, shift)]
        cells.sort(key=lambda cell: len(cell[0]) * len(cell[1]))
        self.members = [torch.tensor([r * width + c for r in rows for c in columns]) for rows, columns in cells]
        sizes = [len(member) for member in self.members]
        self.groups = tuple(Group(len(list(same)), size) for size, same in groupby(sizes))
        self.grid, self.window, self.shift, self.suffix = grid, window, shift, suffix
        self.rows = SLOTS * height * width + suffix * len(cells)

    def order(self, latents: int) -> Tensor:
        """Window order -> token number (latent, row, column) for a chunk of `latents`: [latents * h * w] int64."""
        tokens = self.grid[0] * self.grid[1]
        return torch.cat([member + latent * tokens for member in self.members for latent in range(latents)])

    def local_ids(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column inside the uncut window of the tokens in `order`; cut windows do not start at 0."""
        height, width = self.grid
        token = order % (height * width)
        return (token // width + self.shift) % self.window, (token % width + self.shift) % self.window

    @cached_property
    def bases(self) -> list[int]:
        """First ring row of every window."""
        bases = [0]
        for member in self.members:
            bases.append(bases[-1] + self.suffix + SLOTS * len(member))
        return bases[:-1]

    def slot_rows(self, slots: tuple[int, ...]) -> Tensor:
        """Ring rows of a chunk whose latents go to `slots`, in window order: [len(slots) * h * w]."""
        return torch.cat(
            [
                base + self.suffix + slot * len(member) + torch.arange(len(member))
                for base, member in zip(self.bases, self.members, strict=True)
                for slot in slots
            ]
        )

    def suffix_rows(self) -> Tensor:
        """Ring rows of the suffix keys, one copy per window: [windows * suffix]."""
        return torch.cat([base + torch.arange(self.suffix) for base in self.bases])

    def hidden_rows(self, used: int) -> Tensor:
        """Ring rows a global query must not see: slots not yet written and all suffix copies but the first. [rows]"""
        hidden = torch.ones(self.rows, dtype=torch.bool)
        for first, count in self.spans(used):
            hidden[first : first + count] = False
        return hidden

    def segments(self, latents: int, used: int, device: torch.device) -> segments.Segments:
        """The windows as attention segments, for `latents` queried and the first `used` slots visible."""
        return segments.Segments.of(
            tuple(
                segments.Group(
                    group.windows,
                    latents * group.tokens,
                    self.suffix + used * group.tokens,
                    self.suffix + SLOTS * group.tokens,
                )
                for group in self.groups
            ),
            device,
        )

    def spans(self, used: int) -> list[tuple[int, int]]:
        """What a global query sees, (first ring row, rows): the first copy of the suffix and every used slot once."""
        first, *rest = zip(self.bases, self.members, strict=True)
        return [
            (first[0], self.suffix + used * len(first[1])),
            *((base + self.suffix, used * len(member)) for base, member in rest),
        ]
