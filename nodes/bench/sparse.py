"""The part `sparse`: one layer's sparse attention of a whole clip beside dense attention and, where installed, FastVideo's kernel.

FastVideo's own Triton kernel (`pip install fastvideo-kernel`) is given the same tiles, padded as it wants them; only that file of
the package is loaded. Every rate counts the pairs of rows that are seen, full tiles each, so that the forms compare.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...kernels.sparse_attention import Chosen, attend_chosen, choose_tiles
from ...kernels.sparse_dispatch import SparseChoice, choose_sparse
from ...kernels.tiles import Tiles
from ..sampler.clip_attention import RowSegments
from ..sampler.clip_recipes import TILE
from .clip import FRAMES, TEXT_ROWS, shape_of
from .measure import median_ms, peak_gib, relative_error, start_peak
from .model import PRESETS, release_weights, sizes
from .rows import Options, Report, Row

KEEPS = (10.0, 20.0)
REPEATS, ROUNDS = 2, 3
SAMPLE = 4096  # rows on which two forms are compared
PEER = "triton_kernels/block_sparse_attn_triton.py"  # in the package fastvideo_kernel

Make = Callable[[], Tensor]


def measure(options: Options) -> list[Report]:
    """One report per size, at the longest length."""
    release_weights()
    return [report(options, RowSegments.of(*shaped)) for shaped in clips(options)]


def clips(options: Options) -> Iterator[tuple[Any, int]]:
    """(shape of a clip, text rows) of every size."""
    frames = (options.frames or FRAMES[options.preset])[-1]
    for size in sizes(options):
        yield shape_of(size, frames), options.text_rows or TEXT_ROWS[options.preset]


@torch.inference_mode()
def report(options: Options, segments: RowSegments) -> Report:
    device, config = torch.device(options.device), PRESETS[options.preset].config
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    tiles = Tiles.of((*segments.runs, segments.grid), TILE).to(device)
    choice = choose_sparse(device, dtype, config.head_dim)
    random = torch.Generator(device).manual_seed(3)
    q, k, v = (
        torch.randn(tiles.rows, config.heads, config.head_dim, device=device, dtype=dtype, generator=random)
        for _ in range(3)
    )
    made = Report(f"H3 {options.preset}, sparse attention of one layer, {tiles.rows} rows in {tiles.n_tiles} tiles")
    made.facts |= {"sparse attention": str(choice), "tiles before the video": tiles.n_prefix}

    def timed(name: str, work: Callable[[], object], pairs: float) -> float:
        start_peak(device)
        ms = median_ms(device, work, repeats=REPEATS if device.type == "cuda" else 1, rounds=ROUNDS)
        flops = 4 * config.head_dim * config.heads * pairs
        made.rows.append(Row(name, ms, flops / ms / 1e9, None, peak_gib(device)))
        return ms

    timed(f"dense, {choice.dense.name}", lambda: choice.dense.run(q, k, v), tiles.rows**2)
    for keep in KEEPS:
        one_keep(made, timed, choice, tiles, keep, (q, k, v))
    return made


def one_keep(made: Report, timed: Callable[..., float], choice: SparseChoice, tiles: Tiles, keep: float,
             qkv: tuple[Tensor, Tensor, Tensor]) -> None:  # fmt: skip
    """Rows and facts of one share of tiles."""
    q, k, v = qkv
    kept, first = tiles.budget(1.0 - keep / 100.0), tiles.n_prefix
    chosen = choose_tiles(choice.steps, q, k, None, tiles, kept)
    pairs = tiles.extent**2 * (tiles.n_video * (kept + first) + first * tiles.n_tiles)
    name = f"keep {keep:g} %"

    def ours() -> Tensor:
        return attend_chosen(q, k, v, tiles, chosen.lists, choice.steps, choice.dense)

    with made.surviving(name):
        ms = timed(f"{name}, attention", ours, pairs)
        timed(f"{name}, with the choice of tiles", lambda: choice.run(q, k, v, tiles, 1.0 - keep / 100.0), pairs)
        theirs = fastvideo(tiles, chosen, qkv)
        if theirs is None:
            made.facts[f"{name}: FastVideo's kernel"] = "pip install fastvideo-kernel to compare"
            return
        run, slots = theirs
        other = timed(f"{name}, attention by FastVideo", run, pairs)
        some = torch.randperm(tiles.rows, device=q.device)[:SAMPLE]
        made.facts |= {
            f"{name}: FastVideo / this": other / ms,
            f"{name}: they differ by": relative_error(ours()[some], run()[0][:, slots[some]].transpose(0, 1)),
        }


@cache
def peer() -> ModuleType | None:
    """The file of FastVideo's kernel, or None."""
    package = importlib.util.find_spec("fastvideo_kernel")
    path = Path(*package.submodule_search_locations or [], PEER) if package else None
    if path is None or not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("fastvideo_block_sparse", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fastvideo(tiles: Tiles, chosen: Chosen, qkv: tuple[Tensor, Tensor, Tensor]) -> tuple[Make, Tensor] | None:
    """(call that gives [1, heads, slots, d], slot of each row in tile order) by FastVideo's kernel, over the same tiles."""
    module = peer()
    if module is None:
        return None
    heads, device = qkv[0].shape[1], qkv[0].device
    within = torch.arange(tiles.rows, device=device) - tiles.starts[tiles.of_row.long()]
    slots = tiles.of_row.long() * tiles.extent + within

    def padded(x: Tensor) -> Tensor:
        made = x.new_zeros(1, heads, tiles.slots, x.shape[-1])
        made[0, :, slots] = x.transpose(0, 1)
        return made

    q, k, v = (padded(x) for x in qkv)
    first, count = tiles.n_prefix, tiles.n_tiles
    listed = torch.zeros(1, heads, count, count, dtype=torch.int32, device=device)
    listed[..., :first, :] = torch.arange(count, device=device)
    listed[..., first:, :first] = torch.arange(first, device=device)
    most = chosen.lists.listed.shape[-1]
    listed[0, :, first:, first : first + most] = chosen.lists.listed
    counts = torch.full((1, heads, count), count, dtype=torch.int32, device=device)
    counts[0, :, first:] = first + chosen.lists.count

    def run() -> Tensor:
        out = module.triton_block_sparse_attn_forward(q, k, v, listed, counts, tiles.sizes)
        return out[0] if isinstance(out, tuple) else out

    return run, slots
