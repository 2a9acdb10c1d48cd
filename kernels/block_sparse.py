"""Attention over chosen tiles: each query tile sees the first `always` key tiles and those of its own list, no others.

Rows lie in tile order (`tiles.Tiles`), tiles may be ragged and are not padded. Softmax in base 2 with the scale folded into one
multiply-add, running maximum from a large finite number, so that a query tile without keys gives 0 and not NaN. Kernel K5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .key_layout import BLOCK, map_steps, mapped, need_layout
from .launch import jit, need_rows, power_of_two, tl

LOG2E = 1.4426950408889634
NO_ROWS = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class Lists:
    """Which key tiles a query tile sees: tiles 0 .. always - 1, then listed[head, query tile, : count[head, query tile]].

    listed [heads, query tiles, most] int32, ascending; count [heads, query tiles] int32.
    """

    always: int
    listed: Tensor
    count: Tensor


@dataclass(frozen=True)
class Spans:
    """First rows and rows of tiles, [n] int32 each, and the rows of a full one."""

    starts: Tensor
    sizes: Tensor
    extent: int

    def part(self, first: int, last: int) -> Spans:
        return Spans(self.starts[first:last], self.sizes[first:last], self.extent)


def seen_tiles(lists: Lists, key_tiles: int) -> Tensor:
    """The lists as a mask [heads, query tiles, key tiles] bool."""
    most = lists.listed.shape[-1]
    valid = torch.arange(most, device=lists.count.device) < lists.count[..., None]
    counts = torch.zeros(*lists.count.shape, key_tiles, dtype=torch.int32, device=lists.count.device)
    counts.scatter_add_(-1, lists.listed.long() * valid, valid.int())
    counts[..., : lists.always] = 1
    return counts > 0


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Spans,
    keys: Spans,
    lists: Lists,
    out: Tensor,
    lse: Tensor | None = None,
    *,
    before: tuple[Tensor, Tensor] | None = None,
) -> None:
    """The definition, in float32 (float64 stays), one query tile and head at a time; fills `out` and `lse` at the queries.

    q, out [query rows, heads, d], k, v [key rows, heads, d]; lse [heads, query rows] float32, natural logarithm. `before` is
    attention of the same queries over other keys (like out, its log-sum-exp); the result is then over both.
    """
    precise = torch.promote_types(q.dtype, torch.float32)
    seen = seen_tiles(lists, len(keys.starts)).cpu()
    starts, sizes = keys.starts.tolist(), keys.sizes.tolist()
    rows_of = [torch.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    for tile, (first, size) in enumerate(zip(queries.starts.tolist(), queries.sizes.tolist(), strict=True)):
        here = slice(first, first + size)
        for head in range(q.shape[1]):
            rows = torch.cat([rows_of[key] for key in seen[head, tile].nonzero().flatten().tolist()] or [NO_ROWS])
            scores = q[here, head].to(precise) @ k[rows, head].to(precise).t() * q.shape[-1] ** -0.5
            values = v[rows, head].to(precise)
            if before is not None:  # one more key, whose value is another one for each query
                scores = torch.cat([scores, before[1][head, here, None].to(precise)], 1)
            weight = scores.softmax(-1).nan_to_num()
            mixed = weight[:, : len(rows)] @ values
            if before is not None:
                mixed += torch.where(weight[:, -1:] > 0, weight[:, -1:] * before[0][here, head].to(precise), 0.0)
            out[here, head] = mixed.to(out.dtype)
            if lse is not None:
                lse[head, here] = scores.logsumexp(-1)


@jit
def key_rows(X, start, at, live, STRIDE, down, across, TENSOR_MAP: tl.constexpr):
    """Rows from `start` of a head; past the `live` ones zeros, through a tensor map whatever comes next."""
    if TENSOR_MAP:  # noqa: SIM108 (no ternary of two kinds of pointer compiles)
        rows = X.load([down + start, across])
    else:
        rows = tl.load(X + start.to(tl.int64) * STRIDE + at, mask=live, other=0.0)
    return rows


@jit
def seen_scores(q, k, row, live, BLOCK: tl.constexpr):
    """Products with a block of keys; a full one, the usual case, is not masked."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if live < BLOCK:
        scores = tl.where((row < live)[None, :], scores, float("-inf"))
    return scores


@jit
def absorb(scores, v, top, total, mixed, SCALE):
    """One block of keys into the running softmax."""
    higher = tl.maximum(top, tl.max(scores, 1) * SCALE)
    weight = tl.exp2(scores * SCALE - higher[:, None])
    fade = tl.exp2(top - higher)
    total = total * fade + tl.sum(weight, 1)
    mixed = tl.dot(weight.to(v.dtype), v, mixed * fade[:, None], input_precision="ieee")
    return higher, total, mixed


@jit
def kernel(
    Q,
    K,
    V,
    K2,
    V2,
    OUT,
    LSE,
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
    ROWS,
    ALWAYS,
    MOST,
    FIRST_OF_2,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    TWO: tl.constexpr,
    JOIN: tl.constexpr,
    WRITE_LSE: tl.constexpr,
    TENSOR_MAP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program per query block and head; heads outermost, so that the keys of few heads share the cache at a time.

    With TWO the tiles from FIRST_OF_2 on lie in K2, V2. With JOIN the result is joined with attention over other keys.
    """
    block = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    tile = block // PARTS
    within = (block % PARTS * BLOCK).to(tl.int32)
    first = tl.load(Q_STARTS + tile).to(tl.int64) + within
    row = tl.arange(0, BLOCK)
    channel = tl.arange(0, BLOCK_WIDTH)
    wide = (channel < WIDTH)[None, :]
    asked = row < tl.load(Q_SIZES + tile) - within
    here = asked[:, None] & wide
    q_at = Q + first * Q_STRIDE + head.to(tl.int64) * Q_HEAD_STRIDE
    q = tl.load(q_at + row[:, None] * Q_STRIDE + channel[None, :], mask=here, other=0.0)
    list_at = head.to(tl.int64) * QUERY_TILES + tile
    steps = (ALWAYS + tl.load(COUNT + list_at)) * PARTS
    listed = LISTED + list_at * MOST
    at = row[:, None] * KV_STRIDE + channel[None, :]
    down = head * MAP_ROWS
    across = head * MAP_COLUMNS
    if not TENSOR_MAP:
        K += head.to(tl.int64) * KV_HEAD_STRIDE
        V += head.to(tl.int64) * KV_HEAD_STRIDE
        K2 += head.to(tl.int64) * KV_HEAD_STRIDE
        V2 += head.to(tl.int64) * KV_HEAD_STRIDE
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    mixed = tl.zeros((BLOCK, BLOCK_WIDTH), tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        number = step // PARTS
        key = number
        if number >= ALWAYS:
            key = tl.load(listed + number - ALWAYS)
        start = tl.load(STARTS + key) + step % PARTS * BLOCK
        live = tl.load(SIZES + key) - step % PARTS * BLOCK
        keys, values = K, V
        if TWO and key >= FIRST_OF_2:
            keys, values = K2, V2
        whole = (row < live)[:, None] & wide
        k = key_rows(keys, start, at, whole, KV_STRIDE, down, across, TENSOR_MAP)
        scores = seen_scores(q, k, row, live, BLOCK)
        v = key_rows(values, start, at, whole, KV_STRIDE, down, across, TENSOR_MAP)
        top, total, mixed = absorb(scores, v, top, total, mixed, SCALE)
    out_at = first * OUT_STRIDE + head * WIDTH + (row[:, None] * OUT_STRIDE + channel[None, :])
    lse_row = head.to(tl.int64) * ROWS + first + row
    if JOIN:
        before = tl.load(BEFORE_LSE + lse_row, mask=asked, other=0.0) * 1.4426950408889634
        higher = tl.maximum(top, before)
        fade = tl.exp2(top - higher)
        share = tl.exp2(before - higher)
        total = total * fade + share
        mixed = mixed * fade[:, None] + tl.load(BEFORE + out_at, mask=here, other=0.0).to(tl.float32) * share[:, None]
        top = higher
    sees = total > 0.0
    mixed = mixed * tl.where(sees, 1.0 / total, 0.0)[:, None]
    tl.store(OUT + out_at, mixed.to(OUT.dtype.element_ty), mask=here)
    if WRITE_LSE:
        tl.store(LSE + lse_row, tl.where(sees, (top + tl.log2(total)) * 0.6931471805599453, float("-inf")), mask=asked)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Spans,
    keys: Spans,
    lists: Lists,
    out: Tensor,
    lse: Tensor | None = None,
    *,
    before: tuple[Tensor, Tensor] | None = None,
    second: tuple[Tensor, Tensor, int] | None = None,
    **changes: int,
) -> None:
    """`reference`, by one kernel; rows and heads of q, k and v may lie apart, k and v alike.

    `before` is attention of the same queries over other keys (like out, its log-sum-exp [heads, query rows] float32); the
    result is then over both. `second` is (k, v, first tile): from that tile on, `keys.starts` count rows there. `changes` to
    the tuning are for measurements. Through tensor maps the rows after a ragged tile are read too, and must be finite.
    """
    heads, width = q.shape[1:]
    k2, v2, first = second or (k, v, 0)
    need_layout(q, k, v, k2, v2, out=out)
    if before is not None:
        need_rows(other=before[0], other_lse=before[1], out=out)
    other, other_lse = before or (out, out)
    parts = -(-keys.extent // BLOCK)
    grid = (len(queries.starts) * parts, heads)
    options = tuning(q) | changes
    sources, options["TENSOR_MAP"] = mapped(k, v, bool(options["TENSOR_MAP"]) and second is None)
    if options["TENSOR_MAP"]:
        k2, v2 = sources
    if not grid[0]:
        return
    kernel[grid](
        q,
        *sources,
        k2,
        v2,
        out,
        out if lse is None else lse,
        other,
        other_lse,
        queries.starts,
        queries.sizes,
        keys.starts,
        keys.sizes,
        lists.listed,
        lists.count,
        width**-0.5 * LOG2E,
        *q.stride()[:2],
        *k.stride()[:2],
        *map_steps(k),
        out.stride(0),
        len(queries.starts),
        len(q),
        lists.always,
        lists.listed.shape[-1],
        first,
        WIDTH=width,
        BLOCK_WIDTH=max(16, power_of_two(width)),
        BLOCK=BLOCK,
        PARTS=parts,
        TWO=second is not None,
        JOIN=before is not None,
        WRITE_LSE=lse is not None,
        **options,
    )


def tuning(q: Tensor) -> dict[str, int]:
    """Whether keys are read through tensor maps, pipeline stages and warps."""
    if q.element_size() > 2:
        return {"TENSOR_MAP": 0, "STAGES": 1, "num_warps": 8}
    return {"TENSOR_MAP": 0, "STAGES": 2, "num_warps": 4}
