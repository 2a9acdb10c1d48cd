"""Every Triton kernel equals its torch reference (interpreter) and compiles for the cards of the specification."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from streamrender_h3.kernels import fp8_rows, head_norm_rope, launch, lse_merge, norm_modulate, swiglu

HERE = Path(__file__).parent
KERNELS = {
    "residual_norms",
    "swiglus",
    "qk_rope_writes",
    "segment_attentions",
    "few_queries_of_many",
    "norm_modulates",
    "head_norm_ropes",
    "both_swiglus",
    "lse_merges",
    "rows_in_fp8",
    "rows_past_32_bits",
    "widened_heads",
    "dense_attentions",
    "block_sparse_attentions",
    "mapped_keys",
    "two_sources",
    "tile_mean_rows",
    "chosen_tiles",
    "gated_means",
    "windows",
    "outputs_of_fastvideo",
}
# Shared memory of a block in bytes: 99 KB on consumer cards and sm_80/89's smallest, 227 KB on data centre ones.
SHARED = {80: 99, 89: 99, 90: 227, 100: 227, 120: 99}
# What a matrix product of a large tile becomes; the sixteen-row tile of the few queries is too small for the newer ones.
TENSOR_CORES = {80: "mma.sync", 89: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma", 120: "mma.sync"}
# Kernels with matrix products, without, and those that read or write float8_e4m3fn.
DOTS, ROWS, FP8 = 2 + 4, 4 + 7 + 3, 5
# Accesses of sixteen bytes per thread in a kernel of rows: every one that the shape allows.
WIDE = {"norm_modulate add": 24, "norm_modulate first": 15, "swiglu wide": 6, "head_norm_rope": 26, "lse_merge": 12}
WIDE |= {"block_sparse": 24, "tile_means": 4, "compression": 20}


def lines_of(script: str, **environment: str) -> list[dict]:
    command = [sys.executable, str(HERE / script)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kernels_equal_their_references_in_the_interpreter():
    pytest.importorskip("triton")
    lines = lines_of("kernel_checks.py", TRITON_INTERPRET="1")
    assert [line for line in lines if not line["passed"]] == []
    assert set(Counter((line["kernel"], line["dtype"]) for line in lines)) == {
        (kernel, dtype) for kernel in KERNELS for dtype in ("float32", "float16")
    }


def test_kernels_compile_for_every_kind_of_card(tmp_path):
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET"):
        pytest.skip("interpreted kernels cannot be compiled")
    lines = lines_of("compile_checks.py", TRITON_CACHE_DIR=str(tmp_path))
    assert len(lines) == (DOTS + ROWS + FP8) * len(SHARED) - FP8  # the oldest card has no float8_e4m3fn
    for line in lines:
        assert line["stack"] == 0, f"registers spill: {line}"
        assert line["shared"] <= SHARED[line["architecture"]] * 1024, line
        assert not line["narrow_row"], f"a row number is multiplied in 32 bits: {line}"
        assert line["wide"] >= WIDE.get(line["kernel"], 0), f"narrow memory accesses: {line}"
        if "fp8" in line["kernel"]:
            assert line["fp8"], f"no conversion to float8_e4m3fn in hardware: {line}"
        if line["dot"]:
            wide = line["kernel"].startswith(("segment_attention", "block_sparse"))
            assert (TENSOR_CORES[line["architecture"]] if wide else "mma.sync") in line["tensor_cores"], line


def rows(*shape):
    return torch.zeros(*shape)


def refused(kernel):
    """A call of a kernel with a tensor that it cannot read."""
    wide, narrow, index = rows(4, 16)[:, ::2], rows(4, 8), torch.zeros(4, dtype=torch.int32)
    weight, lse, heads = rows(8), rows(2, 4), rows(4, 2, 4)
    calls = {
        "x of the norm": lambda: norm_modulate.launch(wide, weight, 1e-5, narrow, narrow, index, torch.float32),
        "shift of the norm": lambda: norm_modulate.launch(narrow, weight, 1e-5, wide, narrow, index, torch.float32),
        "x of swiglu": lambda: swiglu.launch(wide),
        "keys of an arena": lambda: head_norm_rope.launch(
            rows(4, 24), weight, weight, rows(4, 2), rows(4, 2), 1e-5, rows(4, 2, 8)[..., ::2], heads
        ),
        "log-sum-exp by row": lambda: lse_merge.launch(heads, rows(4, 2).t(), heads, lse),
        "rows in fp8": lambda: fp8_rows.launch(wide),
    }
    return calls[kernel]


@pytest.mark.parametrize(
    "kernel",
    ["x of the norm", "shift of the norm", "x of swiglu", "keys of an arena", "log-sum-exp by row", "rows in fp8"],
)
def test_a_kernel_refuses_what_it_would_misread(kernel):
    with pytest.raises(ValueError, match=r"has strides .* call \.contiguous\(\) on it first"):
        refused(kernel)()


@pytest.mark.parametrize("given", ["branch", "gate"])
def test_a_branch_needs_its_gate(given):
    x, index = rows(4, 8), torch.zeros(4, dtype=torch.int32)
    for run in (norm_modulate.launch, norm_modulate.reference):
        with pytest.raises(ValueError, match=f"a {given} came without a .*; pass both or neither"):
            run(x, rows(8), 1e-5, x, x, index, torch.float32, **{given: x})


def test_fp8_is_refused_before_the_launch_on_a_card_without_it(monkeypatch):
    monkeypatch.setattr(launch, "MISSING", "")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))

    class Card:
        is_cuda, device = True, "cuda:0"

        def __len__(self):
            return 5

    assert launch.refusal(Card()) == ""
    with pytest.raises(ValueError, match=r"5 rows of 64 in float8_e4m3fn: compute capability 8\.6 is below 8\.9; take"):
        fp8_rows.room(Card(), 64)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert fp8_rows.refusal(Card(), 64) == ""
    assert "32768 columns at most" in fp8_rows.refusal(Card(), 40000)
