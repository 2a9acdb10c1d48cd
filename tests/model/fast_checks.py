"""The fast forward with real kernels against the plain modules; a script, so that it runs under Triton's interpreter
(TRITON_INTERPRET=1, CPU) in a process of its own and as it is on a GPU. Prints one JSON line per check.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import torch
from streamrender_h3.kernels.dense_attention import choose_dense
from streamrender_h3.nodes.loader.quant_linear import quantise_model
from streamrender_h3.nodes.model import H3, Form, run_fast
from streamrender_h3.nodes.model.form import ALL_KERNELS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


def here(name: str):
    """A neighbouring file as a module; this script runs from anywhere."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def off(found, expected) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def main() -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    tools = here("conftest")
    exact = H3(tools.TINY, dtype=torch.float32).eval()
    tools.randomise(exact, 0)
    packing, bad = tools.make_packing(tools.TINY), 0
    with torch.no_grad():
        expected = exact(packing.rows(exact), exact.modulation(tools.TIMES))
        for dtype, quantised, limit in (
            (torch.float32, False, 2e-6),
            *(() if INTERPRETED else ((torch.bfloat16, False, 1e-2), (torch.bfloat16, True, 8e-2))),
        ):
            model = H3(tools.TINY, dtype=dtype).eval()
            model.load_state_dict(exact.state_dict())
            if quantised:
                quantise_model(model)
            rows = packing.rows(model)
            modulation = model.modulation(tools.TIMES)
            model, rows, modulation = on_device(model, rows, modulation)
            attention = choose_dense(DEVICE, dtype, tools.TINY.head_dim, "sdpa")
            one_by_one = () if INTERPRETED else tuple(frozenset({one}) for one in sorted(ALL_KERNELS))
            for kernels in (frozenset(), *one_by_one, ALL_KERNELS):
                found = run_fast(model, rows, modulation, Form(attention, kernels))
                error = max(off(one.cpu(), other) for one, other in zip(found, expected, strict=True))
                bad += not error <= limit
                line = {"dtype": str(dtype), "fp8": quantised, "kernels": sorted(kernels), "error": error}
                print(json.dumps({**line, "limit": limit, "passed": error <= limit}), flush=True)
    return int(bad > 0)


def on_device(model, rows, modulation):
    from dataclasses import replace

    from streamrender_h3.nodes.model import Rope

    moved = {
        name: getattr(rows, name).to(DEVICE)
        for name in ("text", "before", "audio", "video", "modulation_row", "time_index")
    }
    rows = replace(rows, rope=Rope(rows.rope.cos.to(DEVICE), rows.rope.sin.to(DEVICE)), **moved)
    model = model.to(DEVICE)
    return model, rows, model.modulation(modulation.times)


if __name__ == "__main__":
    sys.exit(main())
