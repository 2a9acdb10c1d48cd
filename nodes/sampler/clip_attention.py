"""The seam between whole-clip sampling and its attention: what an attention is given, and when which one is used.

Dense attention needs nothing of this. A sparse one tiles the video's rows and is told the segments of the packed sequence
once, the denoising step once per step, and the layer with every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ...kernels.tiles import Segment
from ..model import LayerAttention
from .clip_plan import ClipShape
from .clip_recipes import Recipe
from .finite import RenderError

AUTO, DENSE, VSA, VSA_TARGET_REF = "auto", "dense", "vsa", "vsa_target_ref"
MODES = (AUTO, DENSE, VSA, VSA_TARGET_REF)
UNTRAINED = (
    "vsa_target_ref is experimental: it tiles the reference video as a second grid, and no checkpoint was trained for that; "
    "compare the result with dense attention"
)
MIN_ROWS = 16384  # below it dense attention is as fast


@dataclass(frozen=True)
class RowSegments:
    """The packed rows as tiles are cut: lengths of the runs before the video, and the video's grid of rows.

    `runs` are text, picture, reference, audio, as `ClipShape` packs them, empty ones left out.
    """

    runs: tuple[int, ...]
    grid: tuple[int, int, int]  # rows along time, height and width
    reference: tuple[int, tuple[int, int, int]] | None = None  # which run is the reference video, and its grid of rows

    @classmethod
    def of(cls, shape: ClipShape, text_rows: int) -> RowSegments:
        runs = {name: len(rows) for name, rows in shape.segments(text_rows).items() if name != "video" and rows}
        grid = shape.reference_grid
        reference = None if grid is None else (list(runs).index("reference"), grid)
        return cls(tuple(runs.values()), shape.grid, reference)

    def cut(self, *, target_ref: bool) -> tuple[Segment, ...]:
        """Runs and grids in packed order, as tiles are cut; with `target_ref` the reference video is a grid too."""
        segments: list[Segment] = [*self.runs, self.grid]
        if target_ref and self.reference is not None:
            number, grid = self.reference
            segments[number] = grid
        return tuple(segments)

    @property
    def rows(self) -> int:
        return sum(self.runs) + self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class Sparsity:
    """Which share of the video tiles is kept, in percent, and where attention stays dense all the same.

    With `target_ref` the reference video's tiles compete with the target's, and the share is one of both together.
    """

    keep: float
    dense_first_steps: int = 0
    dense_layers: frozenset[int] = frozenset()
    target_ref: bool = False


class PreparedAttention(Protocol):
    """A sparse attention for one arrangement of rows, on one device."""

    @property
    def order(self) -> Tensor:
        """[S] long, the packed row at every place of the order it works in; blocks run in that order throughout."""

    def at(self, step: int) -> LayerAttention | None:
        """The attention of a denoising step, counted from 0; None where the step is dense."""


class ClipAttention(Protocol):
    """A sparse attention, before it knows the rows."""

    def prepare(self, segments: RowSegments, device: torch.device) -> PreparedAttention:
        """Tiles and index lists of one arrangement of rows; made once per clip and guidance branch."""

    def working_bytes(self, segments: RowSegments, heads: int, head_dim: int, itemsize: int) -> int:
        """Device bytes that one layer's call works with beside q, k, v and the gate."""

    def facts(self) -> dict[str, Any]:
        """What the run report says about it; known before the render."""

    def found(self) -> dict[str, Any]:
        """Entries of the run report that only the render can tell."""


@dataclass(frozen=True)
class Decision:
    """Sparse or dense (None), and what a person should know about it."""

    sparsity: Sparsity | None
    warnings: tuple[str, ...] = ()


def decide(
    mode: str,
    recipe: Recipe,
    *,
    gated: bool,
    rows: int,
    keep: float = 0.0,
    trained: float | None = None,
    dense_first_steps: int = 0,
    dense_layers: frozenset[int] = frozenset(),
    min_rows: int = MIN_ROWS,
    reference: bool = False,
) -> Decision:
    """Which attention a clip gets. `keep` 0 means what the checkpoint was trained with: `trained`, else the recipe's.

    `gated` says whether the model has the gates of the compression branch, `reference` whether there is a reference video.
    Raises `RenderError` for an unknown mode or share, and for a mode that needs a reference video.
    """
    if mode not in MODES:
        raise RenderError(f"attention_mode is {mode!r}; choose one of {', '.join(MODES)}")
    if not 0.0 <= keep <= 100.0:
        raise RenderError(
            f"vsa_keep_percent is {keep}; a share from 0 to 100 is needed. Set 0 for what the model was made for"
        )
    if mode == VSA_TARGET_REF and not reference:
        raise RenderError(
            f"attention_mode is {mode!r}, and there is no reference video to tile; connect 'clip', or choose {VSA!r}"
        )
    made_for = (trained or recipe.keep) if gated else None
    warnings = []
    if mode == DENSE or (mode == AUTO and made_for is None):
        if made_for:
            warnings.append(
                f"this checkpoint was trained to attend to {made_for:g} % of the video tiles and is rendered with dense "
                "attention; choose 'auto' for what it was made for"
            )
        return Decision(None, tuple(warnings))
    if rows < min_rows:
        return Decision(None, (f"{rows:,} rows are fewer than vsa_min_rows ({min_rows:,}): attention is dense",))
    share = keep or made_for
    if not share:
        raise RenderError(
            f"attention_mode is {mode!r}, and this checkpoint was not trained for it; set vsa_keep_percent, or 'dense'"
        )
    target_ref = mode == VSA_TARGET_REF
    if target_ref:
        warnings.append(UNTRAINED)
    if made_for is None:
        warnings.append(
            f"this checkpoint was trained with dense attention and is rendered with {share:g} % of the video tiles; expect errors"
        )
    elif abs(share - made_for) > 1e-6:
        warnings.append(
            f"this checkpoint was trained to attend to {made_for:g} % of the video tiles and is rendered with {share:g} %"
        )
    if share >= 100.0 and not gated:
        return Decision(None, tuple(warnings))
    return Decision(Sparsity(share, dense_first_steps, dense_layers, target_ref), tuple(warnings))


def layer_numbers(text: str, layers: int) -> frozenset[int]:
    """Numbers of layers from a list such as "0, 1, 48-49". Raises `RenderError` for what is none."""
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
        first, _, last = part.partition("-")
        try:
            numbers = range(int(first), int(last or first) + 1)
        except ValueError:
            numbers = range(0)
        if not numbers or numbers.stop > layers:
            raise RenderError(
                f"vsa_dense_layers holds {part!r}; numbers from 0 to {layers - 1} are needed. Write for example 0, 1, 48-49"
            )
        found.update(numbers)
    return frozenset(found)
