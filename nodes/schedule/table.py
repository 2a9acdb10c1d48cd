"""The plan of a stream as a table: one line per chunk, for people and for programs."""

from __future__ import annotations

from typing import TypedDict

from .errors import whole_number
from .rows import Geometry, row_plan
from .schedule import Schedule
from .window import pair_decoder_frames


class PlanEntry(TypedDict):
    """One chunk; two-element lists of bounds are half open, `next_counts` is [latents, frames]."""

    chunk: int
    units: list[int]
    latents: list[int]
    frames: list[int]
    next_counts: list[int]
    prefix_count: int
    moving_count: int
    decoder_pair_frames: list[int]


def plan_table(schedule: Schedule, geometry: Geometry, text_rows: int, chunks: int) -> list[PlanEntry]:
    """The first `chunks` chunks, ready for JSON."""
    whole_number("chunks", chunks, 1, "Ask for at least one chunk.")
    table: list[PlanEntry] = []
    for index in range(chunks):
        window = schedule.window_at(index)
        rows = row_plan(window, geometry, text_rows)
        table.append(
            {
                "chunk": index,
                "units": _bounds(window.units),
                "latents": _bounds(window.latents),
                "frames": _bounds(window.frames),
                "next_counts": list(window.next_counts),
                "prefix_count": rows.prefix_count,
                "moving_count": rows.moving_count,
                "decoder_pair_frames": _bounds(pair_decoder_frames(window)),
            }
        )
    return table


def format_table(rows: list[PlanEntry]) -> str:
    """`plan_table` as fixed-width text; spans are written first-last (count)."""
    head = ("chunk", "units", "latents", "frames", "prefix rows", "moving rows", "decoded frames")
    lines = [head]
    for row in rows:
        lines.append(
            (
                str(row["chunk"]),
                _span(row["units"]),
                _span(row["latents"]),
                _span(row["frames"]),
                f"{row['prefix_count']:,}",
                f"{row['moving_count']:,}",
                _span(row["decoder_pair_frames"]),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _bounds(span: range) -> list[int]:
    return [span.start, span.stop]


def _span(bounds: list[int]) -> str:
    first, stop = bounds
    return f"{first}-{stop - 1} ({stop - first:2})" if first < stop else "- ( 0)"
