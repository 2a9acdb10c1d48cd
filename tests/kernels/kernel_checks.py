"""Every Triton kernel against its torch reference or float64; a script, so that it runs under Triton's interpreter
(TRITON_INTERPRET=1, CPU) in a process of its own and as it is on a GPU. Prints one JSON line per check.

Names of checks may follow the command; compiling takes most of the time on a GPU, so several processes share them well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import checks_attention
import checks_decoder
import checks_sparse
import checks_transformer
import torch
from check_tools import ATTENTION, DTYPES, ELEMENTWISE

# yields (case, error), or (case, error, limit) where the limit is not that of the dtype
Check = Callable[[torch.dtype], Iterator[tuple]]
CHECKS: tuple[tuple[Check, dict[torch.dtype, float]], ...] = (
    (checks_decoder.residual_norms, ELEMENTWISE),
    (checks_decoder.swiglus, ELEMENTWISE),
    (checks_decoder.qk_rope_writes, ELEMENTWISE),
    (checks_decoder.segment_attentions, ATTENTION),
    (checks_decoder.few_queries_of_many, ATTENTION),
    (checks_transformer.norm_modulates, ELEMENTWISE),
    (checks_transformer.head_norm_ropes, ELEMENTWISE),
    (checks_transformer.both_swiglus, ELEMENTWISE),
    (checks_transformer.lse_merges, ELEMENTWISE),
    (checks_transformer.rows_in_fp8, ELEMENTWISE),
    (checks_transformer.rows_past_32_bits, ELEMENTWISE),
    (checks_transformer.widened_heads, ELEMENTWISE),
    (checks_attention.dense_attentions, ATTENTION),
    (checks_sparse.block_sparse_attentions, ATTENTION),
    (checks_sparse.mapped_keys, ATTENTION),
    (checks_sparse.two_sources, ATTENTION),
    (checks_sparse.tile_mean_rows, ELEMENTWISE),
    (checks_sparse.chosen_tiles, ELEMENTWISE),
    (checks_sparse.gated_means, ELEMENTWISE),
    (checks_sparse.windows, ATTENTION),
    (checks_sparse.outputs_of_fastvideo, ATTENTION),
)


def main() -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    bad, chosen = 0, sys.argv[1:]
    for check, limits in CHECKS:
        if chosen and check.__name__ not in chosen:
            continue
        for dtype in DTYPES:
            try:
                for case, error, *own in check(dtype):
                    limit = own[0] if own else limits[dtype]
                    passed = error <= limit
                    bad += not passed
                    show(check.__name__, dtype, case, error, limit, passed)
            except Exception as failure:
                bad += 1
                show(check.__name__, dtype, f"failed: {' '.join(str(failure).split())[:600]}", None, None, False)
    return int(bad > 0)


def show(kernel: str, dtype: torch.dtype, case: str, error: float | None, limit: float | None, passed: bool) -> None:
    name = str(dtype).removeprefix("torch.")
    print(
        json.dumps({"kernel": kernel, "dtype": name, "case": case, "error": error, "limit": limit, "passed": passed}),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
