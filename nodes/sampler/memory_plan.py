"""The memory plan: what lives on the device, what is streamed, in which form the prefix bank is kept, so that it fits.

What changes no number comes first: everything resident and the bank in its fastest form, then in its smaller one, then
blocks streamed from host memory. Only then the bank goes to fp8. A render that fits in no way is refused with the largest
size that would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..model import H3Config
from ..schedule import Geometry, Schedule, tile_plan
from .bank import FP8, SANDWICH, SPLIT
from .memory import FLOAT8_ITEMSIZE, Need, Rows, bank_bytes, forward_bytes, room_bytes, table_bytes, window_bytes
from .network import PREFIX
from .window_sparse import NAME as SPARSE_WINDOW

BANK_AUTO, BANK_FP8, BANK_PLAIN = "auto", "fp8", "plain"
TO_SPARE = 2_000_000_000  # bytes that must stay free beside the fastest form of the bank
SIZE_STEP, SMALLEST_SIDE = 32, 64  # pixels; sizes are multiples of the step
STREAM_AREAS = 2


NOTHING = Need()


class MemoryRefusal(ValueError):
    """A render that does not fit; the message names the largest size that would."""


@dataclass(frozen=True)
class WeightSizes:
    """Bytes of the transformer on the device: one number per block, everything else, and one layer dequantised.

    `scratch` is 0 when no weight is in codes; `form` says the number format in words.
    """

    blocks: tuple[int, ...]
    rest: int
    form: str
    scratch: int = 0


@dataclass(frozen=True)
class Job:
    """A render, as far as memory is concerned. Sizes are (height, width) in pixels.

    `codecs` gives the needs of encoder and decoder at a size, `text_encoder` of an encoder that runs before all else;
    its `working` then counts one layer streamed.
    """

    config: H3Config
    weights: WeightSizes
    schedule: Schedule
    size: tuple[int, int]
    reference_size: tuple[int, int]
    text_rows: int
    steps: int
    branches: int
    attention: str
    itemsize: int
    encoder: Need = NOTHING
    decoder: Need = NOTHING
    text_encoder: Need | None = None
    bank: str = BANK_AUTO  # number format: auto, plain or fp8
    form: str = BANK_AUTO  # of an unquantised bank: auto, sandwich or split
    sparse_window: bool = False  # an experiment

    @property
    def geometry(self) -> Geometry:
        return Geometry.from_sizes(target=self.size, reference=self.reference_size, picture=self.size)


@dataclass(frozen=True)
class Term:
    """One line of the plan."""

    name: str
    nbytes: int
    place: str  # device, host, or "device, before": gone when the render begins


@dataclass(frozen=True)
class MemoryPlan:
    """What was decided, and why it fits.

    Attributes:
        terms: bytes by part.
        device_bytes: the most that is alive on the device at once.
        budget: bytes the device has for it; None when nobody set a limit.
        resident: blocks that live on the device; the other `layers - resident` are streamed.
        bank: form of the prefix bank: sandwich, split or fp8; empty where there is none.
        text_streamed: the text encoder's layers are streamed as well.
    """

    terms: tuple[Term, ...]
    device_bytes: int
    budget: int | None
    layers: int
    resident: int
    bank: str
    text_streamed: bool = False

    @property
    def streamed(self) -> int:
        return self.layers - self.resident

    @property
    def working_bytes(self) -> int:
        """Device bytes beside the weights of transformer and codecs."""
        return self.device_bytes - sum(term.nbytes for term in self.terms if term.name.endswith("weights"))

    @property
    def summary(self) -> str:
        blocks = (
            "all blocks resident"
            if not self.streamed
            else f"{self.streamed} of {self.layers} blocks streamed from host memory"
        )
        limit = "no limit set" if self.budget is None else f"of {giga(self.budget)}"
        bank = f", prefix bank: {self.bank}" if self.bank else ""
        return f"memory plan: {giga(self.device_bytes)} on the device, {limit}; {blocks}{bank}"

    def as_text(self) -> str:
        """The summary and one line per part."""
        lines = [f"  {term.name:<34} {giga(term.nbytes):>9}  {term.place}" for term in self.terms]
        return "\n".join([self.summary, *lines])

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "device_bytes": self.device_bytes,
            "budget_bytes": self.budget,
            "blocks_resident": self.resident,
            "blocks_streamed": self.streamed,
            "prefix_bank": self.bank,
            "text_encoder_streamed": self.text_streamed,
            "terms": {term.name: term.nbytes for term in self.terms},
        }


def giga(count: int) -> str:
    """Bytes in words: decimal gigabytes, or megabytes when that is little."""
    return f"{count / 1e9:.2f} GB" if count >= 5e8 else f"{count / 1e6:.1f} MB"


def plan_memory(job: Job, budget: int | None) -> MemoryPlan:
    """Decide for a device with `budget` bytes. Raises MemoryRefusal when nothing fits."""
    layers, forms = len(job.weights.blocks), bank_forms(job)
    for form in forms:
        spare = TO_SPARE if form == SANDWICH and job.form == BANK_AUTO else 0
        resident = _resident_blocks(job, form, None if budget is None else budget - spare)
        if resident is not None and (resident == layers or not spare):
            return _write_down(job, budget, resident, form)
    assert budget is not None
    raise MemoryRefusal(_refusal(job, budget, forms))


def bank_forms(job: Job) -> tuple[str, ...]:
    """Forms of the bank in the order of trial; a sandwich is for two banks. Raises MemoryRefusal for one that cannot be."""
    two = job.steps * job.branches == 2
    if job.form == SANDWICH and not two and job.attention == PREFIX:
        raise MemoryRefusal(
            f"the prefix bank was asked for as a sandwich, which holds two; {job.steps} steps and {job.branches} guidance "
            f"branches make {job.steps * job.branches}. Use split."
        )
    plain = {BANK_AUTO: (SANDWICH, SPLIT) if two else (SPLIT,), SANDWICH: (SANDWICH,), SPLIT: (SPLIT,)}[job.form]
    if job.attention != PREFIX:
        return (SPLIT,)
    return {BANK_AUTO: (*plain, FP8), BANK_PLAIN: plain, BANK_FP8: (FP8,)}[job.bank]


def _resident_blocks(job: Job, form: str, budget: int | None) -> int | None:
    """The largest number of resident blocks that fits; None when not even streaming every block does."""
    layers = len(job.weights.blocks)
    if budget is None or _device_bytes(job, layers, form) <= budget:
        return layers
    return next((count for count in range(layers - 1, -1, -1) if _device_bytes(job, count, form) <= budget), None)


def _device_bytes(job: Job, resident: int, form: str) -> int:
    """The most that is alive at once, in whichever kind of forward."""
    rows = job_rows(job)
    banks = _banks(job, form) + room_bytes(job.config, rows, form, job.itemsize)
    forwards = forward_bytes(job.config, rows, banks, job.attention, job.itemsize)
    fixed = sum(term.nbytes for term in _fixed_terms(job, resident))
    return fixed + max(forwards.values())


def job_rows(job: Job) -> Rows:
    return Rows.of(job.schedule, job.geometry, job.text_rows)


def _banks(job: Job, form: str) -> int:
    itemsize = FLOAT8_ITEMSIZE if form == FP8 else job.itemsize
    return bank_bytes(job.config, job_rows(job).prefix, job.steps * job.branches, itemsize)


def _fixed_terms(job: Job, resident: int) -> list[Term]:
    """What stays on the device during the whole render."""
    weights, largest = job.weights, max(job.weights.blocks, default=0)
    layers = len(weights.blocks)
    blocks = sum(sorted(weights.blocks)[layers - resident :])
    tables = table_bytes(job.config, 2 * job.steps + 1, job.itemsize)
    terms = [
        Term(f"{resident} of {layers} blocks ({weights.form}), weights", blocks, "device"),
        Term("text refiner and heads, weights", weights.rest, "device"),
        Term("AdaLN tables", tables, "device"),
    ]
    if weights.scratch:
        terms.append(Term("one layer dequantised", weights.scratch, "device"))
    if resident < layers:
        terms.append(Term("two staging areas for blocks", STREAM_AREAS * largest, "device"))
    if job.sparse_window:
        tiles = tile_plan(job.schedule.window_at(1), job.geometry)
        nbytes = window_bytes(job.config, tiles, job_rows(job), job.steps * job.branches, job.itemsize)
        terms.append(Term(SPARSE_WINDOW, nbytes, "device"))
    for name, need in (("encoder", job.encoder), ("decoder", job.decoder)):
        if need.total:
            terms += [
                Term(f"{name}, weights", need.weights, "device"),
                Term(f"{name}, working", need.working, "device"),
            ]
    return terms


def _write_down(job: Job, budget: int | None, resident: int, form: str) -> MemoryPlan:
    rows, banks = job_rows(job), _banks(job, form)
    room = room_bytes(job.config, rows, form, job.itemsize)
    forwards = forward_bytes(job.config, rows, banks + room, job.attention, job.itemsize)
    widest = max(forwards, key=lambda name: forwards[name])
    terms = _fixed_terms(job, resident)
    if job.attention == PREFIX:
        where = "every layer" if form == SANDWICH else "one layer"
        terms.append(Term(f"{job.steps * job.branches} prefix banks of {rows.prefix:,} rows", banks, "device"))
        terms.append(Term(f"room beside the banks, {where}", room, "device"))
    count = {"bootstrap": rows.bootstrap, "prefix": rows.prefix, "continuation": rows.moving}
    peak_rows = count.get(widest, max(rows.bootstrap, rows.prefix + rows.moving))
    beside = banks + room if widest in ("prefix", "continuation") else 0
    terms.append(Term(f"activations of {peak_rows:,} rows ({widest})", forwards[widest] - beside, "device"))
    layers = len(job.weights.blocks)
    if resident < layers:
        terms.append(
            Term(f"{layers - resident} blocks to stream", sum(sorted(job.weights.blocks)[: layers - resident]), "host")
        )
    streamed_text = False
    if job.text_encoder is not None:
        codecs = job.encoder.weights + job.decoder.weights
        streamed_text = budget is not None and job.text_encoder.total + codecs > budget
        words = "text encoder, layers streamed" if streamed_text else "text encoder"
        on_device = job.text_encoder.working if streamed_text else job.text_encoder.total
        terms.append(Term(words, on_device, "device, before"))
    total = _device_bytes(job, resident, form)
    return MemoryPlan(tuple(terms), total, budget, layers, resident, form, streamed_text)


def _refusal(job: Job, budget: int, forms: tuple[str, ...]) -> str:
    least = _device_bytes(job, 0, forms[-1])
    smaller = largest_size(job, budget, forms[-1])
    advice = (
        f"The largest size that fits is {smaller[1]}x{smaller[0]}; set it, or free device memory."
        if smaller
        else "No size fits; use a device with more memory, weights in fp8, or a smaller decoder."
    )
    return (
        f"{job.size[1]}x{job.size[0]} with {job.text_rows:,} text rows needs {giga(least)} on the device even with every block "
        f"streamed{' and an fp8 prefix bank' if forms[-1] == FP8 else ''}; {giga(budget)} are there. {advice}"
    )


def largest_size(job: Job, budget: int, form: str) -> tuple[int, int] | None:
    """The largest (height, width) of about the same shape that fits with every block streamed, None when none does."""
    for height in range(job.size[0] - SIZE_STEP, SMALLEST_SIDE - 1, -SIZE_STEP):
        width = max(SMALLEST_SIDE, round(job.size[1] * height / job.size[0] / SIZE_STEP) * SIZE_STEP)
        if _device_bytes(resized(job, (height, width)), 0, form) <= budget:
            return height, width
    return None


def resized(job: Job, size: tuple[int, int]) -> Job:
    """The job at another video size. Codec working memory shrinks with the area, picture rows in the text with them."""
    share = size[0] * size[1] / (job.size[0] * job.size[1])
    picture = (job.size[0] // SIZE_STEP) * (job.size[1] // SIZE_STEP)
    new_picture = (size[0] // SIZE_STEP) * (size[1] // SIZE_STEP)
    return replace(
        job,
        size=size,
        text_rows=max(1, job.text_rows - picture + new_picture),
        encoder=replace(job.encoder, working=int(job.encoder.working * share)),
        decoder=replace(job.decoder, working=int(job.decoder.working * share)),
    )
