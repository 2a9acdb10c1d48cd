"""The host's model folders, and the example files that the pack brings: what can be picked, and where it lies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .names import ASSETS, EXAMPLE


def model_names(kind: str, also: tuple[str, ...] = ()) -> list[str]:
    """Files a person can pick: those of the host's model folder `kind`, then the pack's own example files."""
    import folder_paths

    names: list[str] = []
    for folder in (kind, *also):
        names += [n for n in folder_paths.get_filename_list(folder) if n.endswith((".safetensors", ".json"))]
    bundled = sorted((ASSETS / kind).glob("*.safetensors")) if (ASSETS / kind).is_dir() else []
    first = [path.name for path in bundled if "-of-" not in path.name or "-00001-of-" in path.name]
    return [*dict.fromkeys(names), *(EXAMPLE + name for name in first)]


def model_path(name: str, kind: str, also: tuple[str, ...] = ()) -> Path:
    """Where the file picked from `model_names` lies. Raises `FileNotFoundError` naming the folder to put it in."""
    import folder_paths

    if name.startswith(EXAMPLE) and (ASSETS / kind / name.removeprefix(EXAMPLE)).is_file():
        return ASSETS / kind / name.removeprefix(EXAMPLE)
    for folder in (kind, *also):
        found = folder_paths.get_full_path(folder, name)
        if found:
            return Path(found)
    places = folder_paths.get_folder_paths(kind)
    place = next((place for place in places if Path(place).name == kind), places[0])  # some kinds have older names too
    raise FileNotFoundError(
        f"model file {name!r} is not there; put it into {place} and refresh the page, or pick another file"
    )


def model_folders(kinds: Sequence[str]) -> list[str]:
    """Every folder the host looks into for files of these kinds, then the pack's own."""
    import folder_paths

    places = [place for kind in kinds for place in folder_paths.get_folder_paths(kind)]
    return [*dict.fromkeys(places), *(str(ASSETS / kind) for kind in kinds if (ASSETS / kind).is_dir())]


def text_encoder_folders() -> list[str]:
    """Hugging Face style folders (with a config.json) below the host's text encoder folders, then the example's."""
    import folder_paths

    names = []
    for base in folder_paths.get_folder_paths("text_encoders"):
        if os.path.isdir(base):
            names += sorted(entry.name for entry in Path(base).iterdir() if (entry / "config.json").is_file())
    bundled = ASSETS / "text_encoders"
    if bundled.is_dir():
        names += sorted(EXAMPLE + entry.name for entry in bundled.iterdir() if (entry / "config.json").is_file())
    return list(dict.fromkeys(names))


def text_encoder_path(name: str) -> Path:
    """The folder picked from `text_encoder_folders`."""
    import folder_paths

    bases = (
        [str(ASSETS / "text_encoders")] if name.startswith(EXAMPLE) else folder_paths.get_folder_paths("text_encoders")
    )
    for base in bases:
        folder = Path(base) / name.removeprefix(EXAMPLE)
        if (folder / "config.json").is_file():
            return folder
    raise FileNotFoundError(
        f"text encoder folder {name!r} is not there; put the Qwen3-VL folder (with its config.json) into {bases[0]}"
    )


def new_model_path(name: str, kind: str) -> Path:
    """A path for a new model file in the host's folder `kind`. Raises `ValueError` for a name that is no plain name."""
    import folder_paths

    stem = name.strip().removesuffix(".safetensors")
    if not stem or stem != Path(stem).name or stem in (".", "..") or any(sign in stem for sign in '\\/:*?"<>|'):
        raise ValueError(f"the name {name!r} arrived; a plain file name without folders is needed, such as 'h3_tables'")
    places = folder_paths.get_folder_paths(kind)
    folder = Path(next((place for place in places if Path(place).name == kind), places[0]))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{stem}.safetensors"
