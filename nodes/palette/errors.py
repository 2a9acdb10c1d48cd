"""Errors of the palette room: every message says what arrived, what is needed and one thing to do."""


class PaletteError(ValueError):
    """A palette file or name that cannot be used."""


class ClipError(ValueError):
    """A semantic clip (video, folder, frames or sizes) that cannot be used."""
