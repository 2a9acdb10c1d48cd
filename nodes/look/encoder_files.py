"""A local Qwen3-VL folder: where its files are, what is missing, and who it is.

Only safetensors are read, nothing is fetched. The H3 release keeps weights, tokenizer and processor in neighbouring
folders; a single folder with everything works as well.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NEIGHBOURS = ("tokenizer", "processor", "image_processor")
SAMPLES, SAMPLE_BYTES = 64, 4096


class EncoderError(ValueError):
    """The text encoder cannot be used; the message says what arrived, what is needed and what to do."""


@dataclass(frozen=True)
class EncoderFolder:
    """Paths of one encoder. ``rules`` is None when there is no preprocessor file and the H3 defaults hold."""

    config: Path
    tokenizer: Path
    rules: Path | None
    shards: tuple[Path, ...]


def encoder_folder(folder: str | Path) -> EncoderFolder:
    """Find the files of a Qwen3-VL folder. Raises EncoderError naming the first thing that is missing."""
    folder = Path(folder)
    if folder.is_file():
        raise EncoderError(
            f"The text encoder {folder} is a file; a Qwen3-VL folder with config.json is needed. For a single-file "
            "text encoder load it with ComfyUI's Load CLIP (type minimax) and connect CLIP."
        )
    if not folder.is_dir():
        raise EncoderError(
            f"The text encoder folder {folder} is not there; a Qwen3-VL folder is needed. Check the path, or connect a "
            "CONDITIONING or a saved look instead."
        )
    config = folder / "config.json"
    if not config.is_file():
        raise EncoderError(
            f"The folder {folder} has no config.json; a Qwen3-VL folder is needed. Copy the whole text_encoder folder "
            "of the MiniMax-H3 release, not only its weights."
        )
    kind = _read_json(config).get("model_type")
    if kind != "qwen3_vl":
        raise EncoderError(
            f"The folder {folder} holds a model of type {kind!r}; 'qwen3_vl' is needed. Choose the text_encoder folder "
            "of the MiniMax-H3 release."
        )
    places = [folder, *(folder.parent / name for name in NEIGHBOURS)]
    tokenizer = next((place for place in places if _has_tokenizer(place)), None)
    if tokenizer is None:
        raise EncoderError(
            f"The folder {folder} has no tokenizer.json (nor vocab.json with merges.txt), and no tokenizer folder lies "
            "next to it; one is needed to read the prompt. Copy the tokenizer files of the release into the folder."
        )
    rules = next((path for place in places if (path := place / "preprocessor_config.json").is_file()), None)
    return EncoderFolder(config, tokenizer, rules, _shards(folder))


def encoder_identity(folder: str | Path) -> str:
    """Content hash (hex) of what decides the states: config, tokenizer, image rules and weights.

    Weights enter by header, size and evenly spaced samples, so that 50 GB need not be read; equal shapes with other
    values are told apart, and the folder's place and the files' dates do not matter.
    """
    files = encoder_folder(folder)
    digest = hashlib.sha256()
    small = [files.config, *([files.rules] if files.rules else []), *_tokenizer_files(files.tokenizer)]
    for path in small:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    for path in files.shards:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as stream:
            start = stream.read(8)
            header = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            digest.update(start + stream.read(min(header, size)))
            for index in range(SAMPLES):
                stream.seek(min(size, 8 + header) + index * max(0, size - 8 - header - SAMPLE_BYTES) // (SAMPLES - 1))
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _shards(folder: Path) -> tuple[Path, ...]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names: Iterable[str] = sorted(set(_read_json(index).get("weight_map", {}).values()))
        paths = tuple(folder / name for name in names)
    else:
        paths = tuple(sorted(folder.glob("*.safetensors")))
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise EncoderError(
            f"The folder {folder} has {len(paths) - len(missing)} of {len(paths)} weight files; {missing[0]} is "
            "missing. Copy the missing files of the release into it."
        )
    if not paths:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        found = f"only {pickled[0]}, a pickle file that can run code" if pickled else "no weights"
        raise EncoderError(
            f"The folder {folder} holds {found}; model.safetensors or its shards are needed. "
            "Use the safetensors release."
        )
    return paths


def _has_tokenizer(place: Path) -> bool:
    return (place / "tokenizer.json").is_file() or all(
        (place / name).is_file() for name in ("vocab.json", "merges.txt")
    )


def _tokenizer_files(place: Path) -> list[Path]:
    names = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json", "added_tokens.json")
    return [place / name for name in names if (place / name).is_file()]


def _read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EncoderError(
            f"The file {path} is not readable JSON ({error}); copy it from the release again."
        ) from error
    if not isinstance(value, dict):
        raise EncoderError(f"The file {path} holds a {type(value).__name__}; a JSON object is needed. Copy it again.")
    return value
