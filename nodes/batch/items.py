"""What a batch consists of: clips, looks and seeds, every one with every other, each with a name for its files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..palette.images import IMAGE_SUFFIXES
from ..palette.series import natural_key
from .errors import BatchError
from .looks_file import LookSpec

VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg", ".mxf", ".ts", ".ogv", ".y4m")
MAX_SEED = 2**64 - 1
MAX_ITEMS = 10_000


@dataclass(frozen=True)
class ClipSpec:
    """A clip on disk: a video file, or a folder with one picture per frame."""

    name: str
    path: Path


@dataclass(frozen=True)
class Item:
    """One render of a batch. Without a seed the workflow's own is taken."""

    clip: ClipSpec
    look: LookSpec
    seed: int | None

    @property
    def name(self) -> str:
        """What its files are called."""
        parts = [self.clip.name, self.look.name, *([] if self.seed is None else [str(self.seed)])]
        return "_".join(plain_name(part) for part in parts)


def plain_name(text: str) -> str:
    """A text as part of a file name on any system."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "unnamed"


def find_clips(folder: Path, pattern: str = "*") -> tuple[ClipSpec, ...]:
    """The clips in a folder by name: video files, arrays, and folders of pictures. One file is a batch of one.

    Raises `BatchError` where there is none.
    """
    if folder.is_file():
        return (ClipSpec(folder.stem, folder.resolve()),)
    if not folder.is_dir():
        raise BatchError(f"the clips folder {folder} does not exist; give a folder of class-colour videos")
    found = sorted(
        (path for path in folder.glob(pattern) if _is_clip(path)),
        key=lambda path: natural_key(path.relative_to(folder).as_posix()),
    )
    if not found:
        raise BatchError(
            f"the folder {folder} has no clip that fits {pattern!r}; put videos ({', '.join(VIDEO_SUFFIXES[:4])} ...) or "
            "folders of frames into it"
        )
    return tuple(ClipSpec(_name(path, folder), path.resolve()) for path in found)


def _name(path: Path, folder: Path) -> str:
    return (
        path.relative_to(folder).with_suffix("").as_posix() if path.is_file() else path.relative_to(folder).as_posix()
    )


def _is_clip(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    if path.is_dir():
        return any(file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".") for file in path.iterdir())
    return path.suffix.lower() in (*VIDEO_SUFFIXES, ".npy")


def parse_seeds(words: Sequence[str]) -> tuple[int, ...]:
    """Seeds from texts such as "1", "2,3" and "5-8", in order and each once. Raises `BatchError`."""
    found: list[int] = []
    for word in re.split(r"[\s,;]+", " ".join(words).strip()):
        if not word:
            continue
        fits = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        first, last = (int(fits[1]), int(fits[2] or fits[1])) if fits else (1, 0)
        if first > last or last > MAX_SEED:
            raise BatchError(
                f"the seed {word!r} arrived; write numbers from 0 to {MAX_SEED} or ranges, such as 1 2 5-8"
            )
        if last - first >= MAX_ITEMS:
            raise BatchError(f"the seeds {word} are {last - first + 1}; at most {MAX_ITEMS} go into one batch")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def all_items(clips: Sequence[ClipSpec], looks: Sequence[LookSpec], seeds: Sequence[int]) -> tuple[Item, ...]:
    """Every clip in every look with every seed, clip by clip. Raises `BatchError` when two would share their file names."""
    chosen: list[int | None] = [*seeds] or [None]
    count = len(clips) * len(looks) * len(chosen)
    if count > MAX_ITEMS:
        raise BatchError(f"this batch has {count} renders; at most {MAX_ITEMS} go into one. Split it by clips or seeds")
    items = tuple(Item(clip, look, seed) for clip in clips for look in looks for seed in chosen)
    names: dict[str, Item] = {}
    for item in items:
        other = names.setdefault(item.name.lower(), item)
        if other is not item:
            raise BatchError(
                f"{other.clip.path.name} in look {other.look.name!r} and {item.clip.path.name} in look {item.look.name!r} "
                f"would both be called {item.name}; rename a clip or a look"
            )
    return items
