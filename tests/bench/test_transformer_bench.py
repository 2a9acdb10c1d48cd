"""The commands `bench chunk`, `bootstrap`, `attention`, `kernels`, `peer` and `roofline` on the CPU, with a tiny network."""

from __future__ import annotations

import json

import pytest
import torch
from streamrender_h3 import cli
from streamrender_h3.kernels import norm_modulate
from streamrender_h3.nodes.bench import BenchError, Options, chunk, kernel_rows, limits, model, peer, roofline
from streamrender_h3.nodes.bench import variants as variants_room
from streamrender_h3.nodes.bench.chunk import ATTENTION_RATE, ATTENTION_WORK, PRODUCTS_RATE, PRODUCTS_WORK
from streamrender_h3.nodes.bench.measure import relative_error
from streamrender_h3.nodes.bench.variants import PLAIN, variants
from streamrender_h3.nodes.bench.watched import Trace, Watched, host_waits, kind_of
from streamrender_h3.nodes.model import RELEASE, H3Config
from streamrender_h3.nodes.sampler import DENSE, Network
from streamrender_h3.nodes.sampler.bank import SANDWICH
from streamrender_h3.nodes.sampler.bank_forms import Split
from streamrender_h3.nodes.schedule import RELEASE as SCHEDULE
from streamrender_h3.nodes.schedule import RELEASE_GEOMETRY, row_plan

FIELDS = ["name", "ms", "tflops", "limit_ms", "limit_fraction", "peak_gib"]
TINY = H3Config(hidden=96, layers=3, refiner_layers=1, heads=4, head_dim=32, ffn=160, text_dim=80, freq_dim=256,
                time_hidden=96, time_dim=48, rope_freqs=4)  # fmt: skip
OPTIONS = Options("example", (), "cpu")


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(model.PRESETS, "example", model.Preset(TINY, (64, 96), 24))
    model.release_weights()
    yield model.subject(OPTIONS, (64, 96))
    model.release_weights()


def run(capsys, *typed: str) -> dict:
    args = cli.parser("bench").parse_args(["bench", *typed, "--preset", "example", "--device", "cpu", "--json"])
    assert args.run(args) == 0
    return json.loads(capsys.readouterr().out)


def test_several_parts_share_one_network_and_one_document(tiny, capsys):
    made = run(capsys, "chunk", "bootstrap", "attention", "kernels")
    assert made["part"] == "chunk bootstrap attention kernels" and made["device"] == "CPU" and made["torch"]
    assert [report["part"] for report in made["reports"]] == ["chunk", "bootstrap", "attention", "kernels"]
    for report in made["reports"]:
        assert report["rows"] and all(list(row) == FIELDS and row["ms"] > 0 for row in report["rows"])
        assert all(row["limit_ms"] > 0 for row in report["rows"])
    one, bootstrap, attention, kernels = ({row["name"]: row for row in r["rows"]} for r in made["reports"])
    facts = made["reports"][0]["facts"]

    per_block = sum(row["ms"] for name, row in one.items() if name.endswith(", fp32, per block"))
    per_block += one["attention 108 x 198, sdpa, per block"]["ms"]
    assert one["fused, sandwich"]["limit_ms"] == pytest.approx(2 * TINY.layers * per_block, rel=1e-3)
    for form in ("fused, sandwich", "fused, split"):
        assert facts[f"{form}: error against {PLAIN} after step 2"] < 1e-5
        assert facts[f"{form}: chunk / limit"] == pytest.approx(one[form]["ms"] / one[form]["limit_ms"], rel=1e-3)
    for form in ("fused, fp8 bank", "fused, fp8 linears", f"{PLAIN}, fp8 linears"):
        assert 1e-5 < facts[f"{form}: error against {PLAIN} after step 2"] < 0.2
    assert 0 < facts["fused, sandwich: elementwise share of kernel time"] < 1
    assert facts["fused, sandwich: host waits inside forwards"] == "not on a CPU"
    assert not any("failed" in name for name in facts)

    assert {f"{what}: {form}" for what in ("bootstrap", "prefill") for form in (PLAIN, "fused, sandwich")} < set(
        bootstrap
    )
    shapes = ("chunk 108 x 198", "bootstrap 220 x 220", "prefix 90 x 90", "chunk 108 x (90 + 108), two calls with LSE")
    assert set(attention) == {f"{shape}: sdpa" for shape in shapes}
    assert "CUDA" in made["reports"][2]["facts"]["not here: cudnn"]
    assert {"norm_modulate, residual", "head_norm_rope, into the bank", "swiglu", "lse_merge"} < set(kernels)

    with pytest.raises(BenchError, match="measured on CPU"):  # the roofline knows no peak of it
        roofline.card_of(made)


def test_the_sparse_window_is_measured_where_it_is_named(tiny, capsys):
    """An experiment: the whole report, above all, does without it."""
    (report,) = run(capsys, "chunk", "--forms", "sparse window 50 %")["reports"]
    names = {row["name"] for row in report["rows"]}
    assert {PLAIN, "sparse window 50 %, sandwich", "sparse window 50 %, split"} < names
    assert not any(name.startswith("fused") for name in names)
    assert not any("failed" in name for name in report["facts"])
    assert all("sparse" not in one.name for asked in ("", "split") for one in variants(tiny, asked))


def test_the_released_sizes_give_the_counts_of_the_specification():
    preset = model.PRESETS["full"]
    assert preset.config == RELEASE and model.reference_size(preset.size) == (480, 832)
    assert model.reference_size(model.PRESETS["example"].size) == (160, 288)
    shape = limits.Shape(7048, 13780)
    assert limits.linear_flops(RELEASE, shape.rows) / 1e12 == pytest.approx(271.6, abs=0.1)
    assert limits.attention_flops(RELEASE, shape) / 1e12 == pytest.approx(139.2, abs=0.1)
    assert limits.chunk_flops(RELEASE, shape) / 1e12 == pytest.approx(821.7, abs=0.2)
    for window, rows in ((1, 7046), (2, 7048)):
        plan = row_plan(SCHEDULE.window_at(window), RELEASE_GEOMETRY, 1500)
        assert (plan.moving_count, plan.prefix_count) == (rows, 6732)


def test_random_weights_keep_activations_near_one(tiny):
    variant = next(iter(variants(tiny)))
    rollout = tiny.rollout(variant.network())
    for _ in range(3):
        made = rollout.step(tiny.maps(rollout.next_window))
        assert torch.isfinite(made.video).all() and 0.5 < float(made.video.std()) < 4
    names = [name for name, _ in tiny.model.named_parameters()]
    assert not any("adaln" in name or "time_embedder" in name for name in names)


def test_diffusers_runs_the_same_window(tiny):
    window = SCHEDULE.window_at(2)
    latents = peer.random_window(tiny, window)
    ours = Network(tiny.model, tiny.tables, tiny.conditions, model.GRID, attention=DENSE)
    theirs = peer.Peer(tiny)
    for step in range(2):
        for found, wanted in zip(theirs(window, latents, step), ours(window, latents, step), strict=True):
            assert relative_error(found, wanted) < 1e-5
    theirs.twin.transformer_blocks[1].attn.to_q.weight.data = torch.zeros(TINY.inner, TINY.hidden)
    assert relative_error(theirs(window, latents, 0)[0], ours(window, latents, 0)[0]) > 1e-4
    assert not any(p.numel() > 10**6 for p in theirs.twin.parameters())


def test_the_peer_is_measured(tiny, capsys):
    (report,) = run(capsys, "peer")["reports"]
    (row,) = report["rows"]
    assert row["name"] == "diffusers, eager" and row["ms"] > 0 and row["limit_ms"] > 0
    assert report["facts"]["rows of a forward"] == 198
    assert report["facts"]["diffusers, eager: error of the first step against our dense window"] < 1e-5


def test_without_diffusers_the_peer_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "diffusers", None)
    with pytest.raises(BenchError, match=r"install diffusers 0\.42\.1"):
        peer.measure(OPTIONS)


def test_forms_can_be_picked_and_one_that_fails_leaves_the_others(tiny, monkeypatch):
    names = [variant.name for variant in variants(tiny, "split")]
    assert names == [PLAIN, "fused, split"]

    def broken(self, *args, **kwargs):
        raise RuntimeError("no such memory")

    monkeypatch.setattr(Split, "seen", broken)
    monkeypatch.setattr(variants_room, "PLAIN_BANK", SANDWICH)
    (report,) = chunk.measure(Options("example", (), "cpu", forms="fused, s"))
    assert report.facts["fused, split: failed"] == "RuntimeError: no such memory"
    assert {PLAIN, "fused, sandwich"} < {row.name for row in report.rows}


def test_every_kernel_is_run_on_the_bytes_it_counts(tiny):
    works = {work.name: work for work in kernel_rows.works(tiny, fused=False)}
    rows, hidden, inner, ffn = tiny.counts.moving, TINY.hidden, TINY.inner, TINY.ffn
    assert works["norm_modulate, residual"].nbytes == 4 * rows * hidden * 4
    assert works["head_norm_rope, into the bank"].nbytes == rows * (6 * inner + 24) * 4
    assert works["swiglu"].nbytes == 3 * rows * ffn * 4
    for work in works.values():
        assert work.run() is not None
    assert callable(norm_modulate.launch)


def test_kernels_are_sorted_by_what_they_do():
    assert kind_of("nvjet_tst_256x128_64x4_2x1_v_bz_coopB_TNT") == "products"
    assert kind_of("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90>>") == "attention"
    assert kind_of("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob") == "attention"
    assert kind_of("Memcpy DtoD (Device -> Device)") == "copies"
    assert kind_of("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>") == "elementwise"
    assert kind_of("kernel") == "elementwise"


def test_a_trace_tells_products_from_the_rest():
    a = torch.randn(256, 256)
    trace = Trace(torch.device("cpu"), lambda: (a @ a).sin())
    assert trace.by_kind["products"] > 0 and 0 < trace.elementwise_share < 1
    assert any("sin" in name for name in trace.longest(9))
    assert host_waits(torch.device("cpu"), lambda: None) == "not on a CPU"


def test_a_watched_predictor_keeps_time_arguments_and_pictures():
    watched = Watched(lambda window, latents, step: (torch.full((1,), step), torch.zeros(1)), torch.device("cpu"))
    watched("window", "latents", 1)
    assert watched.arguments == [("window", "latents", 1)] and float(watched.pictures[0]) == 1
    assert watched.take_ms() >= 0 and watched.arguments == [] and watched.take_ms() == 0


def test_sizes_and_rows_are_checked(tiny):
    with pytest.raises(BenchError, match="multiples of 32"):
        model.subject(OPTIONS, (100, 64))
    with pytest.raises(BenchError, match="larger --text-rows"):
        model.subject(Options("example", (), "cpu", 10), (64, 96))
    assert len(model.subject(Options("example", (), "cpu", 40), (64, 96)).conditions.text) == 40


# --- roofline --------------------------------------------------------------------------------------------------------


def a_run(device: str = "NVIDIA H200") -> dict:
    """A run of 540 TFLOP of products and 270 of attention: at half of the H200's peak 1.637 s, in all 10 % more."""
    half = 989.5 / 2
    facts = {PRODUCTS_WORK: 540.0, ATTENTION_WORK: 270.0, ATTENTION_RATE: half}
    facts |= {PRODUCTS_RATE + "bf16": half, PRODUCTS_RATE + "fp8": 2 * half}
    rows = [
        {"name": roofline.EXACT, "ms": 1100.0, "limit_ms": 1000.0},
        {"name": roofline.FP8, "ms": 1200.0, "limit_ms": 1000.0},
    ]
    measured = {"part": "chunk", "title": "H3 full, one chunk", "rows": rows, "facts": facts}
    return {"device": device, "date": "2026-11-30", "torch": "2.11", "reports": [measured]}


def test_the_roofline_scales_measured_shares_to_other_peaks(tmp_path):
    path = tmp_path / "chunk.json"
    path.write_text(json.dumps(a_run()))
    (report,) = roofline.measure(Options("full", (), "cpu", source=str(path)))
    rows = {row.name: row for row in report.rows}
    # half of 2200 TFLOP/s: 810 / 1100 = 0.7364 s, and 10 % more; at the peak half of it
    exact = rows["fused, sandwich: NVIDIA B200"]
    assert exact.ms == pytest.approx(810.0, abs=0.1) and exact.limit_ms == pytest.approx(368.2, abs=0.1)
    # fp8 products at half of 4400: 540 / 2200 + 270 / 1100 = 0.4909 s, and 20 % more
    assert rows["fused, fp8 linears: NVIDIA B200"].ms == pytest.approx(589.1, abs=0.1)
    # sustained rates of the RTX PRO 6000: 540 / 335 + 270 / 360 = 2.3619 s, and 10 % more
    assert rows["fused, sandwich: NVIDIA RTX PRO 6000 Blackwell"].ms == pytest.approx(2598.1, abs=0.1)
    # half of 209.5: 810 / 104.75 = 7.733 s, and 10 % more
    assert rows["fused, sandwich: NVIDIA RTX 5090"].ms == pytest.approx(8505.97, abs=0.1)
    assert report.facts["fused, sandwich: measured on NVIDIA H200, chunk over products and attention"] == 1.1
    assert "does not fit NVIDIA RTX 5090: fused, sandwich" in report.facts
    assert "arithmetic" in report.facts and "H200" in report.facts["measured"]


def test_the_roofline_needs_a_run_of_chunk(tmp_path):
    with pytest.raises(BenchError, match=r"--from chunk\.json"):
        roofline.measure(Options("full", (), "cpu"))
    path = tmp_path / "other.json"
    for text, words in (("{}", "no JSON of bench"), (json.dumps({"reports": [{"part": "decoder"}]}), "not chunk")):
        path.write_text(text)
        with pytest.raises(BenchError, match=words):
            roofline.measure(Options("full", (), "cpu", source=str(path)))
