"""The palette report of the command line and the node: everything about a clip in one dictionary, and its labels as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..schedule import RELEASE, Schedule
from .audit import STOP, Audit, audit
from .clip import SemanticClip, clip_from_video
from .errors import ClipError
from .palette import Palette, load_palette
from .reader import Rate

# Rows of the chunk table shown to people before and after the dots.
HEAD, TAIL = 4, 2


def palette_report(
    path: str | Path, palette: str | Palette = "racing", repair: str = "auto", fps: Rate | None = None
) -> dict[str, Any]:
    """The report of a clip on disk, ready for JSON. Raises `ClipError` or `PaletteError` when it cannot be read at all."""
    colours = palette if isinstance(palette, Palette) else load_palette(palette)
    return clip_report(clip_from_video(path, colours, fps=fps, repair=repair))


def clip_report(clip: SemanticClip, found: Audit | None = None) -> dict[str, Any]:
    """The report of an open clip, audited now or before: shares are of all pixels, `source_index` is the source frame of each
    output frame, `pixels` of an unknown colour are those of a typical frame."""
    found = found or audit(clip)
    timeline = clip.source.timeline
    return {
        "verdict": found.verdict,
        "causes": list(found.causes),
        "advice": found.advice,
        "frames_in": timeline.source_frames,
        "seconds_in": float(timeline.seconds),
        "frames": timeline.frames,
        "source_index": list(timeline.indices),
        "size": {"width": clip.size[1], "height": clip.size[0]},
        "palette": clip.drawn_in.name,
        "repair": clip.repair,
        "mapping": clip.mapping,
        "reading": found.reading,
        "exact_share": found.legend.exact,
        "near_share": found.near,
        "doubtful_share": found.legend.doubtful,
        "classes": found.legend.shares,
        "unknown_colours": [
            {"rgb": list(rgb), "share": share, "pixels": round(share * clip.size[0] * clip.size[1])}
            for rgb, share in found.unknown
        ],
        "damaged_classes": list(found.damaged),
        "flickering_classes": list(found.flickering),
        "bad_frames": list(found.bad_frames),
        "chunks": chunk_report(timeline.frames),
        "per_frame": {name: _rounded(found.survey.per_frame(name)) for name in ("exact", "near", "doubtful")}
        | {"classes": dict(zip(clip.palette.names, _rounded(found.survey.per_frame("classes").T), strict=True))},
    }


def chunk_report(frames: int, schedule: Schedule = RELEASE) -> dict[str, Any]:
    """The chunks that a clip of `frames` takes: their number, the padding, the seconds, and the frames [first, end) of each."""
    coverage = schedule.coverage(frames)
    ends = [schedule.frames_through(index) for index in range(coverage.chunks)]
    return {
        "chunks": coverage.chunks,
        "padding": coverage.padding,
        "seconds": coverage.seconds,
        "frames": [list(span) for span in zip([0, *ends[:-1]], ends, strict=True)],
    }


def chunk_lines(frames: int, schedule: Schedule = RELEASE) -> list[str]:
    """The chunk table for people, long ones shortened in the middle."""
    table = chunk_report(frames, schedule)
    rows = [
        f"chunk {index + 1}: frames {first}-{min(end, frames) - 1}"
        + (f", then {end - frames} of padding" if end > frames else "")
        + f", to {min(end, frames) / 24:.2f} s"
        for index, (first, end) in enumerate(table["frames"])
    ]
    if len(rows) > HEAD + TAIL + 1:
        rows[HEAD:-TAIL] = ["..."]
    total = f"{frames} frames, {table['chunks']} chunks, padding {table['padding']}, {table['seconds']:.2f} s"
    return [f"{total} (release schedule)", *rows]


def require_renderable(found: Audit, name: str) -> None:
    """Raise `ClipError` with the verdict, its causes and the remedy when the clip must not be rendered."""
    if found.verdict == STOP:
        said = " ".join(found.findings)
        raise ClipError(
            f"{name} cannot be rendered: the verdict is {found.headline}, with {found.legend.doubtful:.1%} doubtful pixels and "
            f"{found.legend.exact:.1%} in exact class colours. A clip in flat colours of palette '{found.legend.palette.name}' "
            f"is needed. {said}"
        )


def write_labels(clip: SemanticClip, folder: str | Path) -> int:
    """Write one 8-bit grey PNG of class ids per 24 fps frame, at source size, as 00000.png ...; the number written."""
    from PIL import Image

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    for count, ids in enumerate(clip.open(), start=1):
        Image.fromarray(ids).save(target / f"{count - 1:05d}.png")
    return count


def _rounded(values: np.ndarray) -> list[Any]:
    return np.round(values, 5).tolist()
