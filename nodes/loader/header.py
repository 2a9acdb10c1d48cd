"""Reading the header of a safetensors file and nothing else.

A safetensors file is eight bytes (little-endian length of the header), a JSON header, and the tensor data. Everything a
person wants to know before loading 66 GB stands in the header; a cut or damaged download already shows there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

HEADER_LIMIT = 100_000_000  # bytes; the limit of the safetensors format itself

# Bits per element of every dtype the format knows.
DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}

_DOWNLOAD_AGAIN = "Download the file again: it is cut or damaged."


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The message says what arrived, what is needed and one thing to do."""

    def __init__(self, path: str | os.PathLike[str], *, found: str, needed: str, remedy: str) -> None:
        self.path = Path(path)
        self.found = found
        self.needed = needed
        self.remedy = remedy
        super().__init__(f"{self.path}: {found}. Needed: {needed}. {remedy}")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: dtype as the file spells it, shape, and its half-open byte range [start, stop) in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def parameters(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of data in the file."""
        return self.stop - self.start


@dataclass(frozen=True)
class Header:
    """The header of one file: tensors by name, metadata, a digest of both, the file's size and time of change in ns.

    The digest does not depend on the order in which the header was written: the same file saved twice may differ there.
    """

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    digest: str
    size: int
    modified: int


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of a safetensors file; no tensor data is touched, whatever the file's size.

    Raises:
        CheckpointError: not a file, not named .safetensors, empty, cut, damaged, or longer than its header says.
    """
    path = Path(path)
    require_safetensors(path)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            return _parse(path, status, _header_bytes(path, status.st_size, file))
    except OSError as error:
        raise CheckpointError(
            path,
            found=f"it cannot be read ({error.strerror or error})",
            needed="a readable .safetensors file",
            remedy="Check the path and the permissions.",
        ) from error


def require_safetensors(path: Path) -> None:
    """Refuse by name, without opening, everything but safetensors: pickle files can run code when they are opened."""
    if path.suffix.lower() != ".safetensors":
        raise CheckpointError(
            path,
            found=f"the file type is {path.suffix or 'missing'}",
            needed="a .safetensors file (.ckpt, .pt and .bin can run code and are never opened; .gguf is not read)",
            remedy="Pick the safetensors version of the model, or convert the file with the tools of its publisher.",
        )


def _header_bytes(path: Path, size: int, file: BinaryIO) -> bytes:
    prefix = file.read(8)
    if size < 8 or len(prefix) < 8:
        raise CheckpointError(
            path,
            found="the file is empty" if size == 0 else f"the file has only {size} bytes",
            needed="a safetensors file, which begins with an 8-byte header length",
            remedy=_DOWNLOAD_AGAIN,
        )
    length = int.from_bytes(prefix, "little")
    if length > HEADER_LIMIT or length > size - 8:
        limit = min(HEADER_LIMIT, size - 8)
        raise CheckpointError(
            path,
            found=f"the header claims {length:,} bytes but the file has {size:,}",
            needed=f"a header of at most {limit:,} bytes",
            remedy="Download the file again: it is cut, or it is not a safetensors file.",
        )
    return file.read(length)


def _parse(path: Path, status: os.stat_result, raw: bytes) -> Header:
    def broken(found: str, needed: str = "a JSON header that describes every tensor") -> CheckpointError:
        return CheckpointError(path, found=found, needed=needed, remedy=_DOWNLOAD_AGAIN)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise broken(f"the header names '{twice}' twice")
        return entries

    try:
        entries = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise broken(f"the header is not valid JSON ({error})") from error
    if not isinstance(entries, dict):
        raise broken(f"the header is a JSON {type(entries).__name__}")

    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise broken("the header's __metadata__ is not a table of texts")
    base = 8 + len(raw)
    tensors: dict[str, TensorInfo] = {}
    for name, entry in entries.items():
        info = _tensor(entry, base)
        if info is None:
            raise broken(f"the header entry of tensor '{name}' is damaged ({json.dumps(entry)[:200]})")
        tensors[name] = info
    _check_extent(path, status.st_size, base, tensors)
    digest = hashlib.sha256(json.dumps([entries, metadata], sort_keys=True).encode()).hexdigest()
    return Header(path, tensors, metadata, digest, status.st_size, status.st_mtime_ns)


def _tensor(entry: Any, base: int) -> TensorInfo | None:
    """One header entry, or None where it contradicts itself (unknown dtype, wrong length for its shape)."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        return None
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    if not numbers or not all(type(value) is int and value >= 0 for value in (*shape, *offsets)):
        return None
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return None
    start, stop = offsets
    if (stop - start) * 8 != math.prod(shape) * DTYPE_BITS[dtype]:
        return None
    return TensorInfo(dtype, tuple(shape), base + start, base + stop)


def _check_extent(path: Path, size: int, base: int, tensors: Mapping[str, TensorInfo]) -> None:
    """Tensors must lie end to end from the header to the end of the file: a gap or an overlap is a damaged header."""
    end = base
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if info.start != end:
            raise CheckpointError(
                path,
                found=f"tensor '{name}' begins at byte {info.start:,}",
                needed=f"tensors end to end, so byte {end:,}",
                remedy=_DOWNLOAD_AGAIN,
            )
        end = info.stop
        if end > size:
            raise CheckpointError(
                path,
                found=f"the file has {size:,} bytes and ends inside tensor '{name}' {list(info.shape)} {info.dtype}",
                needed=f"{_end(tensors):,} bytes ({_end(tensors) - size:,} are missing)",
                remedy="Download the file again: it is cut.",
            )
    if end != size:
        raise CheckpointError(
            path,
            found=f"the file has {size:,} bytes",
            needed=f"{end:,} bytes, as its header says ({size - end:,} are too many)",
            remedy=_DOWNLOAD_AGAIN,
        )


def _end(tensors: Mapping[str, TensorInfo]) -> int:
    return max(info.stop for info in tensors.values())
