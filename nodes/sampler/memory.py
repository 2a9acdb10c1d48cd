"""How many bytes a render works with, part by part, from sizes alone: nothing is loaded to know them.

Upper estimates of what is alive at the same time; the parts follow the code of the network and the codecs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model import H3Config
from ..schedule import Geometry, Schedule, TilePlan, row_plan
from .bank import FP8, SANDWICH
from .bank_forms import tail_rows
from .network import PREFIX

FLOAT8_ITEMSIZE = 1
BANK_SCALE_ITEMSIZE = 2  # one bf16 scale per row and head of an fp8 bank
RELEASE_TEXT_ROWS = 3000  # 1016 rows of picture and the prompt StreamRender-H3 ships with


@dataclass(frozen=True)
class Rows:
    """Rows of the three kinds of forward: the whole first window, the prefix alone, the moving rows against the prefix."""

    bootstrap: int
    prefix: int
    moving: int

    @classmethod
    def of(cls, schedule: Schedule, geometry: Geometry, text_rows: int) -> Rows:
        """Moving rows differ by a few from chunk to chunk; the largest of the first cycle counts."""
        first = row_plan(schedule.window_at(0), geometry, text_rows)
        later = [row_plan(schedule.window_at(k), geometry, text_rows) for k in range(1, 7)]
        return cls(first.total, later[0].prefix_count, max(plan.moving_count for plan in later))


def bank_bytes(config: H3Config, prefix_rows: int, banks: int, itemsize: int) -> int:
    """Keys and values of `prefix_rows` in every layer, once per step and branch: 2 * layers * heads * head_dim each."""
    values = 2 * config.layers * config.inner * prefix_rows * banks * itemsize
    scales = 2 * config.layers * config.heads * prefix_rows * banks * BANK_SCALE_ITEMSIZE
    return values + (scales if itemsize == FLOAT8_ITEMSIZE else 0)


def room_bytes(config: H3Config, rows: Rows, form: str, itemsize: int) -> int:
    """Keys and values beside the banks: of the moving rows in every layer, or of one layer that all take in turn.

    A split bank is joined with its moving rows where the attention cannot merge two results; that is counted.
    """
    row = 2 * config.inner * itemsize
    if form == SANDWICH:
        return config.layers * tail_rows(rows.moving) * row
    if form == FP8:
        return tail_rows(rows.prefix + rows.moving) * row
    return (tail_rows(rows.moving) + rows.prefix + rows.moving) * row


def window_bytes(config: H3Config, plan: TilePlan, rows: Rows, banks: int, itemsize: int) -> int:
    """What a sparse window (an experiment) works with: float32 means of the banks' tiles in every layer, and of one layer the
    means, scores (twice) and lists of the window, keys and values joined, and the attention to what every row sees."""
    keys, queries = len(plan.keys), len(plan.queries)
    kept = banks * config.layers * config.inner * (keys - queries)
    working = config.inner * (keys + queries) + 3 * config.heads * queries * keys
    return 4 * (kept + working) + config.inner * (rows.moving + 2 * (rows.prefix + rows.moving)) * itemsize


def activation_bytes(config: H3Config, rows: int, itemsize: int) -> int:
    """One block over `rows` rows: the wider of its attention and its MLP, with the hidden rows that outlive both.

    Attention holds q, k, v, their normalised and rotated copies and the float32 of a norm; the MLP both halves, the gated
    product and its parts. Positions and row indices are small beside them.
    """
    attention = 2 * config.hidden + 10 * config.inner
    mlp = 3 * config.hidden + 4 * config.ffn
    return rows * (2 * config.hidden + max(attention, mlp)) * itemsize


def table_bytes(config: H3Config, times: int, itemsize: int) -> int:
    """AdaLN lookup tables of `times` noise levels."""
    return times * config.hidden * (18 * config.layers + 2) * itemsize


def forward_bytes(config: H3Config, rows: Rows, banks: int, attention: str, itemsize: int) -> dict[str, int]:
    """Bytes alive during each kind of forward, beside the weights; `banks` are those of the banks with their room."""
    needs = {"bootstrap": activation_bytes(config, rows.bootstrap, itemsize)}
    if attention != PREFIX:
        needs["window"] = activation_bytes(config, max(rows.bootstrap, rows.prefix + rows.moving), itemsize)
        return needs
    needs["prefix"] = banks + activation_bytes(config, rows.prefix, itemsize)
    needs["continuation"] = banks + activation_bytes(config, rows.moving, itemsize)
    return needs


# ------------------------------------------------------------------------------------------------------------- codecs


@dataclass(frozen=True)
class Need:
    """Bytes of something that runs beside the transformer: its weights, and what it works with."""

    weights: int = 0
    working: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.working


TAE_DECODE_VALUES, TAE_ENCODE_VALUES, VIT_VALUES = 650, 160, 250  # numbers alive per pixel of a frame
VIT_RING_SLOTS = 6
LATENT_PIXELS = 16


def decoder_working(size: tuple[int, int], itemsize: int, ring: tuple[int, int] | None = None) -> int:
    """What a decoder keeps and works with at `size`; `ring` (layers, width) is the causal ViT's, None stands for a TAE."""
    pixels = size[0] * size[1]
    if ring is None:
        return TAE_DECODE_VALUES * pixels * itemsize
    layers, width = ring
    keys_and_values = 2 * VIT_RING_SLOTS * layers * width * (pixels // LATENT_PIXELS**2) * itemsize
    return keys_and_values + VIT_VALUES * pixels * itemsize


def encoder_working(sizes: tuple[tuple[int, int], ...], itemsize: int) -> int:
    """What the encoder works with, one frame of the largest of `sizes` at a time."""
    return TAE_ENCODE_VALUES * max(height * width for height, width in sizes) * itemsize
