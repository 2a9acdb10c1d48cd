"""The matrix products and attentions of one pair of the ViT decoder, each alone at its real shape: the decoder's limit."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels.dispatch import BACKENDS, AttentionError, choose, order
from ..codec import CausalViT, ViTConfig
from ..codec.vit import Block
from ..codec.vit_fast import SplitHead
from ..codec.vit_form import Form, can_split, kernels_of
from ..codec.windows import CHUNK_LATENTS, SLOTS, Windows
from .measure import time_ms
from .rows import Row


class Parts(NamedTuple):
    rows: list[Row]
    pair_ms: float  # all of them together, with the attention that is chosen here


def linear_flops(config: ViTConfig, grid: tuple[int, int]) -> int:
    """Of the Linears of all blocks and the output layer, for one pair."""
    tokens = CHUNK_LATENTS * grid[0] * grid[1]
    per_row = 2 * config.hidden * (4 * config.hidden + 3 * config.ffn) * config.layers
    return (tokens + config.suffix) * per_row + 2 * tokens * config.hidden * 12 * config.patch**2


def windows_of(config: ViTConfig, grid: tuple[int, int]) -> list[Windows]:
    return [Windows(grid, config.window, shift, config.suffix) for shift in (0, config.window // 2)]


def window_flops(config: ViTConfig, grid: tuple[int, int]) -> int:
    """Of the attention inside windows, all layers."""
    kinds = [
        sum(CHUNK_LATENTS * len(m) * (SLOTS * len(m) + config.suffix) for m in windows.members)
        for windows in windows_of(config, grid)
    ]
    return sum(4 * config.hidden * kinds[layer % 2] for layer in range(config.layers))


def suffix_flops(config: ViTConfig, grid: tuple[int, int]) -> int:
    keys = SLOTS * grid[0] * grid[1] + config.suffix
    return 4 * config.hidden * config.suffix * keys * config.layers


def attention_flops(config: ViTConfig, grid: tuple[int, int]) -> int:
    return window_flops(config, grid) + suffix_flops(config, grid)


@torch.inference_mode()
def parts(network: CausalViT, grid: tuple[int, int], peak: float) -> Parts:
    """Measure them; `peak` in TFLOP/s is the limit of the products."""
    config, device, dtype = network.config, network.register_tokens.device, network.compute_dtype
    repeats = 5 if device.type == "cuda" else 1
    tokens = CHUNK_LATENTS * grid[0] * grid[1]
    rows, times = [], []

    def add(name: str, flops: int, work: object, counts: bool = True) -> None:
        ms = time_ms(device, work, repeats=repeats, warm=2)  # type: ignore[arg-type]
        rows.append(Row(name, ms, flops / ms / 1e9, flops / peak / 1e9))
        if counts:
            times.append(ms)

    x, wide = (
        torch.randn(tokens + config.suffix, width, device=device, dtype=dtype) for width in (config.hidden, config.ffn)
    )

    def products() -> None:
        for block in network.blocks:
            assert isinstance(block, Block)
            block.attn.to_qkv(x)
            block.attn.to_out(x)
            block.ff.w1(x)
            block.ff.w2(wide)

    head = 2 * tokens * config.hidden * 12 * config.patch**2
    add("matrix products of the blocks", linear_flops(config, grid) - head, products)
    exact = torch.randn(tokens, config.hidden, device=device)
    if device.type == "cuda" and can_split(device):
        split = SplitHead(network.proj_out.weight)
        add("output layer, split in bf16", head, lambda: split(exact))
        add("output layer, float32", head, lambda: network.proj_out(exact), counts=False)
    else:
        add("output layer, float32", head, lambda: network.proj_out(exact))

    kinds = windows_of(config, grid)
    pools = [
        torch.randn(2, kinds[layer % 2].rows, config.heads, config.head_dim, device=device, dtype=dtype)
        for layer in range(config.layers)
    ]
    segments = [windows.segments(CHUNK_LATENTS, SLOTS, device) for windows in kinds]
    q = torch.randn(tokens + config.suffix, config.heads, config.head_dim, device=device, dtype=dtype)
    out = torch.empty_like(q)
    chosen = choose(device, dtype, config.head_dim)
    for name in dict.fromkeys((chosen.name, *order(device), *(BACKENDS if device.type == "cuda" else ()))):
        try:
            choice = choose(device, dtype, config.head_dim, name)
        except AttentionError:
            continue

        def in_windows() -> None:
            for layer, pool in enumerate(pools):
                choice.run(q[:tokens], pool[0], pool[1], segments[layer % 2], out[:tokens])  # noqa: B023

        add(f"attention of windows: {name}", window_flops(config, grid), in_windows, counts=name == chosen.name)
    add(
        "attention of the suffix",
        suffix_flops(config, grid),
        suffix_work(chosen_kernels(device), q[tokens:], pools, kinds),
    )
    return Parts(rows, sum(times))


def chosen_kernels(device: torch.device) -> frozenset[str]:
    return frozenset({"few_queries"}) if device.type == "cuda" else frozenset()


def suffix_work(kernels: frozenset[str], q: Tensor, pools: list[Tensor], kinds: list[Windows]) -> object:
    """The suffix attention of all layers, by the kernel or by one call over the picture."""
    from ...kernels import few_queries

    device = q.device
    if not kernels:
        seen = [pool[:, ~kinds[layer % 2].hidden_rows(SLOTS)].transpose(1, 2) for layer, pool in enumerate(pools)]
        some = q.transpose(0, 1)
        return lambda: [F.scaled_dot_product_attention(some, *keys) for keys in seen]
    spans = [torch.tensor(few_queries.cut(w.spans(SLOTS)), dtype=torch.int32, device=device) for w in kinds]
    attend = kernels_of(Form(choose(device, q.dtype, q.shape[-1], "sdpa"), kernels=kernels)).few_queries
    out = torch.empty_like(q)

    def work() -> None:
        for layer, pool in enumerate(pools):
            attend(q, pool[0], pool[1], spans[layer % 2], out)

    return work
