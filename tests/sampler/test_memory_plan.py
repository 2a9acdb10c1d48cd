"""The memory plan: every term from sizes alone, what it picks for a device, what it refuses and what it offers instead."""

from dataclasses import replace

import pytest
import torch
from streamrender_h3.nodes.codec import load_decoder, load_encoder
from streamrender_h3.nodes.loader import load_h3, write_h3
from streamrender_h3.nodes.loader.placement import place
from streamrender_h3.nodes.loader.weight_sizes import transformer_sizes
from streamrender_h3.nodes.model import RELEASE as RELEASED
from streamrender_h3.nodes.sampler import Network, Rollout, TimeGrid
from streamrender_h3.nodes.sampler.bank import PrefixBank
from streamrender_h3.nodes.sampler.memory import Need, Rows, bank_bytes, decoder_working, encoder_working
from streamrender_h3.nodes.sampler.memory_budget import asked_bank, asked_form, asked_gigabytes, device_budget
from streamrender_h3.nodes.sampler.memory_job import (
    decoder_file_need,
    decoder_need,
    encoder_file_need,
    job_of,
    shapes_of,
)
from streamrender_h3.nodes.sampler.memory_plan import Job, MemoryRefusal, WeightSizes, plan_memory
from streamrender_h3.nodes.schedule import RELEASE

GB = 10**9
BLOCK = 2 * 385_362_688  # bf16; 115,605,504 + 38,535,168 + 154,140,672 + 77,070,336 + 11,008 parameters
REST = 2 * (770_730_752 + 27_530_496) + 4 * (521_472 + 177_408 + 516_192 + 172_064)


@pytest.fixture
def job():
    """StreamRender-H3 at its released size with the example's 1,883 text rows and the TAE on both sides."""
    size, reference = (768, 1344), (480, 832)
    return Job(
        config=RELEASED,
        weights=WeightSizes((BLOCK,) * 50, REST, "bf16"),
        schedule=RELEASE,
        size=size,
        reference_size=reference,
        text_rows=1883,
        steps=2,
        branches=1,
        attention="prefix",
        itemsize=2,
        encoder=Need(11_000_000, encoder_working((size, reference), 2)),
        decoder=Need(11_000_000, decoder_working(size, 2)),
    )


def terms(plan):
    return {term.name: term.nbytes for term in plan.terms}


def test_rows_are_those_of_the_specification(job):
    """P = text + picture + 3 references + 3 latents + 30 sounds; B = 15,190 at 1,500 text rows; M = 7,048."""
    rows = Rows.of(RELEASE, job.geometry, 1500)
    assert (rows.bootstrap, rows.prefix, rows.moving) == (15_190, 6_732, 7_048)


def test_banks_are_1433600_bytes_a_row_and_step():
    assert bank_bytes(RELEASED, 6732, 2, 2) == 2 * 6732 * 1_433_600
    assert (
        bank_bytes(RELEASED, 6732, 2, 1) == 6732 * 1_433_600 + 2 * 2 * 50 * 56 * 6732 * 2
    )  # and a bf16 scale per head


def test_everything_is_resident_without_a_limit(job):
    plan = plan_memory(job, None)
    assert (plan.resident, plan.streamed, plan.bank, plan.budget) == (50, 0, "sandwich", None)
    found = terms(plan)
    assert found["50 of 50 blocks (bf16), weights"] == 50 * BLOCK
    assert found["text refiner and heads, weights"] == REST
    assert found["2 prefix banks of 7,115 rows"] == 2 * 7115 * 1_433_600
    assert (
        found["room beside the banks, every layer"] == 50 * 7104 * 2 * 7168 * 2
    )  # 7,048 moving rows and a few to spare
    assert plan.device_bytes == sum(term.nbytes for term in plan.terms)
    assert 70 * GB < plan.device_bytes < 75 * GB


@pytest.mark.parametrize(
    ("gigabytes", "streamed", "bank"),
    [(80, False, "sandwich"), (72, False, "split"), (48, True, "split"), (32, True, "split"), (24, True, "fp8")],
)
def test_what_is_exact_comes_first(job, gigabytes, streamed, bank):
    plan = plan_memory(job, gigabytes * GB)
    assert (plan.streamed > 0, plan.bank) == (streamed, bank)
    assert plan.device_bytes <= gigabytes * GB
    assert plan.device_bytes == sum(term.nbytes for term in plan.terms if term.place == "device")
    if streamed:  # one more resident block would not fit
        assert plan.device_bytes + BLOCK > gigabytes * GB
        assert terms(plan)[f"{plan.streamed} blocks to stream"] == plan.streamed * BLOCK
        assert terms(plan)["two staging areas for blocks"] == 2 * BLOCK


def test_fp8_weights_make_room_for_more_resident_blocks(job):
    small = replace(job, weights=WeightSizes((BLOCK // 2,) * 50, REST, "fp8 rows", scratch=308_281_344))
    plain, narrow = plan_memory(job, 48 * GB), plan_memory(small, 48 * GB)
    assert narrow.resident == 50 and plain.resident < 50
    assert terms(narrow)["one layer dequantised"] == 308_281_344


def test_the_bank_format_can_be_asked_for(job):
    assert plan_memory(replace(job, bank="fp8"), None).bank == "fp8"
    assert plan_memory(replace(job, form="split"), None).bank == "split"
    tight = plan_memory(replace(job, form="sandwich"), 72 * GB)
    assert (tight.bank, tight.streamed > 0) == ("sandwich", True)  # asked for, it needs nothing to spare
    assert plan_memory(replace(job, steps=4), None).bank == "split"
    with pytest.raises(MemoryRefusal, match="4 steps and 1 guidance branches make 4"):
        plan_memory(replace(job, steps=4, form="sandwich"), None)
    with pytest.raises(MemoryRefusal, match="with every block streamed; 24"):
        plan_memory(replace(job, bank="plain"), 24 * GB)


def test_what_does_not_fit_is_refused_with_the_largest_size_that_does(job):
    with pytest.raises(MemoryRefusal, match=r"1344x768 .* (\d+)x(\d+); set it") as refused:
        plan_memory(job, 16 * GB)
    width, height = (int(part) for part in str(refused.value).split("fits is ")[1].split(";")[0].split("x"))

    def at(height):
        """The job at about the shape of 1344x768: picture rows of the text and the codecs' memory follow the area."""
        width = round(1344 * height / 768 / 32) * 32
        share = width * height / (1344 * 768)
        return replace(
            job,
            size=(height, width),
            text_rows=1883 - 1008 + (width // 32) * (height // 32),
            decoder=replace(job.decoder, working=int(job.decoder.working * share)),
            encoder=replace(job.encoder, working=int(job.encoder.working * share)),
        )

    assert at(height).size == (height, width)
    assert plan_memory(at(height), 16 * GB).bank == "fp8"
    with pytest.raises(MemoryRefusal):
        plan_memory(at(height + 32), 16 * GB)


def test_when_no_size_fits_something_else_is_advised(job):
    with pytest.raises(MemoryRefusal, match=r"No size fits.*fp8"):
        plan_memory(job, 2 * GB)


def test_dense_windows_need_no_bank(job):
    dense = replace(job, attention="dense")
    plan = plan_memory(dense, 24 * GB)
    assert plan.bank != "fp8" and not any("prefix banks" in name for name in terms(plan))


def test_the_text_encoder_is_streamed_when_it_does_not_fit(job):
    """It runs before all else: resident where it fits alone."""
    encoder = Need(weights=48_760_000_000, working=4_700_000_000)
    roomy, tight = (plan_memory(replace(job, text_encoder=encoder), limit * GB) for limit in (80, 32))
    assert (roomy.text_streamed, tight.text_streamed) == (False, True)
    assert terms(roomy)["text encoder"] == encoder.total
    assert terms(tight)["text encoder, layers streamed"] == encoder.working
    assert tight.device_bytes < 32 * GB


def test_the_text_of_a_plan_has_a_line_per_term(job):
    plan = plan_memory(job, 32 * GB)
    lines = plan.as_text().splitlines()
    assert lines[0].startswith("memory plan: 31") and "blocks streamed from host memory" in lines[0]
    assert len(lines) == 1 + len(plan.terms)
    assert plan.as_dict()["blocks_streamed"] == plan.streamed


def test_the_causal_decoder_counts_its_ring():
    """6 slots of keys and values in 24 layers of width 2048: 4.76 GB at 1344x768 in bf16."""
    working = decoder_working((768, 1344), 2, (24, 2048))
    assert 4.7 * GB < working < 5.5 * GB
    shapes = {"x_embedder.weight": (2048, 96), **{f"blocks.{i}.attn.to_qkv.weight": (6144, 2048) for i in range(24)}}
    assert decoder_need(shapes, torch.bfloat16, (768, 1344)).working == working


def test_codec_files_are_measured_by_their_headers(repository):
    folder = repository / "workflows" / "assets" / "vae_approx"
    for name in ("taeh3_example.safetensors", "vit_decoder_example.safetensors"):
        path = folder / name
        decoder = load_decoder(path)
        need = decoder_file_need(path, torch.float32, (128, 192))
        assert need.weights == sum(one.nbytes for one in decoder.layers.state_dict().values())
        assert need == decoder_need(shapes_of(decoder.layers), torch.float32, (128, 192))
    encoder = load_encoder(folder / "taeh3_example.safetensors")
    need = encoder_file_need(folder / "taeh3_example.safetensors", torch.float32, ((128, 192),))
    assert need.weights == sum(one.nbytes for one in encoder.layers.state_dict().values())


# ----------------------------------------------------------------------------------------------------------- the limit


def test_the_limit_comes_from_the_option_else_from_the_environment(monkeypatch):
    monkeypatch.delenv("SRH3_MEMORY_GB", raising=False)
    assert asked_gigabytes(None) is None and asked_gigabytes(24.0) == 24.0
    monkeypatch.setenv("SRH3_MEMORY_GB", "12.5")
    assert asked_gigabytes(None) == 12.5 and asked_gigabytes(24.0) == 24.0


@pytest.mark.parametrize("text", ["0", "-3", "much", "inf", "nan"])
def test_a_limit_that_is_no_number_is_refused(monkeypatch, text):
    monkeypatch.setenv("SRH3_MEMORY_GB", text)
    with pytest.raises(ValueError, match="gigabytes above 0"):
        asked_gigabytes(None)


def test_the_cpu_has_no_limit_of_its_own():
    assert device_budget(torch.device("cpu"), None) is None
    assert device_budget(torch.device("cpu"), 0.5) == 500_000_000


def test_the_bank_format_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv("SRH3_KV_DTYPE", raising=False)
    assert asked_bank() == "auto"
    for text, expected in (("bf16", "plain"), ("FP8", "fp8"), ("auto", "auto")):
        monkeypatch.setenv("SRH3_KV_DTYPE", text)
        assert asked_bank() == expected
    monkeypatch.setenv("SRH3_KV_DTYPE", "int4")
    with pytest.raises(ValueError, match="'int4'"):
        asked_bank()
    monkeypatch.delenv("SRH3_KV", raising=False)
    assert (asked_form(torch.device("cuda")), asked_form(torch.device("cpu"))) == ("auto", "split")
    monkeypatch.setenv("SRH3_KV", "Split")
    assert asked_form(torch.device("cuda")) == "split"
    monkeypatch.setenv("SRH3_KV", "burger")
    with pytest.raises(ValueError, match="'burger'; auto, sandwich, split are known"):
        asked_form(torch.device("cuda"))


# ------------------------------------------------------------------------------------------------- plan and placement


@pytest.fixture
def checkpoint(tmp_path, full_model):
    write_h3(tmp_path / "tiny.safetensors", full_model)
    return tmp_path / "tiny.safetensors"


@pytest.mark.parametrize("weights", ["stored", "fp8"])
def test_sizes_from_the_header_are_those_of_the_loaded_model(checkpoint, weights):
    sizes = transformer_sizes(checkpoint, torch.float32, weights)
    model = load_h3(checkpoint, dtype=torch.float32, device="cpu", weights=weights).model
    held = [sum(one.nbytes for one in block.parameters()) for block in model.blocks]
    assert list(sizes.blocks) == held
    assert sizes.rest + sum(held) == sum(one.nbytes for one in model.state_dict().values())


def test_a_plan_under_a_cap_renders_the_same_latents(checkpoint, tables_for, conditions):
    """The plan drives the placement; streamed blocks change nothing, bit for bit."""
    grid = TimeGrid.trailing(2)

    def latents(resident, bank):
        model = load_h3(checkpoint, dtype=torch.float32, device="cpu").model
        placed = place(model, torch.device("cpu"), resident)
        network = Network(model, tables_for(grid), conditions, grid, bank=PrefixBank(bank))
        rollout = Rollout(RELEASE, grid, network, conditions.picture, audio_channels=32, seed=3, freeze_sink=True)
        generator = torch.Generator().manual_seed(9)
        made = [
            rollout.step(torch.randn(24, len(rollout.next_window.latents), 4, 4, generator=generator)).video
            for _ in range(2)
        ]
        return torch.cat(made, dim=1), len(placed.streamed)

    sizes = transformer_sizes(checkpoint, torch.float32, "stored")
    job = job_of(
        sizes,
        dtype=torch.float32,
        schedule=RELEASE,
        size=(64, 96),
        reference_size=(64, 64),
        text_rows=13,
        steps=2,
        form="split",
    )
    free = plan_memory(job, None)
    expected, streamed = latents(free.resident, free.bank)
    assert streamed == 0
    capped = plan_memory(job, free.device_bytes - max(sizes.blocks) // 2)
    assert capped.streamed > 0 and capped.bank != "fp8"
    found, streamed = latents(capped.resident, capped.bank)
    assert streamed == capped.streamed and torch.equal(found, expected)
