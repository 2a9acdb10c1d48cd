"""What goes wrong in planning: a value outside its range, told with the range and a way out."""

from __future__ import annotations


class ScheduleError(ValueError):
    """What cannot be planned; the message says what arrived, what is needed and one thing to do."""


def whole_number(name: str, value: object, minimum: int, remedy: str) -> int:
    """`value` if it is an int of at least `minimum`, else a `ScheduleError` naming it and the remedy."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ScheduleError(f"{name} is {value!r}; a whole number of at least {minimum} is needed. {remedy}")
    if value < minimum:
        raise ScheduleError(f"{name} is {value}; at least {minimum} is needed. {remedy}")
    return value
