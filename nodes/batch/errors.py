"""What is wrong with the description of a batch, before anything is queued."""

from __future__ import annotations


class BatchError(ValueError):
    """A batch that cannot be made of what was given; the message says what arrived, what is needed and one thing to do."""
