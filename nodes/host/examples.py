"""The example clip and pictures in the host's input folder, so that the shipped graphs open ready to run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path

from .names import ASSETS, PACK

EXAMPLE_INPUTS = (
    *("semantic_clip.mp4", "picture.jpg", "picture_blue_hour.jpg"),
    *("looks.json", "prompt.txt", "prompt_blue_hour.txt", "picture_blue_hour_start.jpg"),
)
PROVIDED = ".provided.json"  # name -> sha256 of the file as we put it there

log = logging.getLogger(PACK)


def provide_example_inputs() -> None:
    """Put the pack's example files into the host's input folder; an older version of ours is replaced.

    A file that a person put there or changed is never touched: only one that is still exactly what was provided before is.
    """
    import folder_paths

    target = Path(folder_paths.get_input_directory()) / PACK
    provided = _read(target / PROVIDED)
    known = dict(provided)
    for name in EXAMPLE_INPUTS:
        try:
            if not (ASSETS / name).is_file():
                continue
            ours, there = _hash(ASSETS / name), _hash(target / name)
            if there not in (None, ours, provided.get(name)):
                continue  # a person's
            if there != ours:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ASSETS / name, target / f"{name}.part")
                os.replace(target / f"{name}.part", target / name)
            known[name] = ours
        except OSError as error:
            log.warning("the example file %s could not be copied to %s: %s", name, target, error)
    if known != provided:
        try:
            (target / PROVIDED).write_text(json.dumps(known, indent=1), encoding="utf-8")
        except OSError as error:
            log.warning("%s cannot be written: %s", target / PROVIDED, error)


def _read(path: Path) -> dict[str, str | None]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _hash(path: Path) -> str | None:
    """sha256 of a file, None where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
