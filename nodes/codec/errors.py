"""The two errors of this room: a codec was given something it cannot take, or a file is not a codec we know."""

from __future__ import annotations


class CodecError(ValueError):
    """Frames or latents that a codec cannot take; the message says what arrived, what is needed and what to do."""


class CodecFileError(CodecError):
    """A weights file that is not the codec asked for, or is damaged."""
