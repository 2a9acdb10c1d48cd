"""Compile every kernel for the cards of the specification, without a GPU, at the sizes of the released decoder.

A script: a process that interprets kernels cannot compile them. Prints one JSON line per kernel and architecture.
With SRH3_LONG=1 everything for every card; else matrix products for one card of each kind of tensor core, the rest for the
oldest and the newest card.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
from streamrender_h3.kernels import few_queries, qk_rope_write, residual_norm, segment_attention, swiglu
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

ARCHITECTURES = (80, 89, 90, 100, 120)
USUAL = {True: (90, 100, 120), False: (80, 120)}  # by whether a kernel has matrix products
LONG = os.environ.get("SRH3_LONG") == "1"
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
HEAD = {"HEADS": 32, "WIDTH": 64, "BLOCK_WIDTH": 64}


class Case(NamedTuple):
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, int]
    warps: int
    stages: int = 3
    dot: bool = False


def attention_case(architecture: int) -> Case:
    tuned = segment_attention.tuning(divmod(architecture, 10), 2)
    return Case(
        segment_attention.kernel,
        dict.fromkeys(("Q", "K", "V", "OUT"), "*bf16") | {"TILES": "*i32", "SCALE": "fp32"},
        HEAD | {"BM": segment_attention.TILE_QUERIES, "BN": tuned["BN"], "STAGES": tuned["STAGES"]},
        tuned["num_warps"],
        dot=True,
    )


def cases(architecture: int) -> dict[str, Case]:
    row = dict.fromkeys(("X", "SCALE", "WEIGHT"), "*fp32") | {"BRANCH": "*bf16", "SOURCE": "*i32", "Y": "*bf16"}
    return {
        "residual_norm": Case(
            residual_norm.kernel, row | {"EPS": "fp32"}, {"WIDTH": 2048, "BLOCK": 2048, "MODE": 2}, 8
        ),
        "swiglu": Case(swiglu.kernel, {"X": "*bf16", "Y": "*bf16"}, {"WIDTH": 8192, "BLOCK": 2048}, 4),
        "qk_rope_write": Case(
            qk_rope_write.kernel,
            dict.fromkeys(("QKV", "Q", "K", "V"), "*bf16")
            | dict.fromkeys(("COS", "SIN"), "*fp32")
            | {"QUERY_ROWS": "*i32", "KEY_ROWS": "*i32", "EPS": "fp32", "TOKENS": "i32", "COPIES": "i32"},
            {"HEADS": 32, "WIDTH": 64, "HALF": 24, "BLOCK_HEADS": 16, "BLOCK_WIDTH": 64},
            4,
        ),
        "segment_attention": attention_case(architecture),
        "few_queries partial": Case(
            few_queries.partial_kernel,
            dict.fromkeys(("Q", "K", "V"), "*bf16")
            | {"SPANS": "*i32", "PARTS": "*fp32", "STATS": "*fp32", "SCALE": "fp32"},
            HEAD | {"QUERIES": 5, "BM": 16, "BN": few_queries.BLOCK_KEYS},
            4,
            stages=2,
            dot=True,
        ),
        "few_queries merge": Case(
            few_queries.merge_kernel,
            {"PARTS": "*fp32", "STATS": "*fp32", "OUT": "*bf16", "SPAN_COUNT": "i32"},
            HEAD | {"QUERIES": 5, "BLOCK_SPANS": 64},
            4,
        ),
    }


def compiled(case: Case, architecture: int) -> dict[str, object]:
    names = case.kernel.arg_names
    pointers = [position for position, name in enumerate(names) if case.types.get(name, "").startswith("*")]
    source = ASTSource(
        fn=case.kernel,
        signature={name: case.types.get(name, "constexpr") for name in names},
        constexprs=dict(case.constants),
        attrs={(position,): [["tt.divisibility", 16]] for position in pointers},
    )
    made = compile(
        source,
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": case.warps, "num_stages": case.stages},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True)
    ptx = made.asm["ptx"]
    operations = [name for name in ("tcgen05.mma", "wgmma.mma_async", "mma.sync") if name in ptx]
    found = {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK):(\d+)", usage.stdout)}
    return {**found, "shared": made.metadata.shared, "tensor_cores": operations, "dot": case.dot}


def main() -> int:
    for architecture in ARCHITECTURES:
        for name, case in cases(architecture).items():
            if not (LONG or architecture in USUAL[case.dot]):
                continue
            line = {"architecture": architecture, "kernel": name, **compiled(case, architecture)}
            print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
