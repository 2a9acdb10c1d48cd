"""The frames of a folder by their names: one numbered series, in the order of its numbers, with its gaps known."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from .errors import ClipError, Trouble

MISSING_FRAMES = "missing frames"
FRAME_NUMBERS = "frame numbers"

# With more holes than this share of the numbers, the numbers do not count frames.
MOST_MISSING = 0.25


@dataclass(frozen=True)
class Series:
    """`files` in order; `slots[i]` is the moment of file i in frames after the first, so that a hole is a step of 2 or more."""

    files: tuple[Path, ...]
    slots: tuple[int, ...]
    troubles: tuple[Trouble, ...] = ()

    @property
    def length(self) -> int:
        """Frames from the first number to the last, the missing ones counted."""
        return self.slots[-1] + 1

    def shown_at(self) -> list[int]:
        """For every moment the index of the file on screen: the latest at or before it."""
        shown, index = [], 0
        for moment in range(self.length):
            while index + 1 < len(self.slots) and self.slots[index + 1] <= moment:
                index += 1
            shown.append(index)
        return shown


def series_of(files: Sequence[Path], name: str) -> Series:
    """The one series that `files` are. Raises `ClipError` where they are several, or a number comes twice; `name` says whose.

    Numbers may have any step (every second frame); a few missing ones are holes, in which the frame before stays on.
    """
    ordered = sorted(files, key=lambda file: natural_key(file.name))
    groups: dict[str, list[Path]] = defaultdict(list)
    for file in ordered:
        groups[re.sub(r"\d+", "#", file.stem.lower())].append(file)
    if len(groups) > 1 and max(map(len, groups.values())) > 1:
        listed = ", ".join(f"'{pattern}' ({len(members)})" for pattern, members in list(groups.items())[:6])
        raise ClipError(
            f"{name} holds images of {len(groups)} kinds, {listed}; the frames of one clip are needed. Move everything else "
            f"to another folder."
        )
    consecutive = tuple(range(len(ordered)))
    numbers = _numbers(ordered) if len(groups) == 1 else None
    if numbers is None:
        return Series(tuple(ordered), consecutive)
    for number, count in Counter(numbers).items():
        if count > 1:
            twice = ", ".join(f"'{file.name}'" for file, own in zip(ordered, numbers, strict=True) if own == number)
            raise ClipError(f"{name} has frame {number} {count} times ({twice}); one is needed. Remove the other.")
    return _with_holes(tuple(ordered), numbers)


def _with_holes(files: tuple[Path, ...], numbers: list[int]) -> Series:
    consecutive = tuple(range(len(files)))
    steps = Counter(after - before for before, after in pairwise(numbers))
    if len(steps) < 2:
        return Series(files, consecutive)
    step = steps.most_common(1)[0][0]
    regular = all(own % step == 0 for own in steps)
    slots = tuple((number - numbers[0]) // step for number in numbers)
    missing = slots[-1] + 1 - len(files)
    if not regular or missing > MOST_MISSING * (slots[-1] + 1):
        before, after = max(pairwise(numbers), key=lambda pair: pair[1] - pair[0])
        trouble = Trouble(
            FRAME_NUMBERS,
            f"the numbers of the files step unevenly (from {before} to {after}); the files are taken as consecutive frames",
            "Check that no frames are missing, or number them without gaps.",
        )
        return Series(files, consecutive, (trouble,))
    there = set(slots)
    holes = [numbers[0] + step * slot for slot in range(slots[-1]) if slot not in there]
    listed = ", ".join(map(str, holes[:8])) + (", ..." if len(holes) > 8 else "")
    trouble = Trouble(
        MISSING_FRAMES,
        f"{len(holes)} frames of the folder are missing ({listed}); the frame before each stays on",
        "Export the missing frames.",
    )
    return Series(files, slots, (trouble,))


def _numbers(files: Sequence[Path]) -> list[int] | None:
    """The frame numbers of names that differ in one number; None where none or several differ."""
    rows = [[int(part) for part in re.findall(r"\d+", file.stem)] for file in files]
    varying = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
    if len(files) > 1 and not varying and rows[0]:
        varying = [tuple(row[-1] for row in rows)]  # 1.png, 01.png
    return list(varying[0]) if len(varying) == 1 else None


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key that orders numbers inside names by value."""
    parts = re.split(r"(\d+)", name.lower())
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]
