"""Attention over chosen tiles, two query tiles at a time: a key tile that both chose is read once.

A block of 64 queries is bound by the reading of its keys, and neighbouring tiles of a video choose mostly the same ones. Every
program goes through three lists: tiles of both queries, of the first alone, of the second alone. Same numbers as
`block_sparse`, for tiles of 64 rows at most.
"""

from __future__ import annotations

from torch import Tensor

from .block_sparse import LOG2E, Lists, Spans, absorb, key_rows, seen_scores
from .key_layout import BLOCK, map_steps, mapped, need_layout
from .launch import jit, need_rows, power_of_two, tl


@jit
def split_kernel(LISTED, COUNT, PAIRED, PARTS, QUERY_TILES, PAIRS, MOST, BLOCK: tl.constexpr):
    """One program per pair and head: the lists of both tiles, cut into those of both, of the first, of the second."""
    pair = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    place = tl.arange(0, BLOCK)
    at = head * QUERY_TILES + 2 * pair
    there = 2 * pair + 1 < QUERY_TILES
    of_a = place < tl.load(COUNT + at)
    of_b = place < tl.load(COUNT + at + 1, mask=there, other=0)
    a = tl.load(LISTED + at * MOST + place, mask=of_a, other=-1)
    b = tl.load(LISTED + (at + 1) * MOST + place, mask=of_b, other=-2)
    same = (a[:, None] == b[None, :]).to(tl.int32)
    a_shared = of_a & (tl.sum(same, 1) > 0)
    a_alone = of_a & (tl.sum(same, 1) == 0)
    b_alone = of_b & (tl.sum(same, 0) == 0)
    shared = tl.sum(a_shared.to(tl.int32), 0)
    first = tl.sum(a_alone.to(tl.int32), 0)
    out = head * PAIRS + pair
    paired = PAIRED + out * 2 * MOST
    tl.store(paired + tl.cumsum(a_shared.to(tl.int32), 0) - 1, a, mask=a_shared)
    tl.store(paired + shared + tl.cumsum(a_alone.to(tl.int32), 0) - 1, a, mask=a_alone)
    tl.store(paired + shared + first + tl.cumsum(b_alone.to(tl.int32), 0) - 1, b, mask=b_alone)
    tl.store(PARTS + 3 * out, shared)
    tl.store(PARTS + 3 * out + 1, first)
    tl.store(PARTS + 3 * out + 2, tl.sum(b_alone.to(tl.int32), 0))


@jit
def alone(
    q, K, V, STARTS, SIZES, listed, count, at, row, wide, STRIDE, down, across, top, total, mixed, SCALE,
    BLOCK: tl.constexpr, TENSOR_MAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The key tiles of a list into one block of queries."""
    for step in tl.range(0, count, num_stages=STAGES):
        key = tl.load(listed + step)
        start = tl.load(STARTS + key)
        live = tl.load(SIZES + key)
        whole = (row < live)[:, None] & wide
        k = key_rows(K, start, at, whole, STRIDE, down, across, TENSOR_MAP)
        scores = seen_scores(q, k, row, live, BLOCK)
        v = key_rows(V, start, at, whole, STRIDE, down, across, TENSOR_MAP)
        top, total, mixed = absorb(scores, v, top, total, mixed, SCALE)
    return top, total, mixed


@jit
def finish(
    OUT, BEFORE, BEFORE_LSE, first, asked, head, row, channel, wide, top, total, mixed, ROWS, OUT_STRIDE,
    WIDTH: tl.constexpr, JOIN: tl.constexpr,
):  # fmt: skip
    """The rows of a block of queries, joined with attention over other keys; as in `block_sparse`."""
    at = first * OUT_STRIDE + head * WIDTH + (row[:, None] * OUT_STRIDE + channel[None, :])
    here = asked[:, None] & wide
    if JOIN:
        lse = tl.load(BEFORE_LSE + head.to(tl.int64) * ROWS + first + row, mask=asked, other=0.0)
        before = lse * 1.4426950408889634
        higher = tl.maximum(top, before)
        fade = tl.exp2(top - higher)
        share = tl.exp2(before - higher)
        total = total * fade + share
        mixed = mixed * fade[:, None] + tl.load(BEFORE + at, mask=here, other=0.0).to(tl.float32) * share[:, None]
    mixed = mixed * tl.where(total > 0.0, 1.0 / total, 0.0)[:, None]
    tl.store(OUT + at, mixed.to(OUT.dtype.element_ty), mask=here)


@jit
def kernel(
    Q,
    K,
    V,
    OUT,
    BEFORE,
    BEFORE_LSE,
    Q_STARTS,
    Q_SIZES,
    STARTS,
    SIZES,
    LISTED,
    COUNT,
    SCALE,
    Q_STRIDE,
    Q_HEAD_STRIDE,
    KV_STRIDE,
    KV_HEAD_STRIDE,
    MAP_ROWS,
    MAP_COLUMNS,
    OUT_STRIDE,
    QUERY_TILES,
    PAIRS,
    ROWS,
    MOST,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    JOIN: tl.constexpr,
    TENSOR_MAP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program per two query tiles and head."""
    pair = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.arange(0, BLOCK)
    channel = tl.arange(0, BLOCK_WIDTH)
    wide = (channel < WIDTH)[None, :]
    there = 2 * pair + 1 < QUERY_TILES
    a_first = tl.load(Q_STARTS + 2 * pair).to(tl.int64)
    b_first = tl.load(Q_STARTS + 2 * pair + 1, mask=there, other=0).to(tl.int64)
    a_asked = row < tl.load(Q_SIZES + 2 * pair)
    b_asked = row < tl.load(Q_SIZES + 2 * pair + 1, mask=there, other=0)
    q_at = head.to(tl.int64) * Q_HEAD_STRIDE + (row[:, None] * Q_STRIDE + channel[None, :])
    a = tl.load(Q + a_first * Q_STRIDE + q_at, mask=a_asked[:, None] & wide, other=0.0)
    b = tl.load(Q + b_first * Q_STRIDE + q_at, mask=b_asked[:, None] & wide, other=0.0)
    list_at = head.to(tl.int64) * PAIRS + pair
    listed = LISTED + list_at * 2 * MOST
    shared = tl.load(COUNT + 3 * list_at)
    of_a = tl.load(COUNT + 3 * list_at + 1)
    of_b = tl.load(COUNT + 3 * list_at + 2)
    at = row[:, None] * KV_STRIDE + channel[None, :]
    down = head * MAP_ROWS
    across = head * MAP_COLUMNS
    if not TENSOR_MAP:
        K += head.to(tl.int64) * KV_HEAD_STRIDE
        V += head.to(tl.int64) * KV_HEAD_STRIDE
    a_top = tl.full((BLOCK,), -1e30, tl.float32)
    a_total = tl.zeros((BLOCK,), tl.float32)
    a_mixed = tl.zeros((BLOCK, BLOCK_WIDTH), tl.float32)
    b_top, b_total, b_mixed = a_top, a_total, a_mixed
    for step in tl.range(0, shared, num_stages=STAGES):
        key = tl.load(listed + step)
        start = tl.load(STARTS + key)
        live = tl.load(SIZES + key)
        whole = (row < live)[:, None] & wide
        k = key_rows(K, start, at, whole, KV_STRIDE, down, across, TENSOR_MAP)
        v = key_rows(V, start, at, whole, KV_STRIDE, down, across, TENSOR_MAP)
        scores = seen_scores(a, k, row, live, BLOCK)
        a_top, a_total, a_mixed = absorb(scores, v, a_top, a_total, a_mixed, SCALE)
        scores = seen_scores(b, k, row, live, BLOCK)
        b_top, b_total, b_mixed = absorb(scores, v, b_top, b_total, b_mixed, SCALE)
    a_top, a_total, a_mixed = alone(
        a, K, V, STARTS, SIZES, listed + shared, of_a, at, row, wide, KV_STRIDE, down, across, a_top, a_total,
        a_mixed, SCALE, BLOCK, TENSOR_MAP, STAGES,
    )  # fmt: skip
    finish(
        OUT, BEFORE, BEFORE_LSE, a_first, a_asked, head, row, channel, wide, a_top, a_total, a_mixed, ROWS, OUT_STRIDE,
        WIDTH, JOIN,
    )  # fmt: skip
    b_top, b_total, b_mixed = alone(
        b, K, V, STARTS, SIZES, listed + shared + of_a, of_b, at, row, wide, KV_STRIDE, down, across, b_top, b_total,
        b_mixed, SCALE, BLOCK, TENSOR_MAP, STAGES,
    )  # fmt: skip
    finish(
        OUT, BEFORE, BEFORE_LSE, b_first, b_asked, head, row, channel, wide, b_top, b_total, b_mixed, ROWS, OUT_STRIDE,
        WIDTH, JOIN,
    )  # fmt: skip


def paired(lists: Lists) -> tuple[Tensor, Tensor]:
    """Lists of single query tiles as lists of pairs [heads, pairs, 2 most] int32, and the lengths of the three [.., 3]."""
    heads, tiles, most = lists.listed.shape
    pairs = -(-tiles // 2)
    listed = lists.listed.new_empty(heads, pairs, 2 * most)
    count = lists.count.new_zeros(heads, pairs, 3)
    if pairs and most:
        split_kernel[(pairs, heads)](
            lists.listed, lists.count, listed, count, tiles, pairs, most, BLOCK=power_of_two(most), num_warps=4
        )
    return listed, count


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Spans,
    keys: Spans,
    lists: Lists,
    out: Tensor,
    *,
    before: tuple[Tensor, Tensor] | None = None,
    **changes: int,
) -> None:
    """`block_sparse.reference` without the tiles seen always, by two kernels; `changes` to the tuning are for measurements."""
    heads, width = q.shape[1:]
    need_layout(q, k, v, out=out)
    if lists.always or keys.extent > BLOCK:
        raise ValueError(
            f"{lists.always} tiles seen always and tiles of {keys.extent} rows; pairs take none and {BLOCK} at most, "
            "use block_sparse"
        )
    if before is not None:
        need_rows(other=before[0], other_lse=before[1], out=out)
    other, other_lse = before or (out, out)
    listed, count = paired(lists)
    pairs = listed.shape[1]
    options = tuning(q) | changes
    sources, options["TENSOR_MAP"] = mapped(k, v, bool(options["TENSOR_MAP"]))
    if pairs:
        kernel[(pairs, heads)](
            q, *sources, out, other, other_lse, queries.starts, queries.sizes, keys.starts, keys.sizes, listed, count,
            width**-0.5 * LOG2E, *q.stride()[:2], *k.stride()[:2], *map_steps(k), out.stride(0),
            len(queries.starts), pairs, len(q), lists.listed.shape[-1], WIDTH=width,
            BLOCK_WIDTH=max(16, power_of_two(width)), BLOCK=BLOCK, JOIN=before is not None, **options,
        )  # fmt: skip


def tuning(q: Tensor) -> dict[str, int]:
    """Whether keys are read through tensor maps, pipeline stages and warps."""
    if q.element_size() > 2:
        return {"TENSOR_MAP": 0, "STAGES": 1, "num_warps": 8}
    return {"TENSOR_MAP": 0, "STAGES": 2, "num_warps": 4}
