"""The kernels of the ViT decoder against their references."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from check_tools import DEVICE, ELEMENTWISE, INTERPRETED, SOURCE, off, random
from streamrender_h3.kernels import few_queries, qk_rope_write, residual_norm, segment_attention, swiglu
from streamrender_h3.kernels.segments import Group, Segments

WIDE = 64 if INTERPRETED else 2048  # the interpreter is slow; a GPU takes the real width


def residual_norms(dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    for width in (48, WIDE):
        x, branch = random(9, width), random(9, width, dtype=dtype)
        scale, weight = random(width), random(width)
        source = torch.randperm(9, generator=SOURCE).int().to(DEVICE)
        for name, options in (
            ("norm", {}),
            ("add", {"branch": branch, "scale": scale}),
            ("gather", {"branch": branch, "scale": scale, "source": source}),
        ):
            mine, theirs = x.clone(), x.clone()
            y = residual_norm.launch(mine, weight, 1e-5, dtype, **options)
            expected = residual_norm.reference(theirs, weight, 1e-5, torch.float32, **options)
            assert y.dtype == dtype
            yield f"{name} {width}", off(y, expected)
            yield f"{name} {width} stream (fp32)", off(mine, theirs) * ELEMENTWISE[dtype] / 1e-6


def swiglus(dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    for width in (24, 4 * WIDE):
        x = random(5, 2 * width, dtype=dtype) * 3
        yield f"{width}", off(swiglu.launch(x), swiglu.reference(x.float()))


def qk_rope_writes(dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    for heads, width, half, windows in ((2, 16, 6, 3), (3, 64, 24, 1), (32, 64, 24, 2)):
        tokens, suffix = 7, 5
        rows = 6 * tokens + suffix * windows
        qkv = random(tokens + suffix, heads * 3 * width, dtype=dtype)
        angle = random(tokens + suffix, half)
        where = torch.randperm(rows, generator=SOURCE)[: tokens + suffix * windows].int().to(DEVICE)
        order = torch.randperm(tokens + suffix, generator=SOURCE).int().to(DEVICE)
        pool = random(2, rows, heads, width, dtype=dtype)
        wide = pool.float().clone()
        q = qk_rope_write.launch(qkv, angle.cos(), angle.sin(), order, where, windows, pool, 1e-5)
        expected = qk_rope_write.reference(qkv.float(), angle.cos(), angle.sin(), order, where, windows, wide, 1e-5)
        yield f"q {heads}x{width}", off(q, expected)
        yield f"ring {heads}x{width}", off(pool, wide)
        untouched = torch.ones(rows, dtype=torch.bool, device=DEVICE)
        untouched[where.long()] = False
        assert torch.equal(pool[:, untouched].float(), wide[:, untouched])


def segment_attentions(dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    for name, width, groups in (
        ("tiny", 16, (Group(3, 2, 7, 7), Group(1, 5, 3, 9))),
        ("ragged", 64, (Group(2, 130, 133, 140), Group(1, 64, 128, 128), Group(1, 1, 1, 1))),
        *(() if INTERPRETED else (("full", 64, (Group(2, 64, 389, 389), Group(3, 512, 1541, 1541))),)),
    ):
        heads = 2 if INTERPRETED else 32
        segments = Segments.of(groups, DEVICE)
        queries, rows = int(segments.queries_before[-1]), int(segments.rows_before[-1])
        q, k, v = (random(count, heads, width, dtype=dtype) for count in (queries, rows, rows))
        for first, count in hidden_rows(groups):
            k[first : first + count] = v[first : first + count] = float("nan")  # must not leak
        made, expected = torch.zeros_like(q), torch.zeros_like(q, dtype=torch.float64)
        segment_attention.launch(q, k, v, segments.tiles, made)
        segment_attention.reference(q.double(), k.double(), v.double(), segments.tiles, expected)
        yield name, off(made, expected)
    segments = Segments.of((Group(1, 4, 40, 40),), DEVICE)
    q, k, v = (random(count, 1, 64, dtype=dtype) * size for count, size in ((4, 3), (40, 3), (40, 1)))
    made, expected = torch.zeros_like(q), torch.zeros_like(q, dtype=torch.float64)
    segment_attention.launch(q, k, v, segments.tiles, made)
    segment_attention.reference(q.double(), k.double(), v.double(), segments.tiles, expected)
    yield "large scores", off(made, expected)


def hidden_rows(groups: tuple[Group, ...]) -> Iterator[tuple[int, int]]:
    row = 0
    for group in groups:
        for _ in range(group.segments):
            yield row + group.keys, group.rows - group.keys
            row += group.rows


def few_queries_of_many(dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    for name, width, spans, rows in (
        ("tiny", 16, [(0, 5), (9, 7)], 20),
        ("long", 64, [(3, 700), (900, 60), (1000, 1)], 1100),
        *(() if INTERPRETED else (("full", 64, [(1541 * i + 5, 1536) for i in range(15)], 24000),)),
    ):
        heads = 2 if INTERPRETED else 32
        q, k, v = (random(count, heads, width, dtype=dtype) for count in (5, rows, rows))
        seen = torch.zeros(rows, dtype=torch.bool)
        for first, count in spans:
            seen[first : first + count] = True
        k[~seen.to(DEVICE)] = v[~seen.to(DEVICE)] = float("nan")
        made, expected = torch.empty_like(q), torch.empty_like(q, dtype=torch.float64)
        pieces = torch.tensor(few_queries.cut(spans), dtype=torch.int32, device=DEVICE)
        few_queries.launch(q, k, v, pieces, made)
        few_queries.reference(q.double(), k.double(), v.double(), pieces, expected)
        yield name, off(made, expected)
