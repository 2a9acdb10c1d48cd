"""Looks and text states as safetensors files: ``prompt_embeds``, ``token_tags`` and, in a saved look, the picture.

The picture is ``picture_latent`` float32 (clean) or ``picture_rgb`` uint8. Everything else is JSON text under one
metadata key (specification: conditioning 5.2). Such a file lets a machine without the text encoder render.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from torch import Tensor

from .look import Look, LookError, TextStates, make_look

FORMAT = "streamrender-h3-look"
VERSION = 1


def save_states(path: str | Path, states: TextStates) -> None:
    """Write text states (or a Look) to ``path``, whole or not at all; an existing file is replaced."""
    from safetensors.torch import save_file

    path = Path(path)
    tensors = {"prompt_embeds": states.text, "token_tags": states.tags}
    about = {"format": FORMAT, "version": VERSION, "media_prefix_length": states.media_rows}
    if isinstance(states, Look):
        about |= {"prompt": states.prompt, "note": states.note}
        if states.picture is not None:
            tensors["picture_latent"] = states.picture
        if states.rgb is not None:
            tensors["picture_rgb"] = states.rgb
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial, _pack(about))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load_states(path: str | Path) -> TextStates:
    """Read text states; the picture of a saved look is ignored. Raises LookError for anything but such a file."""
    tensors, about = _read(Path(path))
    return _states(tensors, about)


def save_look(path: str | Path, look: Look) -> None:
    """Write a look, picture included, so that it renders without the text encoder."""
    save_states(path, look)


def load_look(path: str | Path) -> Look:
    """Read a saved look. Raises LookError when the file is not one, or holds text states without a picture."""
    tensors, about = _read(Path(path))
    return make_look(
        _states(tensors, about),
        picture=tensors.get("picture_latent"),
        rgb=tensors.get("picture_rgb"),
        prompt=str(about.get("prompt", "")),
        note=str(about.get("note", "")),
    )


def _pack(about: dict) -> dict[str, str]:
    return {"look": json.dumps(about, sort_keys=True)}


def _read(path: Path) -> tuple[dict[str, Tensor], dict]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise LookError(f"The look file {path} is not there; a saved look is needed. Check the path.")
    try:
        with safe_open(path, framework="pt") as stored:
            about = json.loads((stored.metadata() or {}).get("look", "null"))
            # Cloned, so that nothing points into the file when it is replaced.
            tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise LookError(
            f"The look file {path} could not be read ({error}); a saved look is needed. Save it again."
        ) from error
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != VERSION:
        raise LookError(
            f"The file {path} is not a look of version {VERSION}; a file written by this pack is needed. "
            "Save the look again."
        )
    return tensors, about


def _states(tensors: dict[str, Tensor], about: dict) -> TextStates:
    missing = sorted({"prompt_embeds", "token_tags"} - tensors.keys())
    rows = about.get("media_prefix_length")
    if missing or not isinstance(rows, int):
        raise LookError(
            f"The look file lacks {missing[0] if missing else 'media_prefix_length'}; text states, tags and the "
            "picture prefix are needed. Save the look again."
        )
    return TextStates(tensors["prompt_embeds"], tensors["token_tags"], rows)
