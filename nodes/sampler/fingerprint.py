"""What makes two renders the same: named parts, so that a difference can be told by name and not only noticed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..codec import Decoder, Encoder
from ..file_hash import file_hash
from ..loader import H3Model
from ..look import Look, TextLook
from ..palette import SemanticClip
from .bank import FP8
from .clip_render import ClipInputs, ClipSettings
from .looks import LookSequence
from .render import Settings, device_of

PIXEL_STEP = 8  # of frames held in memory: every 8th row and column
DIGITS = 16

Parts = dict[str, str]


def fingerprint(
    clip: SemanticClip,
    look: Look,
    model: H3Model,
    encoder: Encoder,
    decoder: Decoder,
    settings: Settings,
    output: Iterable[str] = (),
    **more: Any,
) -> Parts:
    """Everything the frames depend on, part by part. `output` names the video formats, `more` is for callers' own parts.

    Cheap: files are hashed (large ones in samples), weights go by the identity their loader gave them.
    """
    schedule = settings.schedule
    weights = (model.identity, model.layout, *model.notes, str(model.model.dtype))
    return {
        "clip": clip_identity(clip),
        "look": look_identity(look),
        "model": short(*weights),
        "encoder": short(encoder.identity, str(encoder.dtype)),
        "decoder": short(decoder.identity, str(decoder.dtype), str(getattr(decoder, "mode", ""))),
        "schedule": short(str(schedule)),
        "steps": short(json.dumps([settings.grid.video, settings.grid.audio])),
        "seed": str(settings.seed),
        "guidance": short(*(f"{b.name} {b.caption} {b.reference} {b.weight}" for b in settings.branches)),
        "attention": attention_of(settings),
        "size": "{1}x{0}".format(*look.size),
        "video format": ", ".join(output),
        "versions": versions(device_of(model)),
        **{name: str(value) for name, value in more.items()},
    }


def attention_of(settings: Settings) -> str:
    """The attention of a stream, with what makes it inexact."""
    bank = ", bank in fp8" if settings.bank == FP8 else ""
    return (
        settings.attention + bank + ("" if settings.window_keep is None else f", window keeps {settings.window_keep} %")
    )


def clip_fingerprint(inputs: ClipInputs, settings: ClipSettings, output: Iterable[str] = ()) -> Parts:
    """The same of a whole clip."""
    model, encoder, decoder = inputs.model, inputs.encoder, inputs.decoder
    facts = settings.facts()
    return {
        "clip": "none" if inputs.clip is None else clip_identity(inputs.clip),
        "look": look_identity(inputs.look),
        "model": short(model.identity, model.layout, *model.notes, str(model.model.dtype)),
        "encoder": "none" if encoder is None else short(encoder.identity, str(encoder.dtype)),
        "decoder": short(decoder.identity, str(decoder.dtype), str(getattr(decoder, "mode", ""))),
        "steps": short(json.dumps(facts["grids"])),
        "segments": short(json.dumps(facts["segments"])),
        "seed": str(settings.seed),
        "guidance": short(*(f"{b.name} {b.caption} {b.reference} {b.weight}" for b in settings.branches)),
        "attention": json.dumps(facts["attention"]),
        "size": "{1}x{0}".format(*inputs.look.size),
        "video format": ", ".join(output),
        "versions": versions(device_of(model)),
    }


def fingerprint_id(parts: Mapping[str, str]) -> str:
    """One name for all parts together."""
    return short(json.dumps(dict(sorted(parts.items()))))


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Names of the parts that differ, in the order of `new`."""
    names = [*new, *(name for name in old if name not in new)]
    return [name for name in names if old.get(name) != new.get(name)]


def short(*texts: str) -> str:
    """A short hash over texts, each told apart from its neighbours."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:DIGITS]


def clip_identity(clip: SemanticClip) -> str:
    """Hash of the clip's content and of how it is read."""
    palette = [(entry.name, entry.rgb) for entry in clip.drawn_in.entries]
    how = [palette, str(clip.drawn_in.target), clip.reference_size, clip.repair, clip.frames, clip.size]
    source: Any = clip.source
    how += [clip.mapping, getattr(source, "trim", None)]
    if isinstance(path := getattr(source, "_file", None), (str, Path)):
        content = file_hash(Path(path))
    elif files := getattr(source, "files", None):
        content = short(*(f"{path.name} {file_hash(path)}" for path in files))
    elif (frames := getattr(source, "_frames", None)) is not None:
        content = short(*(_pixels_hash(frame) for frame in frames))
    else:  # made on demand, or an open file: nothing but reading it can tell
        digest = hashlib.sha256()
        for raw in source.open():
            digest.update(np.ascontiguousarray(raw.values[::PIXEL_STEP, ::PIXEL_STEP]).tobytes())
        content = digest.hexdigest()
    return short(json.dumps(how, default=str), content)


def _pixels_hash(frame: Any) -> str:
    values = frame[::PIXEL_STEP, ::PIXEL_STEP]
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def look_identity(look: Look | TextLook) -> str:
    """Hash of the text states and the picture of a look, and of the looks that follow it with their times."""
    if isinstance(look, LookSequence):
        return short(_one_look(look), *(f"{change.seconds} {_one_look(change.look)}" for change in look.changes))
    return _one_look(look)


def _one_look(look: Look | TextLook) -> str:
    digest = hashlib.sha256(str(look.media_rows).encode())
    pictures = (look.picture, look.rgb) if isinstance(look, Look) else ()
    for tensor in (look.text, look.tags, *pictures):
        if tensor is not None:
            digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:DIGITS]


@cache
def pack_version() -> str:
    """The version of this pack, from its own metadata."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if project.is_file():
        found = re.search(r'^version = "([^"]+)"', project.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("streamrender-h3")
    except PackageNotFoundError:
        return "unknown"


def versions(device: torch.device) -> str:
    """Pack, PyTorch, PyAV and kind of device: equal ones give equal numbers and equal files."""
    import av

    return f"pack {pack_version()}, torch {torch.__version__}, av {av.__version__}, {device.type}"
