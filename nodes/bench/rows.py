"""What a measurement is: rows of one shape for every part, as a table to read and as JSON to compare."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

log = logging.getLogger(__name__)

Size = tuple[int, int]  # (height, width) in pixels


class BenchError(ValueError):
    """What was asked cannot be measured here; the message says what to change."""


@dataclass(frozen=True)
class Options:
    """What to measure. `sizes` are pixels, (height, width); empty means the part's own."""

    preset: str  # full: the released sizes; example: those of the shipped example
    sizes: tuple[Size, ...]
    device: str
    text_rows: int | None = None  # of the prompt with its picture; None: the preset's
    forms: str = ""  # of the transformer: those `asked_for`; of a chunk plain modules too
    frames: tuple[int, ...] = ()  # of whole clips; empty means the preset's
    source: str | None = None  # JSON of an earlier run, for the part that measures nothing itself


@dataclass(frozen=True)
class Row:
    """One thing measured. `limit_ms` is the least time its arithmetic can take here, None where nothing is compared."""

    name: str
    ms: float
    tflops: float | None = None
    limit_ms: float | None = None
    peak_gib: float | None = None

    @property
    def limit_fraction(self) -> float | None:
        """Limit over time: 1 is perfect."""
        return self.limit_ms / self.ms if self.limit_ms and self.ms else None

    def as_dict(self) -> dict[str, Any]:
        fields = ("name", "ms", "tflops", "limit_ms", "limit_fraction", "peak_gib")
        return {name: rounded(getattr(self, name)) for name in fields}


@dataclass
class Report:
    """Rows under a title, and the facts drawn from them."""

    title: str
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    part: str = ""

    @contextmanager
    def surviving(self, name: str) -> Iterator[None]:
        """What fails in here becomes a fact: one thing that cannot run must not cost the figures of the others."""
        try:
            yield
        except Exception as error:
            self.facts[f"{name}: failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            log.exception("%s failed", name)

    def row(self, name: str) -> Row:
        """The row of this name."""
        return next(row for row in self.rows if row.name == name)

    def as_dict(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "title": self.title,
            "rows": [row.as_dict() for row in self.rows],
            "facts": {name: rounded(value) for name, value in self.facts.items()},
        }

    def as_text(self) -> str:
        wide = max([44, *(len(row.name) for row in self.rows)])
        lines = [self.title, f"  {'':{wide}} {'ms':>9} {'TFLOP/s':>8} {'limit ms':>9} {'of limit':>8} {'peak GiB':>8}"]
        for row in self.rows:
            share = "" if row.limit_fraction is None else f"{row.limit_fraction:.0%}"
            cells = (f"{row.ms:.3f}", number(row.tflops, 1), number(row.limit_ms, 3), share, number(row.peak_gib, 2))
            lines.append(
                "  "
                + f"{row.name:{wide}} "
                + " ".join(f"{c:>{w}}" for c, w in zip(cells, (9, 8, 9, 8, 8), strict=True))
            )
        lines += [f"  {name}: {rounded(value)}" for name, value in self.facts.items()]
        return "\n".join(lines)


def as_json(options: Options, part: str, machine: dict[str, str], reports: list[Report]) -> str:
    """One JSON document for a run; `machine` names the device and the software."""
    document = {
        "part": part,
        **machine,
        "options": asdict(options),
        "reports": [report.as_dict() for report in reports],
    }
    return json.dumps(document, indent=1)


def asked_for(forms: str, name: str) -> bool:
    """Whether a form's name holds one of the texts that `forms` gives, with | between them."""
    return any(part.strip() in name for part in forms.split("|"))


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
