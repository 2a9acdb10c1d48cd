"""Blocks that do not live on the device: each is copied there just before it runs, while the block before it still computes.

Two staging areas on the device take turns. Weights wait in page-locked host memory; those that stay in the memory-mapped
file go through two page-locked buffers, filled by a thread. On the CPU the same steps run one after the other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_ALIGNMENT = 256  # bytes; tensor cores read whole lines

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Parcel:
    """What one block sends: its parameters, where their bytes wait on the host, and their places in an area of `nbytes`."""

    parameters: tuple[nn.Parameter, ...]
    host: tuple[Tensor, ...]
    offsets: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, block: nn.Module, device: torch.device, *, everything: bool) -> Parcel:
        """All parameters of `block`, or those that are not on `device`."""
        chosen = [one for one in block.parameters() if everything or one.device != device]
        offsets, end = [], 0
        for one in chosen:
            offsets.append(end)
            end += math.ceil(one.nbytes / _ALIGNMENT) * _ALIGNMENT
        return cls(tuple(chosen), tuple(one.detach() for one in chosen), tuple(offsets), end)

    def views(self, area: Tensor) -> tuple[Tensor, ...]:
        """The parameters' places in a staging area [bytes] uint8."""
        return tuple(
            area[start : start + one.nbytes].view(one.dtype).view(one.shape)
            for one, start in zip(self.host, self.offsets, strict=True)
        )


class BlockStreamer:
    """Runs `blocks` in their order with weights that are elsewhere. `close` gives the blocks back as they were.

    Attributes:
        streamed: numbers of the blocks that are copied for every run.
        nbytes: bytes copied for one run over all blocks.
        area_bytes: device bytes of the two staging areas.
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        device: torch.device,
        *,
        through_buffers: bool = False,
        everything: bool = False,
    ) -> None:
        """Blocks with parameters off `device` are streamed; with `everything`, all of them (as on the CPU, in tests).

        `through_buffers` copies by way of two page-locked buffers, for weights that are not page-locked themselves.
        """
        self._device = device
        self._cuda = device.type == "cuda"
        found = [(block, Parcel.of(block, device, everything=everything)) for block in blocks]
        self.streamed = tuple(number for number, (_, parcel) in enumerate(found) if parcel.parameters)
        self._parcels = [parcel for _, parcel in found if parcel.parameters]
        self.nbytes = sum(one.nbytes for parcel in self._parcels for one in parcel.host)
        size = max((parcel.nbytes for parcel in self._parcels), default=0)
        with torch.inference_mode(False):
            areas = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2 if size else 0)]
            self._places = [[parcel.views(area) for parcel in self._parcels] for area in areas]
            self._buffers = [_locked(size) for _ in range(2)] if through_buffers and self._cuda and size else []
        self._buffered = [[parcel.views(buffer) for parcel in self._parcels] for buffer in self._buffers]
        self.area_bytes = 2 * size
        self._stream = torch.cuda.Stream(device) if self._cuda and size else None
        self._arrived: list[Any] = [None, None]  # events of the copies into each area
        self._left: list[Any] = [None, None]  # events of the last use of each area
        self._worker = ThreadPoolExecutor(1) if self._buffers else None
        self._coming: dict[int, tuple[int, Future[None] | None]] = {}  # streamed block -> (area, pending hand-over)
        self._turn = 0
        self._hooks = []
        for order, number in enumerate(self.streamed):
            block = found[number][0]
            self._hooks.append(block.register_forward_pre_hook(lambda *_, order=order: self._enter(order)))
            self._hooks.append(
                block.register_forward_hook(lambda *_, order=order: self._leave(order), always_call=True)
            )
        self._here: dict[int, int] = {}

    def close(self) -> None:
        """Forget hooks and staging areas; the parameters are on the host as before."""
        for hook in self._hooks:
            hook.remove()
        self._drain()
        if self._worker:
            self._worker.shutdown()
        for parcel in self._parcels:
            _point(parcel.parameters, parcel.host)
        self._places, self._buffers, self._buffered, self._hooks = [], [], [], []

    # ------------------------------------------------------------------------------------------------- around a block

    def _enter(self, order: int) -> None:
        if order not in self._coming:  # the first block ever, or a run that was broken off
            self._drain()
            self._send(order)
        area, pending = self._coming.pop(order)
        if pending is not None:
            pending.result()
        if self._cuda:
            torch.cuda.current_stream(self._device).wait_event(self._arrived[area])
        _point(self._parcels[order].parameters, self._places[area][order])
        self._here[order] = area
        if len(self._parcels) > 1:
            self._send((order + 1) % len(self._parcels))

    def _leave(self, order: int) -> None:
        area = self._here.pop(order, None)
        if area is None:
            return
        _point(self._parcels[order].parameters, self._parcels[order].host)
        if self._cuda:
            self._left[area] = torch.cuda.current_stream(self._device).record_event()

    # -------------------------------------------------------------------------------------------------------- copying

    def _send(self, order: int) -> None:
        """Start copying a block into the area whose turn it is."""
        area, self._turn = self._turn, 1 - self._turn
        pending = None
        if self._worker is not None:
            pending = self._worker.submit(self._copy_through_buffer, order, area)
        else:
            self._copy(self._parcels[order].host, order, area)
        self._coming[order] = (area, pending)

    def _copy_through_buffer(self, order: int, area: int) -> None:
        if self._arrived[area] is not None:
            self._arrived[area].synchronize()  # what the buffer held before has reached the device
        with torch.inference_mode(False), torch.no_grad():
            for target, source in zip(self._buffered[area][order], self._parcels[order].host, strict=True):
                target.copy_(source)
            self._copy(self._buffered[area][order], order, area)

    def _copy(self, sources: Sequence[Tensor], order: int, area: int) -> None:
        with torch.no_grad(), torch.cuda.stream(self._stream) if self._stream else nullcontext():
            if self._stream and self._left[area] is not None:
                self._stream.wait_event(self._left[area])
            for target, source in zip(self._places[area][order], sources, strict=True):
                target.copy_(source, non_blocking=True)
            if self._stream:
                self._arrived[area] = self._stream.record_event()

    def _drain(self) -> None:
        """Wait for copies under way and forget them."""
        for _, pending in self._coming.values():
            if pending is not None:
                pending.result()
        self._coming.clear()
        if self._stream:
            self._stream.synchronize()
            torch.cuda.current_stream(self._device).synchronize()


def _point(parameters: Sequence[nn.Parameter], tensors: Sequence[Tensor]) -> None:
    for parameter, tensor in zip(parameters, tensors, strict=True):
        parameter.data = tensor


def _locked(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class HostBlocks:
    """Copies of blocks' parameters in page-locked host memory; `close` unlocks it.

    Memory is allocated by blocks and locked afterwards: torch's own page-locked memory comes in powers of two.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._locked: list[int] = []

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)

    @property
    def locked(self) -> bool:
        """Whether every buffer could be page-locked."""
        return len(self._locked) == len(self._buffers)

    @torch.no_grad()
    def take(self, block: nn.Module) -> None:
        """Move the parameters of `block`, wherever they are, into one host buffer."""
        parcel = Parcel.of(block, torch.device("meta"), everything=True)
        with torch.inference_mode(False):
            buffer = torch.empty(parcel.nbytes, dtype=torch.uint8)
        self._buffers.append(buffer)
        if torch.cuda.is_available():
            status = torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)
            if int(status) == 0:
                self._locked.append(buffer.data_ptr())
            else:
                log.warning(
                    "host memory cannot be page-locked (CUDA error %d); copies to the device are slower", int(status)
                )
        places = parcel.views(buffer)
        for place, source in zip(places, parcel.host, strict=True):
            place.copy_(source)
        _point(parcel.parameters, places)

    def close(self) -> None:
        for pointer in self._locked:
            torch.cuda.cudart().cudaHostUnregister(pointer)
        self._locked.clear()
        self._buffers.clear()
