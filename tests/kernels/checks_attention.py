"""Every attention of packed rows that runs here, with and without its log-sum-exp, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from check_tools import ATTENTION, DEVICE, off, random
from streamrender_h3.kernels import lse_merge
from streamrender_h3.kernels.choice import AttentionError
from streamrender_h3.kernels.dense_attention import BACKENDS, INT8_TOLERANCE, DenseChoice, choose_dense

LSE_LIMIT = 1e-3  # relative; the scores are sums in float32 of rounded channels


def dense_attentions(dtype: torch.dtype) -> Iterator[tuple]:
    for name in BACKENDS:
        try:
            chosen = choose_dense(DEVICE, dtype, 128, name)
        except AttentionError as reason:
            yield f"{name} not here: {' '.join(str(reason).split())[:160]}", 0.0
            continue
        for queries, keys, heads, size in ((130, 389, 7, 1.0), (1, 70, 2, 1.0), (33, 200, 3, 3.0), (7, 1, 2, 1.0)):
            yield from one(
                chosen, dtype, f"{name} {queries}x{keys}x{heads}, q and k times {size:g}", queries, keys, heads, size
            )


def one(
    chosen: DenseChoice, dtype: torch.dtype, case: str, queries: int, keys: int, heads: int, size: float
) -> Iterator[tuple]:
    """Keys and values are a stretch of a longer arena."""
    limit = INT8_TOLERANCE if chosen.name == "int8" else ATTENTION[dtype]
    q = random(queries, heads, 128, dtype=dtype) * size
    k, v = (random(keys + 20, heads, 128, dtype=dtype)[4 : 4 + keys] for _ in range(2))
    k *= size
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * 128**-0.5
    expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double())
    out = chosen.run(q, k, v)
    yield case, off(out, expected), limit
    if chosen.name not in ("comfy", "int8"):
        assert out.is_contiguous(), f"{case} came back as {out.stride()}"
    if chosen.run_lse is None:
        return
    out, lse = chosen.run_lse(q, k, v)
    assert lse.shape == (heads, queries) and lse.dtype == torch.float32 and lse.is_contiguous()
    yield f"{case}, with log-sum-exp", off(out, expected), limit
    yield f"{case}, log-sum-exp", off(lse, scores.logsumexp(-1)), LSE_LIMIT
    if keys > 1:
        halves = [chosen.run_lse(q, k[part], v[part]) for part in (slice(keys // 3), slice(keys // 3, None))]
        merged = lse_merge.reference(*halves[0], *halves[1])
        yield f"{case}, in two parts", off(merged, expected), 2 * limit
