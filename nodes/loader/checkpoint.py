"""A checkpoint on disk as one set of named tensors, whether it is one file, a set of shards or a folder.

Headers are read at once, data only when a tensor is asked for, through a private memory map: a tensor that is asked for
costs no memory until its bytes are used. Each tensor is mapped alone, because Linux refuses to map privately a whole
file that is larger than the machine's memory.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from .header import CheckpointError, Header, TensorInfo, read_header, require_safetensors

INDEX_SUFFIX = ".safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors", re.IGNORECASE)
TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_SAMPLES, _SAMPLE_BYTES = 16, 4096


@dataclass(frozen=True)
class FileSpan:
    """The bytes [start, start + nbytes) of a file."""

    path: Path
    start: int
    nbytes: int


class Checkpoint:
    """Named tensors over one or more safetensors files. No file stays open; each tensor holds its own memory map.

    Attributes:
        path: what the person named.
        headers: one per file, in the order of the file names.
        tensors: every tensor of every file by its name in the file.
        metadata: the texts in the files' headers, of all files together.
        config: the `config.json` beside the files, empty when there is none.
        index: name of the index json that lists the files, empty for a single file.
        storage: how quantised weights are stored, in words; empty when `tensors` are what the files hold.
    """

    storage = ""

    def __init__(self, path: Path, headers: tuple[Header, ...], index: str = "") -> None:
        self.path = path
        self.headers = headers
        self.index = index
        self.tensors: dict[str, TensorInfo] = {}
        self.metadata: dict[str, str] = {}
        self._home: dict[str, Header] = {}
        for header in headers:
            for name, info in header.tensors.items():
                if name in self._home:
                    raise CheckpointError(
                        header.path,
                        found=f"tensor '{name}' is also in {self._home[name].path.name}",
                        needed="every tensor in one shard only",
                        remedy="Download the whole set of shards again; two versions are mixed.",
                    )
                self.tensors[name] = info
                self._home[name] = header
            self.metadata.update(header.metadata)
        self.config = _config_beside(headers[0].path)

    @property
    def sharded(self) -> bool:
        """More than one file, listed by an index."""
        return len(self.headers) > 1

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data."""
        return sum(info.nbytes for info in self.tensors.values())

    @cached_property
    def identity(self) -> str:
        """SHA-256 over every file's header, its size and sixteen 4 KiB samples of its data.

        The samples matter: two sets of weights of one architecture have the same header and the same size.
        """
        digest = hashlib.sha256()
        for header in self.headers:
            digest.update(f"{header.digest} {header.size}\n".encode())
            step = max(1, header.size // _SAMPLES)
            with header.path.open("rb") as file:
                for start in range(step // 2, header.size, step):
                    file.seek(start)
                    digest.update(file.read(_SAMPLE_BYTES))
        return digest.hexdigest()

    def span(self, name: str) -> FileSpan:
        """Where the bytes of tensor `name` lie. KeyError if there is none."""
        header = self._home[name]
        info = header.tensors[name]
        return FileSpan(header.path, info.start, info.nbytes)

    def read(self, name: str) -> torch.Tensor:
        """Tensor `name` on the CPU in the file's dtype, backed by a private memory map. KeyError if there is none.

        Writing to it does not reach the file. The map lives as long as the tensor.
        """
        header = self._home[name]
        info = header.tensors[name]
        start = info.start - info.start % mmap.ALLOCATIONGRANULARITY
        try:
            with header.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != (header.size, header.modified):
                    raise CheckpointError(
                        header.path,
                        found="the file changed since its header was read",
                        needed="the same file until the model is unloaded",
                        remedy="Load the model again.",
                    )
                if not info.nbytes:
                    return torch.empty(info.shape, dtype=TORCH_DTYPES[info.dtype])
                mapped = mmap.mmap(file.fileno(), info.stop - start, access=mmap.ACCESS_COPY, offset=start)
        except OSError as error:
            raise CheckpointError(
                header.path,
                found=f"tensor '{name}' cannot be mapped into memory ({error.strerror or error})",
                needed=f"{info.nbytes:,} bytes of address space and a readable file",
                remedy="Check the disk, and the limits on memory, and load again.",
            ) from error
        flat = torch.frombuffer(
            mapped, dtype=TORCH_DTYPES[info.dtype], count=info.parameters, offset=info.start - start
        )
        return flat.view(info.shape)


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a safetensors file, any shard of a set, an index json, or a folder that holds one of these.

    Raises CheckpointError for what is missing, cut, damaged, ambiguous or not safetensors.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if path.name.lower().endswith(".index.json"):
        return _open_index(path, path)
    require_safetensors(path)
    if not path.exists():
        raise CheckpointError(
            path,
            found="there is no such file",
            needed="a .safetensors file, its index json or a folder",
            remedy="Check the path; on a fresh machine download the model first.",
        )
    shard = _SHARD.fullmatch(path.name)
    if shard and int(shard["count"]) > 1:
        return _open_index(_index_of(path, shard["stem"]), path)
    return Checkpoint(path, (read_header(path),))


def _open_folder(folder: Path) -> Checkpoint:
    indexes = sorted(folder.glob("*" + INDEX_SUFFIX))
    files = sorted(folder.glob("*.safetensors"))
    if len(indexes) == 1:
        return _open_index(indexes[0], folder)
    if not indexes and len(files) == 1:
        return Checkpoint(folder, open_checkpoint(files[0]).headers)
    candidates = [file.name for file in (indexes or files)]
    subfolders = sorted(
        f"{child.name}/" for child in folder.iterdir() if child.is_dir() and any(child.glob("*.safetensors"))
    )
    raise CheckpointError(
        folder,
        found=f"the folder holds {len(candidates)} candidates ({', '.join(candidates[:6])})"
        if candidates
        else "the folder holds no .safetensors file",
        needed="one .safetensors file, or one set of shards with its index json",
        remedy="Pick one of these files."
        if candidates
        else f"Pick a folder inside it: {', '.join(subfolders)}."
        if subfolders
        else "Pick the folder or the file that holds the model.",
    )


def _index_of(shard: Path, stem: str) -> Path:
    """The index that lists `shard`: the one of the same stem, else any index in the folder that names it."""
    own = shard.with_name(stem + INDEX_SUFFIX)
    if own.exists():
        return own
    for index in sorted(shard.parent.glob("*" + INDEX_SUFFIX)):
        if shard.name in _weight_map(index).values():
            return index
    raise CheckpointError(
        shard,
        found=f"it is one shard of a set and no index beside it lists it ({own.name} is missing)",
        needed="the index json that was published with the shards",
        remedy=f"Download {own.name} into the same folder.",
    )


def _open_index(index: Path, named: Path) -> Checkpoint:
    listed = _weight_map(index)
    headers = []
    for file in sorted(set(listed.values())):
        shard = index.with_name(file)
        if not shard.exists():
            raise CheckpointError(
                shard,
                found=f"the shard is missing; {index.name} lists it for {_some(listed, file)}",
                needed=f"all {len(set(listed.values()))} shards in one folder",
                remedy=f"Download {file} into {index.parent}.",
            )
        header = read_header(shard)
        absent = [name for name, home in listed.items() if home == file and name not in header.tensors]
        extra = [name for name in header.tensors if listed.get(name) != file]
        if absent or extra:
            raise CheckpointError(
                shard,
                found=f"tensor '{absent[0]}' is not in the shard, but {index.name} says so"
                if absent
                else f"the shard holds tensor '{extra[0]}', which {index.name} does not list there",
                needed=f"the {sum(home == file for home in listed.values())} tensors that {index.name} lists for it",
                remedy="Download the shards and the index again.",
            )
        headers.append(header)
    return Checkpoint(named, tuple(headers), index.name)


def _some(listed: Mapping[str, str], file: str) -> str:
    """The tensors an index places in `file`: the first by name, the others by number."""
    names = [name for name, home in listed.items() if home == file]
    return f"tensor '{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name of an index json."""
    content = _read_json(index, remedy="Download the index again.")
    weights = content.get("weight_map")
    if not isinstance(weights, dict) or not weights or not all(isinstance(file, str) for file in weights.values()):
        raise CheckpointError(
            index,
            found="the index has no weight_map",
            needed='{"weight_map": {tensor name: file name}}',
            remedy="Download the index again.",
        )
    for file in set(weights.values()):
        if Path(file).name != file or "\\" in file:  # an index must not reach outside its folder
            raise CheckpointError(
                index,
                found=f"the index names the file '{file}'",
                needed="file names in the index's own folder",
                remedy="Download the index again from its publisher.",
            )
        require_safetensors(index.with_name(file))
    return weights


def _config_beside(file: Path) -> Mapping[str, Any]:
    path = file.with_name("config.json")
    return _read_json(path, remedy="Repair it, or move it away.") if path.is_file() else {}


def _read_json(path: Path, *, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            path, found=f"it cannot be read as JSON ({error})", needed="valid JSON", remedy=remedy
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            path, found=f"it is a JSON {type(content).__name__}", needed="a JSON object", remedy=remedy
        )
    return content
