"""The run report as one picture: where the time went and what the chunks look like, suspect ones marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from PIL.Image import Image

WIDTH, PANEL, HEAD, LEFT, GAP = 1200, 110, 64, 150, 14
PAPER, INK, GRID, MARK = (250, 250, 248), (40, 40, 44), (214, 214, 208), (232, 120, 110)
COLOURS = ((46, 110, 166), (214, 132, 40), (74, 140, 82), (130, 96, 160))


class Panel(NamedTuple):
    """One chart: its title, and the series in it with the value that all rows give them."""

    title: str
    unit: str
    series: Mapping[str, str]  # name in the legend -> key of a report row


PANELS = (
    Panel(
        "time per chunk",
        "ms",
        {"encode": "encode_ms", "denoise": "denoise_ms", "decode": "decode_ms", "write": "write_ms"},
    ),
    Panel("contrast, saturation", "x first frames", {"contrast": "contrast_ratio", "saturation": "saturation_ratio"}),
    Panel("brightness", "levels", {"last frame": "brightness"}),
    Panel("colour drift, flash", "levels", {"colour": "colour_drift", "flash": "flash"}),
    Panel("block starts, flicker", "levels", {"block start": "block_start", "flicker": "flicker"}),
    Panel("chunk borders", "x usual change", {"seam": "seam"}),
)


def report_picture(report: Mapping[str, Any]) -> Image:
    """An RGB picture, 1200 pixels wide, of a report as `RenderReport.as_dict` gives it."""
    from PIL import Image, ImageDraw

    rows = [{**row, "denoise_ms": sum(row["step_ms"])} for row in report["chunks"]]
    picture = Image.new("RGB", (WIDTH, HEAD + len(PANELS) * (PANEL + GAP) + GAP), PAPER)
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(summary(report)):
        draw.text((GAP, 10 + 17 * number), line, fill=INK)
    marked = marks(report, rows)
    for number, panel in enumerate(PANELS):
        top = HEAD + number * (PANEL + GAP)
        _panel(draw, panel, rows, marked, top)
    return picture


def summary(report: Mapping[str, Any]) -> list[str]:
    """Two or three lines that say how it went."""
    chunks = sum(row["chunks"] for row in report["chunks"])
    memory = ", ".join(f"{name.split('_')[0]} {count / 2**30:.2f} GiB" for name, count in report["peak_memory"].items())
    first = (
        f"{report['frames']} frames in {chunks} chunks, {report['render_seconds']} s "
        f"({report['frames_per_second']} frames per second), seed {report['seed']}, peak memory: {memory or 'unknown'}"
    )
    suspects = report["suspects"]
    second = "no suspect chunk"
    if suspects:
        reasons = "; ".join(f"chunk {s['chunk']}: {s['reasons'][0]}" for s in suspects[:2])
        second = f"{report['suspect_chunks']} suspect chunks (marked): {reasons}"
    lines = [first, second]
    if report["stopped"]:
        lines.append(f"stopped early: {report['stopped']['reason']}"[:180])
    elif "look_changes_note" in report:
        lines.append(report["look_changes_note"])
    return lines


def marks(report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> set[int]:
    """Indices of the rows that hold a suspect chunk."""
    suspect = [entry["chunk"] for entry in report["suspects"]]
    return {
        index
        for index, row in enumerate(rows)
        if any(row["chunk"] <= chunk < row["chunk"] + row["chunks"] for chunk in suspect)
    }


def _panel(draw: Any, panel: Panel, rows: Sequence[Mapping[str, Any]], marked: set[int], top: int) -> None:
    values = {name: [float(row[key]) for row in rows] for name, key in panel.series.items()}
    everything = [v for series in values.values() for v in series] or [0.0]
    low, high = min(0.0, *everything), max(*everything, 1e-6)
    step = (WIDTH - LEFT - GAP) / max(1, len(rows))
    for index in marked:
        draw.rectangle((LEFT + index * step, top, LEFT + (index + 1) * step, top + PANEL), fill=(250, 224, 220))
        draw.line((LEFT + (index + 0.5) * step, top, LEFT + (index + 0.5) * step, top + 5), fill=MARK, width=2)

    def place(index: int, value: float) -> tuple[float, float]:
        return LEFT + (index + 0.5) * step, top + PANEL - (value - low) / (high - low) * (PANEL - 8)

    for value in (low, high):
        y = place(0, value)[1]
        draw.line((LEFT, y, WIDTH - GAP, y), fill=GRID)
        draw.text((LEFT - 46, y - 6), f"{value:.3g}", fill=INK)
    draw.text((GAP, top), panel.title, fill=INK)
    draw.text((GAP, top + 14), panel.unit, fill=(120, 120, 120))
    for number, (name, series) in enumerate(values.items()):
        colour = COLOURS[number]
        points = [place(index, value) for index, value in enumerate(series)]
        if len(points) > 1:
            draw.line(points, fill=colour, width=2)
        for x, y in points if len(points) == 1 else ():
            draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=colour)
        draw.text((GAP, top + 32 + 15 * number), name, fill=colour)
