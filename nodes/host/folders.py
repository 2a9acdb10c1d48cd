"""The host's folders for what people put in, for what comes out, and for what is kept or thrown away in between."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .names import PACK

CLAIM_SECONDS = 3600  # how long the number of an output file stays claimed by a render that wrote nothing


def input_path(name: str) -> Path:
    """A file or folder that a person named: an absolute path as it is, another one below the host's input folder."""
    import folder_paths

    return Path(folder_paths.get_input_directory()) / Path(name.strip().strip('"')).expanduser()


def user_palettes() -> list[str]:
    """Names of the palette files that people put into the input folder."""
    folder = input_path(f"{PACK}/palettes")
    return sorted(file.name for file in folder.glob("*.json")) if folder.is_dir() else []


def user_palette(name: str) -> Path | None:
    """The palette file picked from `user_palettes`; None for another name."""
    return input_path(f"{PACK}/palettes/{name}") if name in user_palettes() else None


def cache_folder(name: str) -> Path:
    """A folder below the host's user folder for results worth keeping, such as encoded looks."""
    import folder_paths

    folder = Path(folder_paths.get_user_directory()) / PACK / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def temporary_folder() -> Path:
    """A new folder name in the host's temporary folder."""
    return temporary_file("")


def temporary_file(suffix: str) -> Path:
    """A new name in the host's temporary folder, which the host empties itself."""
    import folder_paths

    folder = Path(folder_paths.get_temp_directory()) / PACK
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{uuid.uuid4().hex}{suffix}"


def preview_folder() -> Path:
    """A name for a folder of a preview's chunks in the host's temporary folder."""
    import folder_paths

    return Path(folder_paths.get_temp_directory()) / PACK / "previews" / uuid.uuid4().hex


@contextmanager
def output_place(name: str, suffix: str) -> Iterator[Path]:
    """A path in the output folder under the next free number of `name`, which no other render gets; for files and folders.

    A path where nothing was put is free again. Raises `ValueError` for a name that leaves the folder.
    """
    folder, stem = _named_place(name)
    folder.mkdir(parents=True, exist_ok=True)
    taken = (path.stem.rpartition("_")[2] for path in output_files(name))
    number = 1 + max(map(int, taken), default=0)
    while True:
        claim = folder / f".{stem}_{number:05}.claim"
        target = folder / f"{stem}_{number:05}{suffix}"
        try:
            claim.open("x").close()
        except FileExistsError:
            if time.time() - claim.stat().st_mtime < CLAIM_SECONDS:
                number += 1
                continue
            claim.unlink(missing_ok=True)  # left behind by a process that was killed
            continue
        try:
            yield target
        finally:
            claim.unlink(missing_ok=True)
        return


def output_files(name: str) -> list[Path]:
    """What earlier calls of `output_place` were given for `name`, of any suffix, by number."""
    folder, stem = _named_place(name)
    numbered = re.compile(re.escape(stem) + r"_\d+")
    return sorted(path for path in folder.glob("*") if numbered.fullmatch(path.stem) and not path.name.startswith("."))


def output_subfolder(name: str) -> Path | None:
    """A folder below the pack's own in the output folder; None for a name that leaves it."""
    import folder_paths

    base = (Path(folder_paths.get_output_directory()) / PACK).resolve()
    place = (base / name).resolve()
    return place if place.is_relative_to(base) else None


def _named_place(name: str) -> tuple[Path, str]:
    subfolder, _, stem = name.replace("\\", "/").rpartition("/")
    folder = output_subfolder(subfolder)
    if folder is None or not stem or stem in (".", "..") or any(sign in stem for sign in ':*?"<>|'):
        raise ValueError(
            f"the name {name!r} arrived; a file name is needed, with folders if you like, such as 'night/clip_noon'"
        )
    return folder, stem


def viewable(path: Path) -> dict[str, str] | None:
    """How the host's /view route names a file of its output or temporary folder; None for a file elsewhere."""
    import folder_paths

    folders = {"output": folder_paths.get_output_directory(), "temp": folder_paths.get_temp_directory()}
    for kind, folder in folders.items():
        base, place = Path(folder).resolve(), path.resolve()
        if place.is_relative_to(base):
            subfolder = place.parent.relative_to(base).as_posix()
            return {"filename": place.name, "subfolder": "" if subfolder == "." else subfolder, "type": kind}
    return None
