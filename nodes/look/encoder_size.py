"""How large a text encoder is and how many rows a prompt takes, without loading the encoder."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from .encoder_files import EncoderError, encoder_folder
from .image_rows import H3_RULES, fitted_size, read_rules
from .presentation import PICTURE_LABEL
from .qwen import DECODER_LAYERS, module_name

_AREAS = 2  # staging areas when layers are streamed
_WIDTHS = 8  # rows of the MLP's width alive at once


@dataclass(frozen=True)
class EncoderSize:
    """Bytes of the first 50 decoder layers together, of the largest of them, and of everything else that is used."""

    layers: int
    largest_layer: int
    rest: int
    itemsize: int

    @property
    def streamed(self) -> int:
        """Device bytes of the weights when the layers are streamed."""
        return self.rest + _AREAS * self.largest_layer

    def activations(self, rows: int) -> int:
        """Bytes that ``rows`` rows work with, about: a layer is as wide as the root of its weights, a few times over."""
        return int(_WIDTHS * rows * math.sqrt(self.largest_layer * self.itemsize))


def encoder_size(folder: str | Path, dtype: torch.dtype) -> EncoderSize:
    """Read headers only. Raises EncoderError when files are missing or broken."""
    files = encoder_folder(folder)
    layers: Counter[str] = Counter()
    rest = 0
    for path in files.shards:
        for stored, shape in _shapes(path).items():
            name = module_name(stored, DECODER_LAYERS)
            if name is None:
                continue
            count = math.prod(shape) * dtype.itemsize
            if name.startswith("language_model.layers."):
                layers[name.split(".")[2]] += count
            else:
                rest += count
    return EncoderSize(sum(layers.values()), max(layers.values(), default=0), rest, dtype.itemsize)


def text_rows(folder: str | Path, prompt: str, size: tuple[int, int] | None) -> int:
    """Rows that ``prompt`` takes after a picture of ``size`` (height, width): label, image block, prompt tokens; or alone."""
    files = encoder_folder(folder)
    try:
        from transformers import AutoTokenizer
    except (ImportError, OSError, RuntimeError) as error:
        raise EncoderError(
            f"The installed transformers cannot read a tokenizer ({error}); version 4.57 or newer is needed. Update it."
        ) from error
    tokenizer = AutoTokenizer.from_pretrained(files.tokenizer, local_files_only=True)
    if size is None:
        return len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    rules = read_rules(files.rules) if files.rules else H3_RULES
    height, width = fitted_size(size[0], size[1], rules)
    cell = rules.patch * rules.merge
    pieces = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (PICTURE_LABEL, prompt)]
    return sum(pieces) + 2 + (height // cell) * (width // cell)


def _shapes(path: Path) -> dict[str, list[int]]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise EncoderError(
            f"The weights {path} could not be read ({error}); a whole safetensors file is needed. Copy it again."
        ) from error
