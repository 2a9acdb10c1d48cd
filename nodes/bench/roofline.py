"""The part `roofline`: what a chunk may take on cards that were not at hand, by arithmetic from a measured run.

A measured run of `chunk` gives the share of a card's peak that products and attention reach, and how much longer than
both the whole chunk takes. Other cards are assumed to reach the same shares of their own peaks; where sustained rates of
a card are published they are used as they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chunk import ATTENTION_RATE, ATTENTION_WORK, PRODUCTS_RATE, PRODUCTS_WORK
from .rows import BenchError, Options, Report, Row
from .variants import FUSED

EXACT, FP8 = f"{FUSED}, sandwich", f"{FUSED}, fp8 linears"
FORMS = {EXACT: "bf16", FP8: "fp8"}  # forms of the transformer, and the products that each runs on


@dataclass(frozen=True)
class Card:
    """Dense TFLOP/s of a card. `peak` is by its maker; `sustained` rates of (products, attention) in bf16 go before it."""

    name: str
    peak: float  # bf16, float32 accumulation
    memory_gb: int
    source: str
    sustained: tuple[float, float] | None = None
    fp8_factor: float = 2.0  # fp8 products against bf16 ones


# The cards of the specification's rooflines (attention, section 3).
CARDS = (
    Card("NVIDIA H200", 989.5, 141, "peak by the maker's data sheet"),
    Card("NVIDIA B200", 2200.0, 180, "peak by the maker's data sheet, 2.2 PFLOP/s dense"),
    Card(
        "NVIDIA RTX PRO 6000 Blackwell", 503.8, 96,
        "peak by the maker's figures; rates used are sustained ones implied by h3-sparse-attn's published table: 328 to 341 for "
        "a whole step (335 here for products), 360 for attention; fp8 products at twice that, which nobody has measured",
        sustained=(335.0, 360.0),
    ),
    Card("NVIDIA RTX 5090", 209.5, 32, "peak by the maker's data sheet, float32 accumulation"),
)  # fmt: skip
WEIGHTS_GB = {"bf16": 40.1, "fp8": 20.9}  # of the released model in table form, large layers in bf16 or fp8
BANKS_GB = 20.4  # two banks in bf16 at 7,115 prefix rows


@dataclass(frozen=True)
class Measured:
    """What a run of `chunk` says of one form. Work in TFLOP, rates in TFLOP/s; `overhead` is chunk over products and attention."""

    products_work: float
    attention_work: float
    products_rate: float
    attention_rate: float
    overhead: float


def chunk_ms(card: Card, here: Card, form: str, measured: Measured) -> tuple[float, float]:
    """Milliseconds of a chunk on `card` by efficiencies measured on `here`, and at the card's peak."""
    factor = card.fp8_factor if FORMS[form] == "fp8" else 1.0
    if card.sustained:
        products, attention = card.sustained[0] * factor, card.sustained[1]
    else:
        here_factor = here.fp8_factor if FORMS[form] == "fp8" else 1.0
        products = measured.products_rate / (here.peak * here_factor) * card.peak * factor
        attention = measured.attention_rate / here.peak * card.peak
    least = measured.products_work / (card.peak * factor) + measured.attention_work / card.peak
    time = measured.products_work / products + measured.attention_work / attention
    return 1000 * measured.overhead * time, 1000 * least


def measure(options: Options) -> list[Report]:
    """One report, from the file that `--from` names."""
    if not options.source:
        raise BenchError("roofline was asked for without a measured run; write one with `bench chunk --json chunk.json` "
                         "and give it with --from chunk.json")  # fmt: skip
    document = read(Path(options.source))
    chunk = next(report for report in document["reports"] if report["part"] == "chunk")
    here = card_of(document)
    made = Report(f"On paper: a chunk of {chunk['title'].removeprefix('H3 ')}")
    for form in FORMS:
        found = of_form(chunk, form)
        if found is None:
            continue
        work = found.products_work + found.attention_work
        for card in CARDS:
            ms, least = chunk_ms(card, here, form, found)
            made.rows.append(Row(f"{form}: {card.name}", ms, 1000 * work / ms, least))
        made.facts[f"{form}: measured on {here.name}, TFLOP/s of products"] = found.products_rate
        made.facts[f"{form}: measured on {here.name}, TFLOP/s of attention"] = found.attention_rate
        made.facts[f"{form}: measured on {here.name}, chunk over products and attention"] = found.overhead
    made.facts["measured"] = (
        f"the three figures of each form on {here.name}, {document['date']}, torch {document['torch']}"
    )
    made.facts["arithmetic"] = (
        "every row; the limit is the work at the card's peak, fp8 products at twice the bf16 rate"
    )
    for card in CARDS:
        made.facts[f"assumed: {card.name}"] = f"{card.peak} TFLOP/s bf16 dense; {card.source}"
        for form, kind in FORMS.items():
            need = WEIGHTS_GB[kind] + BANKS_GB
            if need > card.memory_gb:
                made.facts[f"does not fit {card.name}: {form}"] = (
                    f"weights and banks need {need:.0f} GB of {card.memory_gb}; blocks must be streamed or kept in fewer "
                    "bits, so its row is a bound and not a forecast"
                )
    return [made]


def card_of(document: dict[str, Any]) -> Card:
    """The card of the table that a run was measured on."""
    for card in CARDS:
        if card.name in document["device"]:
            return card
    raise BenchError(
        f"the run was measured on {document['device']}, whose peak is not in the table; "
        f"measure on one of {', '.join(card.name for card in CARDS)}"
    )


def read(path: Path) -> dict[str, Any]:
    """The JSON of a run that has the part `chunk`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        parts = [report["part"] for report in document["reports"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path} is no JSON of bench ({error}); write one with `bench chunk --json {path}`") from None
    if "chunk" not in parts:
        raise BenchError(f"{path} holds the parts {', '.join(parts)} and not chunk; run `bench chunk --json {path}`")
    return document


def of_form(chunk: dict[str, Any], form: str) -> Measured | None:
    """The figures of a form in the report of `chunk`; None where it was not measured."""
    facts, rows = chunk["facts"], {row["name"]: row for row in chunk["rows"]}
    products = facts.get(PRODUCTS_RATE + FORMS[form])
    if form not in rows or products is None:
        return None
    row = rows[form]
    return Measured(
        facts[PRODUCTS_WORK], facts[ATTENTION_WORK], products, facts[ATTENTION_RATE], row["ms"] / row["limit_ms"]
    )
