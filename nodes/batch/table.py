"""The end of a batch in rows: what became of every clip, look and seed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .graph import BASE
from .tracker import State, Track

COLUMNS = ("clip", "look", "seed", "state", "frames", "seconds", "file", "error")


def rows(tracks: Sequence[Track]) -> list[dict[str, Any]]:
    """One row per job with the entries of `COLUMNS`."""
    found = []
    for track in tracks:
        item, saved = track.job.item, track.saved
        file = f"{BASE}/{track.job.folder}/{saved.file}" if saved else ""
        made = (saved.frames, saved.seconds) if saved else (None, None)
        values = (item.clip.name, item.look.name, item.seed, track.state.value, *made, file, track.error)
        found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


def as_text(tracks: Sequence[Track], width: int | None = None) -> str:
    """The table and a line of totals; errors are cut to the terminal's width."""
    width = width or max(100, shutil.get_terminal_size((140, 24)).columns)
    lines = [list(COLUMNS)]
    for row in rows(tracks):
        lines.append(["" if row[name] is None else _word(row[name]) for name in COLUMNS])
    shown = [k for k, name in enumerate(COLUMNS) if k < 4 or any(line[k] for line in lines[1:])]
    sizes = {k: max(len(line[k]) for line in lines) for k in shown}
    right = {COLUMNS.index(name) for name in ("seed", "frames", "seconds")}
    text = []
    for line in lines:
        cells = [line[k].rjust(sizes[k]) if k in right else line[k].ljust(sizes[k]) for k in shown]
        whole = "  ".join(cells).rstrip()
        text.append(whole if len(whole) <= width else whole[: width - 3] + "...")
    return "\n".join([*text, totals(tracks)])


def _word(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def totals(tracks: Sequence[Track]) -> str:
    """How many ended how, in words."""
    counts = Counter(track.state for track in tracks)
    parts = [f"{counts[state]} {state.value}" for state in State if counts[state]]
    return f"{len(tracks)} renders: {', '.join(parts)}"


def exit_code(tracks: Sequence[Track]) -> int:
    """0 when every video is there, else 1."""
    return 0 if all(track.state.good for track in tracks) else 1
