"""Chunks of a preview on disk, the oldest thrown away when the space allotted is used up."""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from pathlib import Path

LIMIT = 192 * 2**20  # bytes per preview: a quarter of an hour and more at 832 pixels


class Ring:
    """Files numbered by chunk in a folder of their own. Safe to use from several threads."""

    def __init__(self, folder: Path, limit: int = LIMIT):
        self.folder, self.limit = folder, limit
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self._bytes, self._lock, self._closed = 0, threading.Lock(), False

    def put(self, number: int, data: bytes) -> int:
        """Keep the bytes of a chunk; returns the number of the oldest chunk that is still there."""
        with self._lock:
            if not self._closed:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._path(number).write_bytes(data)
                self._bytes += len(data) - self._sizes.pop(number, 0)
                self._sizes[number] = len(data)
                while self._bytes > self.limit and len(self._sizes) > 1:
                    oldest, size = self._sizes.popitem(last=False)
                    self._path(oldest).unlink(missing_ok=True)
                    self._bytes -= size
            return next(iter(self._sizes), number)

    def get(self, number: int) -> bytes | None:
        """The bytes of a chunk, or None when it was never there or is gone."""
        with self._lock:
            if number not in self._sizes:
                return None
        try:
            return self._path(number).read_bytes()
        except OSError:  # thrown away meanwhile, or the temporary folder was emptied
            return None

    def close(self) -> None:
        """Delete the files; whatever comes later is not kept."""
        with self._lock:
            self._closed = True
            self._sizes.clear()
            shutil.rmtree(self.folder, ignore_errors=True)

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        """How much is on disk."""
        return self._bytes

    def _path(self, number: int) -> Path:
        return self.folder / str(number)
