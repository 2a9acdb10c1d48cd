"""What to do when a render stops early: give the device its memory back at once."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frames_released() -> Iterator[None]:
    """On an error, let go of what its traceback still holds: the prefix bank, activations, the decoder's memory.

    Whoever catches the error keeps its traceback, and with it every local variable on the way, for as long as it likes.
    """
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
