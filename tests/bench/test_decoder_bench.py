"""The command `bench decoder` on the CPU, and the plain decoder that it measures against."""

from __future__ import annotations

import json

import pytest
import torch
from streamrender_h3 import cli
from streamrender_h3.nodes.bench import BenchError, Options, Report, Row
from streamrender_h3.nodes.bench.command import PARTS, size_of
from streamrender_h3.nodes.bench.decoder import CONFIGS, measure, psnr, random_network
from streamrender_h3.nodes.bench.decoder_parts import attention_flops, linear_flops
from streamrender_h3.nodes.bench.plain_decoder import PlainDecoder
from streamrender_h3.nodes.codec import ViTConfig, ViTDecoder, vit_stream

FIELDS = ["name", "ms", "tflops", "limit_ms", "limit_fraction", "peak_gib"]


@pytest.mark.parametrize("grid", [(5, 7), (4, 4), (1, 9)])
def test_the_plain_decoder_gives_the_streams_frames(grid, monkeypatch):
    monkeypatch.setattr(vit_stream, "pixels_to_rgb", lambda pixels: pixels)
    torch.manual_seed(0)
    network = random_network(ViTConfig(layers=4, hidden=32, heads=2, ffn=128, window=4, patch=4), torch.device("cpu"))
    plain, stream = PlainDecoder(network, grid, None), ViTDecoder(network).stream()
    for pair, latents in enumerate(torch.randn(7, 2, 24, *grid)):
        pictures = plain.pair(latents)
        dropped = {0: (3, 0), 2: (0, 3)}.get(pair % 5, (0, 0))
        expected = torch.cat([pictures[i, dropped[i] :] for i in (0, 1)])
        torch.testing.assert_close(stream.push(latents.transpose(0, 1)), expected, atol=1e-5, rtol=0)


def test_flops_are_those_of_the_specification():
    config = ViTConfig()
    assert linear_flops(config, (48, 84)) / 1e12 == pytest.approx(25.98 + 0.10 + 0.02, abs=0.02)
    assert attention_flops(config, (48, 84)) / 1e12 == pytest.approx(2.11 + 0.02, abs=0.02)
    assert attention_flops(config, (30, 52)) / 1e12 == pytest.approx(0.72 + 0.01, abs=0.02)


def test_the_command_measures_on_the_cpu(capsys):
    parser = cli.parser("bench")
    typed = ["bench", "decoder", "--preset", "example", "--size", "128x64", "--device", "cpu", "--json"]
    args = parser.parse_args(typed)
    assert args.run(args) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["part"], made["device"]) == ("decoder", "CPU")
    (report,) = made["reports"]
    assert all(list(row) == FIELDS and row["ms"] > 0 for row in report["rows"] if "extra" not in row["name"])
    names = [row["name"] for row in report["rows"]]
    assert {"matrix products of the blocks", "plain PyTorch", "early_single: extra per held latent"} <= set(names)
    facts = report["facts"]
    assert facts["PSNR of the final form against plain, dB"] > 60
    assert facts["matmul ms"] > 0 and facts["plain / final"] > 0
    shown = next(row for row in report["rows"] if row["name"] == "plain PyTorch")
    assert shown["limit_fraction"] == pytest.approx(shown["limit_ms"] / shown["ms"], rel=1e-3)


def test_sizes_and_parts_are_checked():
    assert size_of("1344x768") == (768, 1344)
    with pytest.raises(BenchError, match="write width x height"):
        size_of("large")
    with pytest.raises(BenchError, match="multiples of 16"):
        measure(Options("example", ((100, 64),), "cpu"))
    assert "decoder" in PARTS and set(CONFIGS) == {"full", "example"}


def test_a_report_reads_as_text_and_as_json():
    report = Report("t", [Row("a", 2.0, 1.5, 1.0, 3.0), Row("b", 1.0)], {"ratio": 1.23456789})
    assert report.as_dict()["rows"][0] == dict(zip(FIELDS, ("a", 2.0, 1.5, 1.0, 0.5, 3.0), strict=True))
    assert report.as_dict()["rows"][1]["limit_fraction"] is None and report.as_dict()["facts"]["ratio"] == 1.2346
    assert "50%" in report.as_text() and "ratio: 1.2346" in report.as_text()


def test_psnr_is_in_decibels():
    assert psnr(torch.full((4,), 0.5), torch.full((4,), 0.6)) == pytest.approx(20, abs=1e-4)
    assert psnr(torch.ones(2), torch.ones(2)) == float("inf")
