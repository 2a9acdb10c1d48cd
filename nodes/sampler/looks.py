"""Look changes on the way: a picture and a prompt that take over at a chunk border.

The weights were trained with one look per clip, so this is beyond what they were made for: the frozen sink keeps showing
the first look, and how fast the new one wins depends on the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from ..look import Look
from ..schedule import FPS, Schedule
from .finite import RenderError

BEYOND = "look changes are beyond what the weights were trained for; prefix banks are rebuilt at each"


@dataclass(frozen=True)
class LookChange:
    """From `seconds` on, `look`."""

    seconds: float
    look: Look


@dataclass(frozen=True)
class LookSequence(Look):
    """A look that others follow. It is its own first look, so whatever takes a look takes this too."""

    changes: tuple[LookChange, ...] = ()

    @property
    def looks(self) -> Iterator[Look]:
        """All looks in order of time."""
        yield self
        for change in self.changes:
            yield change.look


def add_change(previous: Look, look: Look, seconds: float) -> LookSequence:
    """`previous`, a look or a sequence, followed by `look` from `seconds` on. Raises `RenderError` for what cannot follow."""
    if isinstance(look, LookSequence):
        raise RenderError(
            "H3 Look Change: 'look' is already a sequence of looks; connect the sequence to 'previous' and a single look here"
        )
    if not (isinstance(look, Look) and isinstance(previous, Look)):
        raise RenderError(
            "H3 Look Change: a look without a picture cannot change on the way; connect H3 Look, not H3 Text"
        )
    if not seconds > 0:
        raise RenderError(f"H3 Look Change: start is {seconds} s; a change needs a time after 0. Set for example 2.0")
    if look.size != previous.size:
        raise RenderError(
            f"H3 Look Change: the new look is {look.size[1]}x{look.size[0]} and the one before it "
            f"{previous.size[1]}x{previous.size[0]}; one video has one size. Set the same width and height on both H3 Look nodes"
        )
    changes = previous.changes if isinstance(previous, LookSequence) else ()
    if changes and seconds <= changes[-1].seconds:
        raise RenderError(
            f"H3 Look Change: start is {seconds} s and the change before it is at {changes[-1].seconds} s; "
            "times must rise along the chain. Set a later start"
        )
    first = {field.name: getattr(previous, field.name) for field in fields(Look)}
    return LookSequence(**first, changes=(*changes, LookChange(seconds, look)))


def look_plan(look: Look, schedule: Schedule, frames: int) -> dict[int, Look]:
    """The look that takes over at each chunk index: always at 0, and the changes at the chunk borders nearest to their times.

    A change after the end of the clip has no chunk. Raises `RenderError` for two at one border.
    """
    plan = {0: look}
    for change in look.changes if isinstance(look, LookSequence) else ():
        wanted = change.seconds * FPS
        if wanted >= frames:
            continue
        chunks = range(1, max(2, schedule.chunks_for(frames)))
        chunk = min(chunks, key=lambda index: abs(schedule.window_at(index).frames.start - wanted))
        if chunk in plan:
            raise RenderError(
                f"H3 Look Change: two looks begin at chunk {chunk} (near {change.seconds} s); chunks are about a third of a "
                "second long. Set the times further apart"
            )
        plan[chunk] = change.look
    return plan


def look_facts(plan: dict[int, Look], schedule: Schedule) -> dict[str, object]:
    """For the report: where looks change, and that this is beyond the training. Empty for a single look."""
    if len(plan) == 1:
        return {}
    starts = {chunk: schedule.window_at(chunk).frames.start for chunk in plan if chunk}
    at = [{"chunk": chunk, "frame": frame, "seconds": round(frame / FPS, 3)} for chunk, frame in starts.items()]
    return {"look_changes": at, "look_changes_note": BEYOND}
