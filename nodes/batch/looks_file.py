"""The looks file: a JSON list of looks, each a name with a prompt and a picture, read and checked as a whole.

    {"looks": [
        {"name": "noon", "prompt": "subject_definitions: ...", "picture": "noon.jpg"},
        {"name": "dusk", "prompt_file": "dusk.txt", "picture": "pictures/{clip}_dusk.png"}
    ]}

Paths begin in the folder of the file. `{clip}` in a path stands for the name of the clip, because a picture should show the first
frame of its clip. What a look does not say comes from the workflow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BatchError

KEYS = ("name", "prompt", "prompt_file", "picture")
CLIP = "{clip}"
EXAMPLE = '{"looks": [{"name": "noon", "prompt": "...", "picture": "noon.jpg"}]}'


@dataclass(frozen=True)
class LookSpec:
    """One look of the file. Of prompt and picture None is left to the workflow; paths may hold `{clip}`."""

    name: str
    prompt: str | None = None
    prompt_file: str | None = None
    picture: str | None = None
    folder: Path = Path()

    def words(self, clip: str) -> str | None:
        """The prompt for the clip of this name."""
        if self.prompt_file is None:
            return self.prompt
        return self._path(self.prompt_file, clip).read_text(encoding="utf-8").strip()

    def picture_path(self, clip: str) -> Path | None:
        """The picture file for the clip of this name."""
        return None if self.picture is None else self._path(self.picture, clip)

    def files(self, clip: str) -> list[Path]:
        """Every file that this look needs for the clip of this name."""
        return [self._path(text, clip) for text in (self.prompt_file, self.picture) if text is not None]

    def _path(self, text: str, clip: str) -> Path:
        return self.folder / Path(text.replace(CLIP, clip)).expanduser()


def read_looks(path: Path) -> tuple[LookSpec, ...]:
    """The looks of a file, in order. Raises `BatchError` that names the file, the look and the remedy."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BatchError(
            f"the looks file {path} cannot be read ({error.strerror or error}); give a JSON file such as {EXAMPLE}"
        ) from None
    except ValueError as error:
        raise BatchError(f"the looks file {path} is no JSON ({error}); it looks like {EXAMPLE}") from None
    entries = data.get("looks") if isinstance(data, dict) else data
    if not isinstance(entries, list) or not entries:
        raise BatchError(f'the looks file {path} has no list "looks" with a look in it; it looks like {EXAMPLE}')
    looks = tuple(_look(entry, number, path) for number, entry in enumerate(entries, start=1))
    names = [look.name for look in looks]
    for name in names:
        if names.count(name) > 1:
            raise BatchError(f"the looks file {path} has two looks called {name!r}; outputs go by name, rename one")
    return looks


def _look(entry: Any, number: int, path: Path) -> LookSpec:
    where = f"the looks file {path}, look {number}"
    if not isinstance(entry, dict):
        raise BatchError(f"{where}: {json.dumps(entry)[:60]} arrived; a look is an object with {', '.join(KEYS)}")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise BatchError(f'{where} has no name; add "name": outputs are called after it')
    where += f" ({name})"
    if unknown := [key for key in entry if key not in KEYS]:
        raise BatchError(f"{where}: {unknown[0]!r} is not known; a look has {', '.join(KEYS)}. Remove or correct it")
    values = {key: entry[key] for key in KEYS[1:] if entry.get(key) is not None}
    for key, value in values.items():
        if not isinstance(value, str) or not value.strip():
            raise BatchError(f"{where}: {key} is {json.dumps(value)[:60]}; a text is needed, or leave {key} out")
    if "prompt" in values and "prompt_file" in values:
        raise BatchError(f"{where} has both prompt and prompt_file; keep one of them")
    return LookSpec(name.strip(), folder=path.resolve().parent, **values)


def require_files(looks: Sequence[LookSpec], clips: Sequence[str]) -> None:
    """Raise `BatchError` unless every file that the looks name is there for every clip."""
    missing = dict.fromkeys(file for look in looks for clip in clips for file in look.files(clip) if not file.is_file())
    if missing:
        first = next(iter(missing))
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BatchError(f"the looks need {first}{others}, which is not there; put it there or correct the looks file")
