"""The memory plan of a whole clip: all its rows are alive at once, so blocks are streamed when they do not fit beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..model import H3Config
from ..schedule.clock import FRAMES_PER_CYCLE
from .clip_attention import ClipAttention, RowSegments
from .clip_plan import LEAST_FRAMES, ClipShape, latents_of, sound_of
from .memory import Need, activation_bytes, table_bytes
from .memory_plan import NOTHING, STREAM_AREAS, MemoryPlan, MemoryRefusal, Term, WeightSizes, giga

FLOAT_BYTES = 4
LATENT_COPIES = 6  # noise, prediction, velocity and their neighbours during a step
LATENT_VALUES, SOUND_VALUES = 24, 64  # channels, of both sides for the sound


@dataclass(frozen=True)
class ClipJob:
    """A clip, as far as memory is concerned: one call of the model, the longest there is, with `steps` noise levels."""

    config: H3Config
    weights: WeightSizes
    shape: ClipShape
    text_rows: int
    steps: int
    itemsize: int
    attention: ClipAttention | None = None
    encoder: Need = NOTHING
    decoder: Need = NOTHING

    @property
    def rows(self) -> int:
        return self.shape.rows(self.text_rows)


def plan_clip_memory(job: ClipJob, budget: int | None) -> MemoryPlan:
    """As many resident blocks as fit into `budget` bytes; None for no limit.

    Raises `MemoryRefusal`, naming the longest clip of the same size that fits, when not even streaming every block does.
    """
    layers = len(job.weights.blocks)
    for resident in range(layers, -1, -1):
        terms = _terms(job, resident)
        total = sum(term.nbytes for term in terms if term.place == "device")
        if budget is None or total <= budget:
            return MemoryPlan(tuple(terms), total, budget, layers, resident, bank="")
    raise MemoryRefusal(_refusal(job, total, budget or 0))


def _terms(job: ClipJob, resident: int) -> list[Term]:
    weights, layers = job.weights, len(job.weights.blocks)
    by_size = sorted(weights.blocks)
    streamed, blocks = by_size[: layers - resident], by_size[layers - resident :]
    height, width = job.shape.target
    cells = LATENT_VALUES * latents_of(job.shape.frames) * height * width
    latents = (cells + SOUND_VALUES * sound_of(job.shape.frames)) * FLOAT_BYTES * LATENT_COPIES
    gates = job.rows * job.config.inner * job.itemsize if job.config.gate_compress and job.attention else 0
    terms = [
        Term(f"{resident} of {layers} blocks ({weights.form}), weights", sum(blocks), "device"),
        Term("text refiner and heads, weights", weights.rest, "device"),
        Term("AdaLN tables", table_bytes(job.config, 2 * job.steps + 1, job.itemsize), "device"),
        Term(
            f"activations of {job.rows:,} rows", activation_bytes(job.config, job.rows, job.itemsize) + gates, "device"
        ),
        Term("latents of the clip", latents, "device"),
    ]
    if job.attention is not None:
        segments = RowSegments.of(job.shape, job.text_rows)
        working = job.attention.working_bytes(segments, job.config.heads, job.config.head_dim, job.itemsize)
        terms.append(Term("sparse attention, working", working, "device"))
    if weights.scratch:
        terms.append(Term("one layer dequantised", weights.scratch, "device"))
    if streamed:
        terms.append(Term("two staging areas for blocks", STREAM_AREAS * by_size[-1], "device"))
    for name, need in (("encoder", job.encoder), ("decoder", job.decoder)):
        if need.total:
            terms += [
                Term(f"{name}, weights", need.weights, "device"),
                Term(f"{name}, working", need.working, "device"),
            ]
    if streamed:
        terms.append(Term(f"{len(streamed)} blocks to stream", sum(streamed), "host"))
    return terms


def _refusal(job: ClipJob, least: int, budget: int) -> str:
    frames = job.shape.frames
    while frames > LEAST_FRAMES:
        frames -= FRAMES_PER_CYCLE
        shorter = replace(job, shape=replace(job.shape, frames=frames))
        if sum(term.nbytes for term in _terms(shorter, 0) if term.place == "device") <= budget:
            advice = f"{frames} frames at a time fit; set them, or a smaller size, or free device memory."
            break
    else:
        advice = "No length fits; set a smaller size, or use weights in fp8 or a device with more memory."
    return (
        f"{job.shape.frames} frames at {16 * job.shape.target[1]}x{16 * job.shape.target[0]} are {job.rows:,} rows and need "
        f"{giga(least)} on the device even with every block streamed; {giga(budget)} are there. {advice}"
    )
