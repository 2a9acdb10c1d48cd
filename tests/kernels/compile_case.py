"""One kernel compiled for one card without a GPU, and what that card would spend on it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TENSOR_CORES = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
FP8_CONVERSION = "cvt.rn.satfinite.e4m3x2"
WIDE_ACCESS = re.compile(r"(?:ld|st)\.global(?:\.\w+)*\.v(?:4\.b32|2\.b64)")  # sixteen bytes of a thread at once


class Case(NamedTuple):
    """A kernel with the types of its arguments and the values of its constants."""

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, int]
    warps: int
    stages: int = 3
    dot: bool = False  # has matrix products
    fp8: bool = False  # converts to float8_e4m3fn
    rows: bool = False  # its first program id counts rows, of which there may be more than 32 bits can address


def compiled(case: Case, architecture: int) -> dict[str, object]:
    """Registers, bytes of stack (spilled registers) and of shared memory, and the instructions found."""
    names = case.kernel.arg_names
    aligned = [
        place for place, name in enumerate(names) if case.types.get(name, "").startswith("*") or "STRIDE" in name
    ]
    source = ASTSource(
        fn=case.kernel,
        signature={name: case.types.get(name, "constexpr") for name in names},
        constexprs=dict(case.constants),
        attrs={(place,): [["tt.divisibility", 16]] for place in aligned},
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
    found = {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK):(\d+)", usage.stdout)}
    return {
        **found,
        "shared": made.metadata.shared,
        "tensor_cores": [name for name in TENSOR_CORES if name in ptx],
        "dot": case.dot,
        "fp8": FP8_CONVERSION in ptx,
        "wide": len(WIDE_ACCESS.findall(ptx)),
        "narrow_row": case.rows and narrow_row(made.asm["ttir"]),
    }


def narrow_row(ttir: str) -> bool:
    """Whether a number of the first program id is multiplied before it is widened to 64 bits."""
    (name,) = re.findall(r"(%\w+) = tt\.get_program_id x", ttir)
    uses = re.findall(rf"= (\S+) .*{name}\b", ttir)
    return any(operation not in ("arith.extsi", "arith.cmpi", "tt.get_program_id") for operation in uses)
