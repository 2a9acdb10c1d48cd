"""The kernels of sparse attention, at the worst cases of the specification: tiles of one row, none, and no chosen tile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from check_tools import ATTENTION, DEVICE, ELEMENTWISE, SOURCE, off, random
from safetensors.torch import load_file
from streamrender_h3.kernels import block_sparse, compression, tile_lists, tile_means
from streamrender_h3.kernels.block_sparse import Lists, Spans
from streamrender_h3.kernels.dense_attention import choose_dense
from streamrender_h3.kernels.sparse_attention import KERNELS, REFERENCE, spans
from streamrender_h3.kernels.sparse_dispatch import choose_sparse
from streamrender_h3.kernels.tiles import Tiles
from streamrender_h3.kernels.window_attention import WindowTiles, grid_means, window_attention

Lines = Iterator[tuple]
SEGMENTS = (70, 0, 5, (5, 5, 9))  # tiles of 64, 6, 5, 64, 64, 16, 16, 16, 4, 16, 16, 4, 4, 4, 1 rows
LSE_LIMIT = 1e-3  # relative; the scores are sums in float32 of rounded channels
HEADS = 7


def plan(tile: tuple[int, int, int] = (4, 4, 4)) -> Tiles:
    return Tiles.of(SEGMENTS, tile).to(DEVICE)


def some_lists(queries: int, keys: int, most: int, always: int, heads: int = HEADS) -> Lists:
    """Random lists of different lengths, none at all for the first query tile."""
    count = torch.randint(1, most + 1, (heads, queries), generator=SOURCE)
    count[:, 0] = 0
    listed = torch.full(
        (heads, queries, most), 10**6, dtype=torch.int32
    )  # a kernel must not follow what is past the count
    for head in range(heads):
        for query in range(queries):
            some = torch.randperm(keys - always, generator=SOURCE)[: count[head, query]].sort().values + always
            listed[head, query, : len(some)] = some.int()
    return Lists(always, listed.to(DEVICE), count.int().to(DEVICE))


def truth(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    queries: Spans,
    keys: Spans,
    lists: Lists,
    before: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition in float64 from the rounded inputs."""
    q, k, v = (x.double().cpu() for x in (q, k, v))
    queries, keys = (Spans(x.starts.cpu(), x.sizes.cpu(), x.extent) for x in (queries, keys))
    listed = lists.listed.where(lists.listed < len(keys.starts), 0)
    lists = Lists(lists.always, listed.cpu(), lists.count.cpu())
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[1], len(q), dtype=torch.float64)
    block_sparse.reference(q, k, v, queries, keys, lists, out, lse, before=before and tuple(x.cpu() for x in before))
    return out.to(DEVICE), lse.to(DEVICE)


def block_sparse_attentions(dtype: torch.dtype) -> Lines:
    for tile in ((4, 4, 4), (4, 8, 8)):
        tiles = plan(tile)
        everything = spans(tiles)
        for always, size, width in ((0, 1.0, 128), (tiles.n_prefix, 30.0, 32)):
            qkv = random(tiles.rows, 3, HEADS, width, dtype=dtype)  # rows of q, k and v lie apart
            q, k, v = qkv.unbind(1)
            q, k = q * size**0.5, k * size**0.5
            v = v.contiguous()
            lists = some_lists(tiles.n_video, tiles.n_tiles, min(3, tiles.n_video), always)
            queries = everything.part(tiles.n_prefix, tiles.n_tiles)
            expected, expected_lse = truth(q, k, v, queries, everything, lists)
            rows = slice(tiles.prefix_rows, None)
            made = torch.full_like(v, 7.0)
            lse = torch.zeros(HEADS, tiles.rows, device=DEVICE)
            block_sparse.launch(q, k, v, queries, everything, lists, made, lse)
            assert (made[: tiles.prefix_rows] == 7).all(), "rows of no query were written"
            case = f"tiles {tile}, {always} always, logits times {size:g}"
            yield case, off(made[rows], expected[rows])
            first = slice(tiles.prefix_rows, tiles.prefix_rows + int(queries.sizes[0]))
            if not always:
                assert (made[first] == 0).all() and (lse[:, first] == -torch.inf).all()
            seen = lse.isfinite() & (torch.arange(tiles.rows, device=DEVICE) >= tiles.prefix_rows)
            yield f"{case}, log-sum-exp", off(lse[seen], expected_lse[seen]), LSE_LIMIT
            yield from joined(case, (q, k, v), tiles, lists, expected)


def joined(case: str, qkv: tuple[torch.Tensor, ...], tiles: Tiles, lists: Lists, expected: torch.Tensor) -> Lines:
    """Tiles seen always, computed elsewhere and joined, equal those in the lists; rows of the queries count from the grids."""
    q, k, v = qkv
    everything = spans(tiles)
    after = tiles.prefix_rows
    queries = Spans(tiles.starts[tiles.n_prefix :] - after, tiles.sizes[tiles.n_prefix :], tiles.extent)
    none = Lists(lists.always, lists.listed[..., :0].contiguous(), torch.zeros_like(lists.count))
    q = q[after:].contiguous()
    rest = Lists(0, lists.listed, lists.count)
    other, lse, made = torch.zeros_like(q), torch.zeros(HEADS, len(q), device=DEVICE), torch.full_like(q, 7.0)
    block_sparse.launch(q, k, v, queries, everything, none, other, lse)
    block_sparse.launch(q, k, v, queries, everything, rest, made, before=(other, lse))
    yield f"{case}, joined", off(made, expected[after:]), 2 * ATTENTION[q.dtype]


def mapped_keys(dtype: torch.dtype) -> Lines:
    """Keys read row by row and through tensor maps, with heads beside and below one another, joined with other keys."""
    tiles = plan()
    everything = spans(tiles)
    queries = everything.part(tiles.n_prefix, tiles.n_tiles)
    rows = slice(tiles.prefix_rows, None)
    for size, width, maps, layout in ((1.0, 128, 0, "beside"), (1.0, 128, 1, "below"), (30.0, 32, 1, "beside")):
        q, k, v = (random(tiles.rows, 2, width, dtype=dtype) for _ in range(3))
        q, k = q * size**0.5, k * size**0.5
        if layout == "below":
            k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (k, v))
        lists = some_lists(tiles.n_video, tiles.n_tiles, 6, 0, heads=2)
        before = random(tiles.rows, 2, width, dtype=dtype), random(2, tiles.rows) * 3
        for other in (None, before):
            expected, _ = truth(q, k, v, queries, everything, lists, other)
            made = torch.full_like(q, 7.0)
            block_sparse.launch(q, k, v, queries, everything, lists, made, before=other, TENSOR_MAP=maps)
            assert (made[: rows.start] == 7).all(), "rows of no query were written"
            case = f"logits times {size:g}, heads {layout}, tensor maps {maps}{', joined' if other else ''}"
            yield case, off(made[rows], expected[rows])


def two_sources(dtype: torch.dtype) -> Lines:
    """Keys in a bank of padded tiles, whose padding holds NaN, and in a scratch; queries are rows of another sequence."""
    sizes = torch.tensor([64, 1, 37, 0, 20], dtype=torch.int32)
    starts = torch.tensor([0, 64, 128, 0, 64], dtype=torch.int32)  # three tiles in the bank, two in the scratch
    banks = [random(192, HEADS, 128, dtype=dtype) for _ in range(2)]
    scratches = [random(128, HEADS, 128, dtype=dtype) for _ in range(2)]
    for sources, tiles in ((banks, range(3)), (scratches, range(3, 5))):
        pad = torch.ones(len(sources[0]), dtype=torch.bool)
        for tile in tiles:
            pad[starts[tile] : starts[tile] + sizes[tile]] = False
        for source in sources:
            source[pad.to(DEVICE)] = torch.nan
    keys = Spans(starts.to(DEVICE), sizes.to(DEVICE), 64)
    queries = Spans(torch.tensor([0, 64, 128]).int().to(DEVICE), torch.tensor([64, 64, 5]).int().to(DEVICE), 64)
    q = random(133, HEADS, 128, dtype=dtype)
    lists = some_lists(3, 5, 5, 0)
    made = torch.full_like(q, torch.nan)
    block_sparse.launch(q, *banks, queries, keys, lists, made, second=(*scratches, 3))
    whole = [torch.cat(pair).nan_to_num() for pair in zip(banks, scratches, strict=True)]
    at = torch.where(torch.arange(5) < 3, starts, starts + 192).int().to(DEVICE)
    expected, _ = truth(q, *whole, queries, Spans(at, keys.sizes, 64), lists)
    yield "bank and scratch, sizes 64, 1, 37 and 0, 20", off(made, expected)
    assert (made[:64] == 0).all()


def tile_mean_rows(dtype: torch.dtype) -> Lines:
    for tile in ((4, 4, 4), (4, 8, 8)):
        tiles = plan(tile)
        x = random(tiles.rows, 3, HEADS, 128, dtype=dtype)[:, 1]
        expected = tile_means.reference(x.double(), spans(tiles))
        made = tile_means.launch(x, spans(tiles))
        assert made.dtype == torch.float32
        yield f"{tile}", off(made, expected), ELEMENTWISE[torch.float32]


def chosen_tiles(dtype: torch.dtype) -> Lines:
    """Lists are exact, also among equal scores, signed zeros and infinities; scores are float32 in any case."""
    del dtype
    for keys, most in ((37, 5), (12, 12), (100, 1), (64, 63), (1750, 172)):
        scores = random(3, 9, 2 * keys)[..., keys:]
        scores[0, :, ::2] = 0.5
        scores[1, 0] = torch.where(torch.arange(keys) % 2 == 0, 0.0, -0.0).to(DEVICE)
        scores[2, :2, :3] = torch.inf
        scores[2, 2] *= 1e-40
        wanted = torch.full((9,), most, dtype=torch.int32, device=DEVICE)
        wanted[3], wanted[4] = 0, max(1, most // 2)
        listed, count = tile_lists.launch(scores, wanted, most, 4)
        expected, expected_count = tile_lists.reference(scores, wanted, most, 4)
        assert torch.equal(count, expected_count)
        within = torch.arange(most, device=DEVICE) < count[..., None]
        yield f"{most} of {keys}", float((listed != expected)[within].sum()), 0.0


def gated_means(dtype: torch.dtype) -> Lines:
    tiles = plan()
    out, gate = (random(tiles.rows, HEADS, 128, dtype=dtype) for _ in range(2))
    mixed = random(HEADS, tiles.n_tiles, 128)
    expected = out.double() + gate.double() * mixed.double()[:, tiles.of_row.long()].transpose(0, 1)
    for side in (compression.launch, compression.reference):
        yield (
            side.__module__.split(".")[-1] + " " + side.__name__,
            off(side(out.clone(), gate, mixed, tiles.of_row), expected),
        )


def windows(dtype: torch.dtype) -> Lines:
    """The experiment inside a streaming window, moving rows behind the bank and before it, against its references."""
    bank = Tiles.of((70, (2, 5, 9), 5, (2, 10, 11)), (1, 8, 8)).to(DEVICE)
    moving = Tiles.of(((3, 5, 9), 9, (3, 10, 11)), (1, 8, 8)).to(DEVICE)
    forced = torch.rand(moving.n_video, bank.n_video + moving.n_video, generator=SOURCE) < 0.2
    q = random(moving.rows, 2, 32, dtype=dtype)
    exact, here = choose_dense(torch.device("cpu"), torch.float32, 32, "sdpa"), choose_dense(DEVICE, dtype, 32)
    for moving_first in (False, True):
        tiles = WindowTiles.of(bank, moving, forced, 12, moving_first=moving_first)
        k, v = (random(bank.rows + moving.rows, 2, 32, dtype=dtype) for _ in range(2))
        for name, dense in (("joined", here), ("listed", replace(here, run_lse=None))):
            made, expected = (
                window_attention(q.to(as_), k.to(as_), v.to(as_), tiles, means, steps=steps, dense=by)
                for steps, by, as_ in ((KERNELS, dense, dtype), (REFERENCE, exact, torch.float64))
                for means in (grid_means(steps, k[tiles.bank_rows], bank),)
            )
            yield (
                f"moving rows {'first' if moving_first else 'last'}, {name}",
                off(made, expected),
                2 * ATTENTION[dtype],
            )


def outputs_of_fastvideo(dtype: torch.dtype) -> Lines:
    """The whole operation as this card runs it; fp16 and bf16 round the gate and the weights."""
    folder = Path(__file__).parents[1] / "golden"
    tensors = load_file(folder / "vsa_tiny.safetensors")
    chosen = choose_sparse(DEVICE, dtype, 32, "triton")
    for case in json.loads((folder / "vsa_tiny.json").read_text())["tensors"]:
        tiles = Tiles.of([*case["prefix"], tuple(case["grid"])], tuple(case["tile"]))
        q, k, v, gate = (tensors[name][tiles.order].to(DEVICE, dtype) for name in ("q", "k", "v", "gate"))
        for variant in case["variants"]:
            for name, given in (("out", None), ("out_gated", gate)):
                if variant["has_output"]:
                    made = chosen.run(q, k, v, tiles.to(DEVICE), variant["sparsity"], gate=given, mode=variant["mode"])
                    expected = tensors[f"{variant['key']}.{name}"][tiles.order].to(DEVICE)
                    yield f"{variant['key']} {name}", off(made, expected), ATTENTION[dtype] * 1.5
