"""Text states on disk by content: the 50 GB encoder runs once per prompt and picture, not once per render."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .encoder_files import encoder_identity
from .files import VERSION, load_states, save_states
from .look import LookError, TextStates
from .qwen import encode_text

KEPT_ENTRIES = 64
"""Entries kept, about 30 MB each with the full encoder; the longest unused go first."""

log = logging.getLogger(__name__)


def look_key(encoder_dir: str | Path, prompt: str, picture: np.ndarray | None, dtype: torch.dtype) -> str:
    """Hex key of text states: encoder identity, prompt, picture bytes and size, dtype, format version.

    ``picture`` is uint8 [H, W, 3], None for a prompt alone. Raises EncoderError when the encoder folder is not complete.
    """
    digest = hashlib.sha256()
    shape = "no picture" if picture is None else str(picture.shape)
    for part in (f"version {VERSION}", encoder_identity(encoder_dir), str(dtype), shape, prompt):
        raw = part.encode("utf-8")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    if picture is not None:
        digest.update(np.ascontiguousarray(picture).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class LookCache:
    """A folder of text states, one safetensors file per key. A cache that fails costs time, never a render."""

    folder: str | Path

    def path(self, key: str) -> Path:
        """File of ``key``, whether it exists or not."""
        return Path(self.folder) / f"{key}.safetensors"

    def load(self, key: str) -> TextStates | None:
        """The states of ``key``, or None when there are none; a broken entry says so in the log and counts as none."""
        path = self.path(key)
        if not path.is_file():
            return None
        try:
            states = load_states(path)
            os.utime(path)
        except LookError as error:
            log.warning("The cached look %s is broken and will be made again: %s", path.name, error)
            return None
        except OSError as error:
            log.debug("The use of %s was not noted: %s", path.name, error)
        return states

    def save(self, key: str, states: TextStates) -> None:
        """Store ``states`` under ``key``, whole or not at all, and drop the longest unused entries."""
        try:
            save_states(self.path(key), states)
            entries = sorted(Path(self.folder).glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
            for path in entries[:-KEPT_ENTRIES]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("The look was not cached in %s: %s", self.folder, error)


def encode_cached(
    cache: LookCache,
    encoder_dir: str | Path,
    prompt: str,
    picture: np.ndarray | None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    *,
    stream: bool = False,
) -> TextStates:
    """``encode_text`` through the cache; a hit loads no model."""
    key = look_key(encoder_dir, prompt, picture, dtype)
    states = cache.load(key)
    if states is None:
        states = encode_text(encoder_dir, prompt, picture, device, dtype, stream=stream)
        cache.save(key, states)
    return states
