"""The memory plan of a whole clip at the released size."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from streamrender_h3.nodes.model import RELEASE
from streamrender_h3.nodes.sampler.clip_memory import ClipJob, plan_clip_memory
from streamrender_h3.nodes.sampler.clip_plan import ClipShape
from streamrender_h3.nodes.sampler.memory import Need, decoder_working, encoder_working
from streamrender_h3.nodes.sampler.memory_plan import MemoryRefusal, WeightSizes
from vsa_reference import TileOrdered

GB = 10**9
BLOCK = 2 * 385_362_688
GATE = 2 * 7168 * 5376
REST = 2 * (770_730_752 + 27_530_496) + 4 * (521_472 + 177_408 + 516_192 + 172_064)
SIZE, REFERENCE = (768, 1344), (480, 832)


@pytest.fixture
def job():
    """FastH3 with its gates: 345 frames from text, 1,000 text rows, four steps, the TAE."""
    return ClipJob(
        config=replace(RELEASE, gate_compress=True),
        weights=WeightSizes((BLOCK + GATE,) * 50, REST, "bf16"),
        shape=ClipShape.of(345, SIZE),
        text_rows=1000,
        steps=4,
        itemsize=2,
        attention=TileOrdered(0.9),
        decoder=Need(11_000_000, decoder_working(SIZE, 2)),
    )


def terms(plan):
    return {term.name: term.nbytes for term in plan.terms}


def test_345_frames_fit_into_80_gb_with_everything_resident(job):
    plan = plan_clip_memory(job, 80 * GB)
    found = terms(plan)
    assert (plan.resident, plan.streamed) == (50, 0)
    assert found["50 of 50 blocks (bf16), weights"] == 50 * (BLOCK + GATE) == 42_389_785_600
    assert found["AdaLN tables"] == 9 * 9_698_304
    assert found["activations of 104,966 rows"] == 104_966 * (10_752 + 82_432 + 7_168) * 2
    assert plan.device_bytes == sum(found.values()) and 60 * GB < plan.device_bytes < 70 * GB
    assert "prefix bank" not in plan.summary and "all blocks resident" in plan.summary


def test_345_frames_fit_into_32_gb_with_blocks_streamed(job):
    plan = plan_clip_memory(job, 32 * GB)
    assert plan.device_bytes <= 32 * GB and 35 <= plan.streamed < 50
    assert terms(plan)["two staging areas for blocks"] == 2 * (BLOCK + GATE)
    host = [term for term in plan.terms if term.place == "host"]
    assert [term.nbytes for term in host] == [plan.streamed * (BLOCK + GATE)]


def test_weights_in_fp8_leave_more_blocks_on_a_small_card(job):
    fp8 = replace(job, weights=WeightSizes((BLOCK // 2 + GATE,) * 50, REST, "fp8 rows", 2 * 14336 * 5376 * 2))
    assert plan_clip_memory(fp8, 32 * GB).resident > plan_clip_memory(job, 32 * GB).resident
    assert plan_clip_memory(fp8, 48 * GB).streamed == 0


def test_dense_attention_computes_no_gate(job):
    dense = plan_clip_memory(replace(job, attention=None), None)
    sparse = plan_clip_memory(job, None)
    assert sparse.device_bytes - dense.device_bytes == 104_966 * 7168 * 2


def test_a_semantic_clip_adds_its_rows_and_the_encoder(job):
    shape = ClipShape.of(124, SIZE, REFERENCE)
    encoder = Need(11_000_000, encoder_working((SIZE, REFERENCE), 2))
    plan = plan_clip_memory(replace(job, shape=shape, text_rows=1500, encoder=encoder), 80 * GB)
    assert "activations of 54,648 rows" in terms(plan) and terms(plan)["encoder, weights"] == 11_000_000


def test_what_fits_in_no_way_is_refused_with_the_longest_clip_that_does(job):
    with pytest.raises(
        MemoryRefusal, match=r"345 frames at 1344x768 are 104,966 rows .* 16.00 GB are there. (\d+) frames"
    ) as e:
        plan_clip_memory(job, 16 * GB)
    frames = int(str(e.value).split("are there. ")[1].split()[0])
    assert plan_clip_memory(replace(job, shape=ClipShape.of(frames, SIZE)), 16 * GB).resident == 0
    with pytest.raises(MemoryRefusal):
        plan_clip_memory(replace(job, shape=ClipShape.of(frames + 17, SIZE)), 16 * GB)
    with pytest.raises(MemoryRefusal, match="No length fits"):
        plan_clip_memory(job, 2 * GB)
