"""Placing a loaded model on a device without ComfyUI: what is resident, what is streamed, and how bytes get there fast.

Bytes go from the file to the device through a few page-locked buffers, read by several threads at once; the host never
holds more of the model than these. Inside ComfyUI its model management places the model and this is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...kernels.block_stream import BlockStreamer, HostBlocks
from ..model import H3
from .checkpoint import FileSpan
from .load import H3Model

THREADS, PIECE = 8, 32 << 20  # readers, and bytes each moves at a time


Source = FileSpan | Tensor


@dataclass
class Placed:
    """A model on a device. `close` ends the streaming and leaves its weights on the host.

    Attributes:
        resident: numbers of the blocks that live on the device.
        streamed: numbers of the others.
    """

    resident: tuple[int, ...]
    streamed: tuple[int, ...]
    streamer: BlockStreamer | None = None
    host: HostBlocks | None = None

    def close(self) -> None:
        if self.streamer:
            self.streamer.close()
        if self.host:
            self.host.close()


def place(
    model: H3,
    device: torch.device,
    resident: int | None = None,
    *,
    sources: Mapping[str, FileSpan] | None = None,
    lock: bool = True,
) -> Placed:
    """Bring `model` to `device`, `resident` of its blocks for good (None: all), the others streamed for every run.

    `sources` tells for parameters by name where the file holds their bytes. With `lock`, streamed blocks are kept in
    page-locked host memory; without, they stay where they are (in the memory-mapped file) and go through two buffers.
    """
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    layers = len(model.blocks)
    stay = spread(layers, layers if resident is None else resident)
    streamed = tuple(number for number in range(layers) if number not in stay)
    waiting = tuple(f"blocks.{number}." for number in streamed)
    there = {name: one for name, one in model.named_parameters() if not name.startswith(waiting)}
    upload({name: one for name, one in there.items() if one.device != device}, device, sources or {})
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    if not streamed:
        return Placed(stay, streamed)
    blocks = [model.blocks[number] for number in streamed]
    host = HostBlocks() if lock else None
    for block in blocks if host else ():
        host.take(block)  # type: ignore[union-attr]
    locked = host is not None and host.locked
    streamer = BlockStreamer(blocks, device, through_buffers=not locked, everything=True)
    return Placed(stay, streamed, streamer, host)


@contextmanager
def fetched(model: H3, device: torch.device) -> Iterator[BlockStreamer]:
    """While this lasts, parameters of blocks that a host left off `device` come there when their block runs."""
    locked = all(one.is_pinned() for one in model.blocks.parameters() if one.device.type == "cpu")
    streamer = BlockStreamer(model.blocks, device, through_buffers=not locked)
    try:
        yield streamer
    finally:
        streamer.close()


def host_memory_for(nbytes: int) -> bool:
    """Whether the host can keep `nbytes` in locked memory with as much left for everything else; True where it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return True
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    return available is None or 2 * nbytes <= available + nbytes // 2


def file_sources(loaded: H3Model) -> dict[str, FileSpan]:
    """Where the checkpoint file holds parameters byte for byte as the network needs them, by name.

    Parameters that were converted, widened, quantised or changed by an adapter are not in it.
    """
    if loaded.adapters:
        return {}
    tensors, found = loaded.modulation.tensors, {}
    for name, one in loaded.model.named_parameters():
        span = tensors.span(name)
        if span is not None and span.nbytes == one.nbytes and tensors(name).dtype == one.dtype:
            found[name] = span
    return found


def spread(layers: int, count: int) -> tuple[int, ...]:
    """`count` of the numbers 0..layers-1, evenly spread: a resident block gives the copies before it time to arrive."""
    count = max(0, min(layers, count))
    return tuple(sorted({(2 * i + 1) * layers // (2 * count) for i in range(count)})) if count else ()


# --------------------------------------------------------------------------------------------------- file to the device


@torch.no_grad()
def upload(parameters: Mapping[str, nn.Parameter], device: torch.device, sources: Mapping[str, FileSpan]) -> int:
    """Move parameters to `device`, several at once in pieces; returns the bytes moved.

    Bytes come from the file where `sources` names the place, else from the parameter's present memory.
    """
    if device.type != "cuda":
        for one in parameters.values():
            one.data = one.data.to(device)
        return sum(one.nbytes for one in parameters.values())
    with torch.inference_mode(False):
        targets = {name: torch.empty_like(one, device=device) for name, one in parameters.items()}
    torch.cuda.current_stream(device).synchronize()
    pieces = [
        (_bytes(targets[name]), sources.get(name, one.data), start)
        for name, one in parameters.items()
        for start in range(0, one.nbytes, PIECE)
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        shares = [pieces[number::THREADS] for number in range(THREADS)]
        for done in [pool.submit(_carry, share, device) for share in shares if share]:
            done.result()
    for name, one in parameters.items():
        one.data = targets[name]
    return sum(target.nbytes for target in targets.values())


def _carry(pieces: Sequence[tuple[Tensor, Source, int]], device: torch.device) -> None:
    """Copy pieces through one page-locked buffer."""
    buffer = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
    stream = torch.cuda.Stream(device)
    with ExitStack() as stack, torch.cuda.stream(stream), torch.no_grad():
        files: dict[Path, FileIO] = {}
        for target, source, start in pieces:
            count = min(PIECE, target.numel() - start)
            if isinstance(source, FileSpan):
                if source.path not in files:
                    files[source.path] = stack.enter_context(FileIO(source.path))
                read_into(files[source.path], source.start + start, buffer[:count])
            else:
                buffer[:count].copy_(_bytes(source)[start : start + count])
            target[start : start + count].copy_(buffer[:count], non_blocking=True)
            stream.synchronize()


def read_into(file: FileIO, start: int, target: Tensor) -> None:
    """Fill `target` [n] uint8 with the file's bytes from `start` on. Raises OSError when the file ends before."""
    view: Any = target.numpy()
    memory, done = memoryview(view), 0
    file.seek(start)
    while done < len(memory):
        count = file.readinto(memory[done:])
        if not count:
            raise OSError(f"{file.name} became shorter while it was read")
        done += count


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
