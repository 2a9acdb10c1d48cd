"""The fast forward, with torch references in place of the kernels and through Triton's interpreter, equals the plain modules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from streamrender_h3.kernels.dense_attention import choose_dense
from streamrender_h3.kernels.fusions import FUSIONS, FusionError
from streamrender_h3.nodes.codec import vit_form
from streamrender_h3.nodes.model import Form, choose_form, run_fast
from streamrender_h3.nodes.model import form as form_room

CPU = torch.device("cpu")


@pytest.fixture
def form(tiny):
    return Form(choose_dense(CPU, torch.float32, tiny.config.head_dim, "sdpa"))


def off(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def test_a_whole_window_equals_the_plain_modules(tiny, tools, packing, form):
    rows, modulation = packing.rows(tiny), tiny.modulation(tools.times)
    before = {name: tensor.clone() for name, tensor in tiny.state_dict().items()}
    found, expected = run_fast(tiny, rows, modulation, form), tiny(rows, modulation)
    assert all(off(one, other) < 1e-6 for one, other in zip(found, expected, strict=True))
    assert all(torch.equal(before[name], tensor) for name, tensor in tiny.state_dict().items())


@pytest.mark.parametrize(
    ("video", "audio"), [(slice(20, None), slice(0)), (slice(0), torch.tensor([1, 4])), (None, slice(3, None))]
)
def test_only_the_rows_asked_for_are_predicted(tiny, tools, packing, form, video, audio):
    rows, modulation = packing.rows(tiny, predict_video=video, predict_audio=audio), tiny.modulation(tools.times)
    found, expected = run_fast(tiny, rows, modulation, form), tiny(rows, modulation)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert not one.numel() or off(one, other) < 1e-6


def test_a_wrong_gate_would_show(tiny, tools, packing, form):
    """The comparison is sharp: the gate of the neighbouring row changes the result."""
    rows, modulation = packing.rows(tiny), tiny.modulation(tools.times)
    shifted = packing.rows(tiny, modulation_row=rows.modulation_row.roll(1))
    assert off(run_fast(tiny, shifted, modulation, form)[0], tiny(rows, modulation)[0]) > 1e-3


def test_blocks_run_inside_their_hooks(tiny, tools, packing, form):
    """Streamed weights come and go with hooks around a block; the fast forward must run between them."""
    seen = []
    hooks = [block.register_forward_pre_hook(lambda *_, n=n: seen.append(n)) for n, block in enumerate(tiny.blocks)]
    hooks += [block.register_forward_hook(lambda *_, n=n: seen.append(~n)) for n, block in enumerate(tiny.blocks)]
    run_fast(tiny, packing.rows(tiny), tiny.modulation(tools.times), form)
    for hook in hooks:
        hook.remove()
    assert seen == [0, ~0, 1, ~1, 2, ~2]


def test_the_cpu_and_the_reference_switch_take_the_plain_modules(tiny, monkeypatch):
    assert choose_form(tiny, CPU) is None
    monkeypatch.setenv("SRH3_FORCE_REFERENCE", "1")
    assert choose_form(tiny, torch.device("cuda")) is None
    monkeypatch.setenv("SRH3_FUSIONS", "modulate, sandwiches")
    with pytest.raises(FusionError, match="names sandwiches; write all, none or some of modulate, qknorm_rope"):
        choose_form(tiny, CPU)


def test_every_name_of_a_fusion_means_a_kernel_in_transformer_and_decoder():
    assert set(form_room.KERNELS) == set(vit_form.FUSIONS) == set(FUSIONS)


def test_a_device_without_kernels_takes_the_plain_modules_and_the_attention_of_its_table(tiny, monkeypatch):
    """Such as a foreign card, whose user chose an attention in the host; references would only be slower."""
    asked = []

    def table(device, dtype, head_dim):
        asked.append((device.type, dtype, head_dim))
        return choose_dense(CPU, torch.float32, head_dim, "sdpa")

    monkeypatch.setattr(form_room, "choose_dense", table)
    form = choose_form(tiny, torch.device("mps"))
    assert asked == [("mps", torch.float32, 32)] and not form.fast
    assert str(form) == "plain modules, attention sdpa"
    monkeypatch.setenv("SRH3_FUSIONS", "swiglu")
    with pytest.raises(FusionError, match="asks for kernels, but kernels are for CUDA, and this is mps"):
        choose_form(tiny, torch.device("mps"))


def test_the_plain_modules_use_the_attention_given_in_every_block(tiny, tools, packing):
    rows, modulation, seen = packing.rows(tiny), tiny.modulation(tools.times), []

    def attend(q, k, v):
        seen.append((len(q), len(k)))
        return choose_dense(CPU, torch.float32, 32, "sdpa").run(q, k, v)

    found, expected = tiny(rows, modulation, attend=attend), tiny(rows, modulation)
    assert all(off(one, other) < 1e-6 for one, other in zip(found, expected, strict=True))
    assert seen == [(sum(rows.segments),) * 2] * 3  # and not in the text refiner


def test_every_kernel_in_its_place_by_the_interpreter():
    """A process of its own, because Triton decides at import whether it interprets."""
    pytest.importorskip("triton")
    script = Path(__file__).with_name("fast_checks.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count('"passed": true') == 2
