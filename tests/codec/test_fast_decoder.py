"""The fast pass of the causal ViT decoder: the plain modules' frames, by another way through memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from streamrender_h3.kernels.dispatch import AttentionError, choose
from streamrender_h3.kernels.fusions import FusionError
from streamrender_h3.nodes.codec import CausalViT, ViTConfig, ViTDecoder, vit_form, vit_stream
from streamrender_h3.nodes.codec.vit_fast import Graphs, halves
from streamrender_h3.nodes.codec.vit_form import ALL_KERNELS, Form, choose_form, wanted_kernels

GOLDEN = Path(__file__).parents[1] / "golden" / "vit_tiny.safetensors"
TINY = ViTConfig(layers=4, hidden=32, heads=2, ffn=128, window=4, patch=4)
CPU = torch.device("cpu")
FAST = Form(choose(CPU, torch.float32, 16), fast=True)  # torch references in place of kernels
MODES = ("pair", "early_single", "early_pair")


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN)


@pytest.fixture(scope="module")
def network(golden):
    made = CausalViT(TINY)
    made.load_state_dict({name[2:]: tensor for name, tensor in golden.items() if name.startswith("w.")})
    return made.requires_grad_(False)


@pytest.fixture
def raw(monkeypatch):
    monkeypatch.setattr(vit_stream, "pixels_to_rgb", lambda pixels: pixels)


def decoded(decoder, z, clock=0):
    stream = decoder.stream(clock)
    return torch.cat([*(stream.push(latent) for latent in z.split(1, dim=1)), stream.flush()])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("grid", [(5, 7), (1, 1), (4, 9)])
def test_the_fast_pass_gives_the_plain_frames(network, raw, mode, grid):
    z = torch.randn(24, 15, *grid, generator=torch.Generator().manual_seed(0))
    plain, fast = ViTDecoder(network, mode=mode), ViTDecoder(network, mode=mode, form=FAST)
    torch.testing.assert_close(decoded(fast, z, 100), decoded(plain, z, 100), atol=1e-5, rtol=0)


def test_the_fast_pass_reproduces_the_golden_pixels(golden, network, raw):
    z = golden["z"][0].transpose(0, 1)
    stream = ViTDecoder(network, form=FAST).stream()
    for pair in range(6):
        frames = stream.push(z[:, 2 * pair : 2 * pair + 2])
        torch.testing.assert_close(frames, golden[f"pair.{pair}.px"][0].transpose(0, 1), atol=2e-5, rtol=0)


def test_the_fast_pass_keeps_the_ring_of_the_plain_one(network):
    z = torch.randn(24, 20, 5, 7, generator=torch.Generator().manual_seed(1))
    streams = [ViTDecoder(network, mode="early_pair", form=form).stream() for form in (None, FAST)]
    for latent in z.split(1, dim=1):
        for stream in streams:
            stream.push(latent)
        plain, fast = (stream._ring.pools for stream in streams)
        for a, b in zip(plain, fast, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_fused_kernels_reproduce_the_golden_pixels():
    """All kernels together under Triton's interpreter, in a process of its own."""
    pytest.importorskip("triton")
    script = Path(__file__).with_name("fast_checks.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines and all(line["passed"] for line in lines), done.stdout + done.stderr


def test_halves_carry_a_float32_product():
    torch.manual_seed(2)
    x, weight = torch.randn(64, 256), torch.randn(48, 256)
    (a, b), (c, d) = ([half.float() for half in halves(side)] for side in (x, weight))
    exact = x.double() @ weight.double().t()
    split = (torch.cat((a, b, a), 1) @ torch.cat((c, c, d), 1).t()).double()
    assert (split - exact).norm() / exact.norm() < 2**-16
    coarse = (a @ c.t()).double()
    assert (coarse - exact).norm() / exact.norm() > 2**-10


def test_graphs_warm_up_record_once_and_give_way_when_refused(monkeypatch):
    """The bookkeeping, with a stand-in for the graph: run, record, replay, per kind of call."""
    graphs, calls = Graphs(), []

    class Recorded:
        def replay(self):
            calls.append("replay")

    def record(key, work):
        calls.append("record")
        graphs._recorded[key] = (Recorded(), work())

    monkeypatch.setattr(graphs, "_record", record)
    for key in (0, 1, 0, 1, 0):
        assert graphs.run(key, lambda key=key: calls.append(f"run {key}") or key) == key
    assert calls == ["run 0", "run 1", "record", "run 0", "replay", "record", "run 1", "replay", "replay"]
    assert len(graphs) == 2
    broken = Graphs()

    def refuse(key, work):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(broken, "_record", refuse)
    assert [broken.run(0, lambda: 7) for _ in range(3)] == [7, 7, 7] and len(broken) == 0


def test_the_cpu_runs_the_plain_modules(network):
    form = choose_form(network)
    assert not form.fast and not form.graph and form.attention.name == "sdpa"


def test_switches_are_read_and_wrong_ones_named(monkeypatch, network):
    assert wanted_kernels() == ALL_KERNELS
    monkeypatch.setenv("SRH3_FUSIONS", "none")
    assert wanted_kernels() == frozenset()
    monkeypatch.setenv("SRH3_FUSIONS", "swiglu,kvwrite")
    assert wanted_kernels() == {"swiglu", "qk_rope_write"}
    monkeypatch.setenv("SRH3_FUSIONS", "swiglu,warp")
    with pytest.raises(FusionError, match="names warp; write all, none or some of"):
        choose_form(network)
    monkeypatch.delenv("SRH3_FUSIONS")
    monkeypatch.setenv("SRH3_ATTENTION", "fa2")
    with pytest.raises(AttentionError, match=r"'fa2' cannot run on cpu .*needs a CUDA device"):
        ViTDecoder(network).stream().push(torch.zeros(24, 2, 2, 2))


def test_a_card_without_kernels_takes_the_plain_modules(monkeypatch, network):
    """Such as one without Triton: the references of the fast pass take longer than they."""
    card = SimpleNamespace(
        register_tokens=SimpleNamespace(device=torch.device("cuda")), compute_dtype=torch.float32, config=network.config
    )
    monkeypatch.setattr(vit_form, "choose", lambda *_: choose(CPU, torch.float32, 16))
    monkeypatch.setattr(vit_form, "why_unfused", lambda device: "Triton cannot be imported")
    form = choose_form(card)
    assert not (form.fast or form.kernels or form.graph or form.split_head)
    monkeypatch.setenv("SRH3_FUSIONS", "swiglu")
    with pytest.raises(FusionError, match="asks for kernels, but Triton cannot be imported"):
        choose_form(card)
