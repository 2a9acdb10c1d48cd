"""What can be wrong: errors that end the work, and troubles that are worked around and named.

Every error message says what arrived, what is needed and one thing to do.
"""

from __future__ import annotations

from dataclasses import dataclass


class PaletteError(ValueError):
    """A palette file or name that cannot be used."""


class ClipError(ValueError):
    """A semantic clip (video, folder, frames or sizes) that cannot be used."""


@dataclass(frozen=True)
class Trouble:
    """Something unusual about a source that does not stop it from being read: its short name, what it is, the remedy."""

    cause: str
    detail: str
    advice: str
