"""How many bytes a render works with beside the weights: prefix bank and activations, from the plan alone."""

from __future__ import annotations

from ..model import H3Config
from ..schedule import Geometry, Schedule, row_plan
from .network import PREFIX


def bank_bytes(config: H3Config, prefix_rows: int, banks: int, itemsize: int) -> int:
    """Keys and values of `prefix_rows` in every layer, once per step and branch: 2 * layers * heads * head_dim each."""
    return 2 * config.layers * config.inner * prefix_rows * banks * itemsize


def working_bytes(
    config: H3Config,
    schedule: Schedule,
    geometry: Geometry,
    text_rows: int,
    steps: int,
    branches: int,
    attention: str,
    itemsize: int,
) -> int:
    """Bytes a render needs on the device beside the weights, an upper estimate.

    The widest forward holds about the hidden rows four times, queries, keys, values and their rotated copies, and both
    halves of the feed-forward; continuations join bank and moving rows once per layer.
    """
    first, later = (row_plan(schedule.window_at(k), geometry, text_rows) for k in (0, 1))
    per_row = 6 * config.hidden + 7 * config.inner + 3 * config.ffn
    rows = max(first.total, later.total)
    banks = bank_bytes(config, later.prefix_count, steps * branches, itemsize) if attention == PREFIX else 0
    return banks + rows * per_row * itemsize
