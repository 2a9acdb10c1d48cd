"""Every Triton kernel equals its torch reference (interpreter) and compiles for the cards of the specification."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = {"residual_norms", "swiglus", "qk_rope_writes", "segment_attentions", "few_queries_of_many"}
# Shared memory of a block in bytes: 99 KB on consumer cards and sm_80/89's smallest, 227 KB on data centre ones.
SHARED = {80: 99, 89: 99, 90: 227, 100: 227, 120: 99}
# What a matrix product of a large tile becomes; the sixteen-row tile of the few queries is too small for the newer ones.
TENSOR_CORES = {80: "mma.sync", 89: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma", 120: "mma.sync"}


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
    everything = os.environ.get("SRH3_LONG") == "1"
    assert len(lines) == (6 * len(SHARED) if everything else 2 * 3 + 4 * 2)
    for line in lines:
        assert line["stack"] == 0, f"registers spill: {line}"
        assert line["shared"] <= SHARED[line["architecture"]] * 1024, line
        if line["dot"]:
            wide = line["kernel"] == "segment_attention"
            assert (TENSOR_CORES[line["architecture"]] if wide else "mma.sync") in line["tensor_cores"], line
