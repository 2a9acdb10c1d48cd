"""Writing a safetensors file of any size with one tensor in memory at a time."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .checkpoint import TORCH_DTYPES
from .header import require_safetensors

_SPELLED = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class Planned:
    """A tensor that will be written: its name, dtype and shape now, its values when its turn comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_stream(
    path: str | os.PathLike[str],
    planned: Iterable[Planned],
    metadata: Mapping[str, str],
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the tensors in the order given, whole or not at all; returns the size of the file in bytes.

    `progress(written, in all)` counts tensors and may raise to interrupt. Raises ValueError where the disk is too small.
    """
    path, tensors = Path(path), list(planned)
    require_safetensors(path)
    header, end = {"__metadata__": dict(metadata)}, 0
    for one in tensors:
        entry = {"dtype": _SPELLED[one.dtype], "shape": list(one.shape), "data_offsets": [end, end + one.nbytes]}
        header[one.name] = entry  # type: ignore[assignment]
        end += one.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    size = 8 + len(raw) + end
    free = shutil.disk_usage(path.parent).free
    if size > free:
        raise ValueError(
            f"{path} would have {size:,} bytes; {path.parent} has {free:,} free. Free some space or choose another folder."
        )
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(struct.pack("<Q", len(raw)) + raw)
            for done, one in enumerate(tensors):
                tensor = one.make().detach().to(device="cpu", dtype=one.dtype).contiguous()
                if tuple(tensor.shape) != one.shape:
                    raise ValueError(
                        f"{path}: tensor '{one.name}' came as {list(tensor.shape)}, planned as {list(one.shape)}"
                    )
                file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
                if progress:
                    progress(done + 1, len(tensors))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return size
