"""The palette report of the command line and the node: everything about a clip in one dictionary, and its labels as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .audit import audit
from .clip import SemanticClip, clip_from_video
from .palette import Palette, load_palette
from .reader import Rate


def palette_report(
    path: str | Path, palette: str | Palette = "racing", repair: str = "auto", fps: Rate | None = None
) -> dict[str, Any]:
    """The report of a clip on disk, ready for JSON. Raises `ClipError` or `PaletteError` when it cannot be read at all."""
    colours = palette if isinstance(palette, Palette) else load_palette(palette)
    return clip_report(clip_from_video(path, colours, fps=fps, repair=repair))


def clip_report(clip: SemanticClip) -> dict[str, Any]:
    """The report of an open clip: shares are of all pixels, `source_index` is the source frame of each output frame."""
    found = audit(clip)
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
        "reading": found.reading,
        "exact_share": found.legend.exact,
        "near_share": found.near,
        "doubtful_share": found.legend.doubtful,
        "classes": found.legend.shares,
        "unknown_colours": [{"rgb": list(rgb), "share": share} for rgb, share in found.unknown],
        "damaged_classes": list(found.damaged),
        "flickering_classes": list(found.flickering),
        "doubtful_per_frame": list(found.doubtful_frames),
    }


def write_labels(clip: SemanticClip, folder: str | Path) -> int:
    """Write one 8-bit grey PNG of class ids per 24 fps frame, at source size, as 00000.png ...; the number written."""
    from PIL import Image

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    for count, ids in enumerate(clip.open(), start=1):
        Image.fromarray(ids).save(target / f"{count - 1:05d}.png")
    return count
