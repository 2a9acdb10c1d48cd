"""Where unquantised banks and moving rows lie: sandwiched in one buffer per layer, or apart.

The order of keys means nothing to attention, and keys carry their rotation, so moving rows may stand before a prefix as
well as behind it.
"""

from __future__ import annotations

from torch import Tensor

from ..model import Stretch

TAIL_STEP = 64  # rows; moving rows differ by a few sound rows from chunk to chunk

Key = tuple[str, int]


def tail_rows(moving: int) -> int:
    """Room for `moving` rows, and for the few that another chunk may have more."""
    return -(-(moving + TAIL_STEP // 4) // TAIL_STEP) * TAIL_STEP


def new_stretch(rows: int, like: Tensor) -> Stretch:
    """Uninitialised keys and values of `rows` rows in the shape of `like` [*, heads, head_dim]."""
    return like.new_empty(rows, *like.shape[1:]), like.new_empty(rows, *like.shape[1:])


def cut(stretch: Stretch, start: int, count: int) -> Stretch:
    """Rows [start, start + count) of keys and values, as views."""
    return stretch[0][start : start + count], stretch[1][start : start + count]


def stretch_bytes(stretch: Stretch) -> int:
    return stretch[0].nbytes + stretch[1].nbytes


class Sandwich:
    """Per layer one buffer [bank of step 0 | moving rows | bank of step 1].

    Step 0 writes its moving rows at the left end of their room, step 1 at the right end, so that either step finds its
    bank and its moving rows as one stretch. For exactly two banks of equal length.
    """

    def __init__(self, moving: int) -> None:
        self._tail = tail_rows(moving)
        self._layers: list[Stretch] = []
        self._prefix = 0

    @property
    def nbytes(self) -> int:
        row = sum(stretch_bytes(layer) // len(layer[0]) for layer in self._layers)
        return 2 * self._prefix * row

    def own(self, key: Key, layer: int, like: Tensor) -> Stretch:
        if layer == len(self._layers):
            self._prefix = len(like)
            self._layers.append(new_stretch(2 * self._prefix + self._tail, like))
        if len(like) != self._prefix or key[1] > 1:
            raise RuntimeError(
                f"a sandwich holds two banks of {self._prefix} rows; step {key[1]} came with {len(like)} rows"
            )
        return self.finish(key, layer)

    def finish(self, key: Key, layer: int) -> Stretch:
        return cut(self._layers[layer], key[1] * (self._prefix + self._tail), self._prefix)

    def tail(self, key: Key, layer: int, like: Tensor) -> Stretch:
        if len(like) > self._tail:
            self._widen(tail_rows(len(like)))
        start = self._prefix + (self._tail - len(like)) * key[1]
        return cut(self._layers[layer], start, len(like))

    def seen(self, key: Key, layer: int, rows: int) -> tuple[Stretch, ...]:
        start = (self._prefix + self._tail - rows) * key[1]
        return (cut(self._layers[layer], start, self._prefix + rows),)

    def _widen(self, tail: int) -> None:
        """More room between the banks, layer by layer; moving rows of a forward under way are not kept."""
        for number, old in enumerate(self._layers):
            new = new_stretch(2 * self._prefix + tail, old[0])
            for source, target in zip(old, new, strict=True):
                target[: self._prefix] = source[: self._prefix]
                target[-self._prefix :] = source[-self._prefix :]
            self._layers[number] = new
        self._tail = tail


class Split:
    """Banks in memory of their own, and one room for moving rows that all layers and steps use in turn."""

    def __init__(self) -> None:
        self._banks: dict[Key, list[Stretch]] = {}
        self._room: Stretch | None = None

    @property
    def nbytes(self) -> int:
        return sum(stretch_bytes(layer) for bank in self._banks.values() for layer in bank)

    def own(self, key: Key, layer: int, like: Tensor) -> Stretch:
        bank = self._banks.setdefault(key, [])
        if layer == len(bank):
            bank.append(new_stretch(len(like), like))
        return bank[layer]

    def finish(self, key: Key, layer: int) -> Stretch:
        return self._banks[key][layer]

    def tail(self, key: Key, layer: int, like: Tensor) -> Stretch:
        if self._room is None or len(self._room[0]) < len(like):
            self._room = new_stretch(tail_rows(len(like)), like)
        return cut(self._room, 0, len(like))

    def seen(self, key: Key, layer: int, rows: int) -> tuple[Stretch, ...]:
        assert self._room is not None  # tail came before
        return self._banks[key][layer], cut(self._room, 0, rows)
