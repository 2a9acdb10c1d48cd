"""Attention over chosen tiles: each query tile sees the first `always` key tiles and those of its own list, no others.

Rows lie in tile order (`tiles.Tiles`), tiles may be ragged and are not padded. Softmax in base 2 with the scale folded into one
multiply-add, running maximum from a large finite number, so that a query tile without keys gives 0 and not NaN. Kernel K5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .launch import jit, need_rows, power_of_two, tl

LOG2E = 1.4426950408889634
NO_ROWS = torch.zeros(0, dtype=torch.int64)
BLOCK = 64  # rows of a query or key block; a tile has one, or a few of them


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
def key_rows(X, start, head, at, live, STRIDE, WIDTH: tl.constexpr, TENSOR_MAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows from `start` of a head; past `live` rows zeros, through a tensor map whatever comes next."""
    if TENSOR_MAP:
        rows = X.load([start, head * WIDTH])
    else:
        rows = tl.load(X + start.to(tl.int64) * STRIDE + head * WIDTH + at, mask=live, other=0.0)
    return rows


@jit
def seen_scores(q, k, row, live, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Products with a block of keys; a full one, the usual case, is not masked."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if live < BLOCK:
        scores = tl.where((row < live)[None, :], scores, float("-inf"))
    return scores


@jit
def absorb(scores, v, top, total, mixed, SCALE):  # type: ignore[no-untyped-def]
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
    KV_STRIDE,
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
    q_at = Q + first * Q_STRIDE + head * WIDTH
    q = tl.load(q_at + row[:, None] * Q_STRIDE + channel[None, :], mask=here, other=0.0)
    list_at = head.to(tl.int64) * QUERY_TILES + tile
    steps = (ALWAYS + tl.load(COUNT + list_at)) * PARTS
    listed = LISTED + list_at * MOST
    at = row[:, None] * KV_STRIDE + channel[None, :]
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
        k = key_rows(keys, start, head, at, whole, KV_STRIDE, WIDTH, TENSOR_MAP)
        scores = seen_scores(q, k, row, live, BLOCK)
        v = key_rows(values, start, head, at, whole, KV_STRIDE, WIDTH, TENSOR_MAP)
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
    """`reference`, by one kernel; rows of q, k, v and out may lie apart, their heads may not.

    `before` is attention of the same queries over other keys (like out, its log-sum-exp [heads, query rows] float32); the
    result is then over both. `second` is (k, v, first tile): from that tile on, `keys.starts` count rows there. `changes` to
    the tuning are for measurements.
    """
    heads, width = q.shape[1:]
    tensors = {"q": q, "k": k, "v": v, "out": out}
    need_heads(**tensors)
    if before is not None:
        need_rows(other=before[0], other_lse=before[1], out=out)
    k2, v2, first = second or (k, v, 0)
    parts = -(-keys.extent // BLOCK)
    if k2.stride(0) != k.stride(0) or v.stride(0) != k.stride(0) or v2.stride(0) != k.stride(0):
        raise ValueError("k and v have rows of different strides; pass both, and their second source, in one layout")
    other, other_lse = before or (out, out)
    stride, options = k.stride(0), tuning(q) | changes
    options["TENSOR_MAP"] = int(options["TENSOR_MAP"] and second is None and mappable(k) and mappable(v))
    if options["TENSOR_MAP"]:
        k, v = mapped(k), mapped(v)
        k2, v2 = k, v
    grid = (len(queries.starts) * parts, heads)
    if not grid[0]:
        return
    kernel[grid](
        q,
        k,
        v,
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
        q.stride(0),
        stride,
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


def mappable(x: Tensor) -> bool:
    """Whether a tensor map can describe these rows of heads: sixteen-byte steps, and a head a power of two."""
    step = x.element_size()
    return x.data_ptr() % 16 == 0 and x.stride(0) * step % 16 == 0 and x.shape[2] == power_of_two(x.shape[2]) >= 16


def mapped(x: Tensor) -> Any:
    """Rows [rows, heads, d] as a tensor map that hands out BLOCK rows of one head, zeros past the last."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    rows, heads, width = x.shape
    return TensorDescriptor(x, [rows, heads * width], [x.stride(0), 1], [BLOCK, width])


def need_heads(**tensors: Tensor) -> None:
    """Raises `ValueError` unless the heads of a row [rows, heads, d] follow one another; its rows may lie anywhere."""
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1 or tensor.stride(-2) != tensor.shape[-1]:
            raise ValueError(
                f"{name} {tuple(tensor.shape)} has strides {tensor.stride()}, and a kernel needs the heads of a row "
                "contiguous; call .contiguous() on it first"
            )
