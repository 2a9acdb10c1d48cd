"""The command `bench clip` on the CPU, with a tiny network."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from streamrender_h3 import cli
from streamrender_h3.nodes.bench import BenchError, clip, model
from streamrender_h3.nodes.model import RELEASE, H3Config
from streamrender_h3.nodes.sampler.clip_plan import ClipShape

TINY = H3Config(hidden=96, layers=3, refiner_layers=1, heads=4, head_dim=32, ffn=160, text_dim=80, freq_dim=256,
                time_hidden=96, time_dim=48, rope_freqs=4)  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(model.PRESETS, "example", model.Preset(TINY, (128, 160), 24))
    yield
    model.release_weights()


def run(capsys, *typed: str) -> dict:
    args = cli.parser("bench").parse_args(["bench", *typed, "--preset", "example", "--device", "cpu", "--json"])
    assert args.run(args) == 0
    return json.loads(capsys.readouterr().out)


def test_a_step_is_measured_dense_and_sparse_beside_its_arithmetic(capsys):
    (report,) = run(capsys, "clip")["reports"]
    rows = {row["name"]: row for row in report["rows"]}
    fused = [f"fused{kind}, {how}" for kind in ("", ", fp8 linears") for how in ("dense", "keep 20 %", "keep 10 %")]
    assert list(rows) == [*fused, "plain modules, dense"]
    assert all(row["ms"] > 0 and row["limit_ms"] > 0 and row["tflops"] > 0 for row in rows.values())
    facts = report["facts"]
    assert facts["rows of a forward"] == 40 + 2 * 65 + 12 * 4 * 5
    assert "39 frames from text, 160x128, 410 rows" in report["title"]
    for keep, kept in ((20, "2 of 6"), (10, "1 of 6")):
        name = f"fused, keep {keep} %"
        assert facts[f"{name}: video tiles kept"] == kept
        assert facts[f"{name}: choice of tiles, share of the attention"] > 0
        assert facts[f"{name}: dense / this"] == pytest.approx(rows["fused, dense"]["ms"] / rows[name]["ms"], rel=1e-3)
    assert not any("failed" in name for name in facts)


def test_forms_and_rows_can_be_chosen(capsys):
    (report,) = run(
        capsys, "clip", "--forms", "fused, keep|plain", "--text-rows", "70", "--size", "64x64", "--frames", "22"
    )["reports"]
    assert [row["name"] for row in report["rows"]] == ["fused, keep 20 %", "fused, keep 10 %", "plain modules, dense"]
    assert report["facts"]["rows of a forward"] == 70 + 2 * 37 + 7 * 4
    with pytest.raises(BenchError, match="100x64"):
        run(capsys, "clip", "--size", "100x64")


@pytest.mark.parametrize(
    ("frames", "dense", "sparse"),
    [(124, 3_640, (2_334, 2_079)), (243, 10_799, (5_225, 4_395)), (345, 19_840, (8_612, 6_879))],
)
def test_the_arithmetic_is_that_of_the_specification(frames, dense, sparse):
    """TFLOP of a step at 1344x768 with 1,000 text rows; the specification counts padded tiles, so it is a few per cent above."""
    made_of = clip.Clip(
        type("M", (), {"config": replace(RELEASE, gate_compress=True)})(),
        None,
        clip.ClipText(torch.empty(1000, 1), torch.empty(1000)),
        ClipShape.of(frames, (768, 1344)),
    )
    assert clip.step_flops(made_of, None) / 1e12 == pytest.approx(dense, rel=1e-3)
    for keep, wanted in zip((20.0, 10.0), sparse, strict=True):
        assert 0.93 < clip.step_flops(made_of, keep) / 1e12 / wanted <= 1.0
