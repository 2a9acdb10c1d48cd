"""AdaLN tables on disk by content, so that a new session does not read 26 GB of projections for 40 MB of tables."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ..model import AdaLNTables, H3Config, TableError, load_tables, save_tables
from .forms import BLOCK_ADALN, FINAL_ADALN
from .tensors import NativeTensors

KEPT_BYTES = 2 * 1024**3
"""Room for about fifty time grids of the released model; the longest unused go first."""

WORTH_BYTES = 256 * 1024**2
"""Tables of smaller projections are made as fast as they are found."""

VERSION = 1
_WHOLE = 64 * 1024**2  # tensors up to this size are hashed whole
_SAMPLES, _SAMPLE_BYTES = 64, 4096

log = logging.getLogger(__name__)


def modulation_digest(tensors: NativeTensors) -> str:
    """SHA-256 of what tables are made from: time MLP, basis, curve and biases whole, 64 samples of every projection.

    Independent of the file's name and layout. Every value of a projection changes with every other one in training and
    in merging, so samples tell two of them apart; hashing 26 GB would take as long as building the tables.
    """
    form, layers = tensors.form, tensors.config.layers
    names = [name for name in (*form.root, *FINAL_ADALN) if name in tensors]
    names += [f"blocks.{i}.{rest}" for i in range(layers) for rest in (form.block or BLOCK_ADALN)]
    digest = hashlib.sha256(f"modulation {VERSION}\n".encode())
    for name in dict.fromkeys(names):
        tensor = tensors(name)
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        raw = tensor.contiguous().view(torch.uint8).flatten()
        if len(raw) <= _WHOLE and not name.endswith("adaln_proj.linear.weight"):
            digest.update(raw.numpy().data)
            continue
        step = max(1, len(raw) // _SAMPLES)
        for start in range(step // 2, len(raw), step):
            digest.update(raw[start : start + _SAMPLE_BYTES].numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class TableCache:
    """A folder of tables, one safetensors file per identity. A cache that fails costs time, never a render.

    It keeps `kept_bytes` at most, and only tables of projections of `worth_bytes` at least.
    """

    folder: str | Path
    kept_bytes: int = KEPT_BYTES
    worth_bytes: int = 0

    def is_worth(self, tensors: NativeTensors) -> bool:
        """Whether the projections are large enough."""
        infos = tensors.checkpoint.tensors
        names = (name for name in tensors.recipes if name.endswith("adaln_proj.linear.weight"))
        return (
            sum(infos[source].nbytes for name in names for source in tensors.recipes[name].sources) >= self.worth_bytes
        )

    def path(self, identity: Mapping[str, str]) -> Path:
        """File of the tables with this identity, whether it exists or not."""
        key = hashlib.sha256(json.dumps([VERSION, dict(identity)], sort_keys=True).encode()).hexdigest()
        return Path(self.folder) / f"{key}.safetensors"

    def load(self, identity: Mapping[str, str], config: H3Config) -> AdaLNTables | None:
        """The tables with this identity, or None; a broken entry says so in the log and counts as none."""
        path = self.path(identity)
        if not path.is_file():
            return None
        try:
            tables = load_tables(path, config)
            if dict(tables.identity) != dict(identity):
                raise TableError(f"{path} was made from something else. It is made again.")
            os.utime(path)
        except (TableError, OSError, ValueError, KeyError) as error:
            log.warning("The cached AdaLN tables %s are not used and will be built again: %s", path.name, error)
            return None
        return tables

    def save(self, tables: AdaLNTables) -> None:
        """Store tables under their identity, whole or not at all, and drop the longest unused entries."""
        path = self.path(tables.identity)
        part = path.with_name(f"{path.stem}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_tables(tables, part)
            os.replace(part, path)
            self._make_room(path)
        except OSError as error:
            log.warning("The AdaLN tables were not cached in %s: %s", self.folder, error)
        finally:
            if part.is_file():
                part.unlink()

    def _make_room(self, newest: Path) -> None:
        entries = sorted(Path(self.folder).glob("*.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
        entries.sort(key=lambda path: path != newest)  # the one just written stays whatever its size
        total = 0
        for path in entries:
            total += path.stat().st_size
            if total > self.kept_bytes and path != newest:
                path.unlink(missing_ok=True)
