"""One pass of the ViT decoder as a GPU likes it: tokens stay in picture order and only queries, keys and values move.

The q, k, v kernel puts queries into window order and keys and values into the ring; the attention result comes back
through the row numbers of the next residual kernel. So no pass permutes the residual stream, and a layer is four matrix
products, two attentions and four kernels. Once a call has been seen, its passes become one CUDA graph: clock, latents
and output live in fixed tensors, and ring positions repeat every three pairs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels import few_queries
from .ring import Call, Ring
from .space import LATENT_CHANNELS, denormalise
from .vit import EPS, Block, CausalViT, space_angles, time_angles
from .vit_form import Form, kernels_of
from .windows import SLOTS

log = logging.getLogger("streamrender_h3")


class Tables:
    """What passes over `latents` latents share: rotary tables in picture order, query rows, and the fixed input."""

    def __init__(self, network: CausalViT, ring: Ring, latents: int, device: torch.device) -> None:
        config = network.config
        grid = ring.windows[0].grid
        self._config, self.latents = config, latents
        self.tokens = latents * grid[0] * grid[1]
        self.input = torch.empty(latents, LATENT_CHANNELS, *grid, device=device)
        picture = torch.arange(self.tokens)
        extra = self.tokens + torch.arange(config.suffix)
        self._latent_of = torch.cat((picture // (grid[0] * grid[1]), torch.full((config.suffix,), latents))).to(device)
        self.cos, self.sin, self.query_rows = [], [], []
        for windows in ring.windows:
            space = space_angles(config, windows, picture)
            time = space.new_zeros(len(space), config.rope_freqs)
            angles = torch.cat((time, space), dim=1)
            self.cos.append(angles.cos().float().to(device))
            self.sin.append(angles.sin().float().to(device))
            place = torch.argsort(torch.cat((windows.order(latents), extra)))
            self.query_rows.append(place.int().to(device))

    def set(self, latents: Tensor, clock: int, suffix_clock: int) -> None:
        """Put the latents and the time of the next pass into the fixed tensors."""
        self.input.copy_(denormalise(latents))
        angles = time_angles(self._config, clock, self.latents, suffix_clock)
        for tables, values in ((self.cos, angles.cos()), (self.sin, angles.sin())):
            time = values.float().to(self._latent_of.device).index_select(0, self._latent_of)
            for table in tables:
                table[:, : self._config.rope_freqs].copy_(time)


@dataclass(frozen=True)
class Reach:
    """Where one kind of call writes and what its suffix sees, for plain and shifted layers."""

    key_rows: tuple[Tensor, ...]  # int32: one ring row per token, then a copy per window for each suffix token
    spans: tuple[Tensor, ...]  # [n, 2] int32
    restore: tuple[Tensor, ...] | None  # ring rows that must look untouched afterwards


class SplitHead:
    """A float32 matrix product on bf16 tensor cores: both sides as a coarse and a fine half, three of four products.

    What is left out is below 2^-16 of the result.
    """

    def __init__(self, weight: Tensor) -> None:
        high, low = halves(weight)
        self._weight = torch.cat((high, high, low), dim=1).t()

    def __call__(self, x: Tensor) -> Tensor:
        high, low = halves(x)
        return torch.mm(torch.cat((high, low, high), dim=1), self._weight, out_dtype=torch.float32)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 tensor as the sum of two bf16 ones, up to 2^-17 of it."""
    high = x.bfloat16()
    return high, (x - high.float()).bfloat16()


class FastPass:
    """The passes of one stream over one grid. Weights are those of `network` at the time of each call."""

    def __init__(self, network: CausalViT, ring: Ring, form: Form) -> None:
        self._network, self._ring, self._form = network, ring, form
        self._kernels = kernels_of(form)
        self._device = network.register_tokens.device
        self._tables: dict[int, Tables] = {}
        self._reach: dict[tuple[tuple[int, ...], int, int | None], Reach] = {}
        self._head: SplitHead | None = SplitHead(network.proj_out.weight) if form.split_head else None
        self._graphs = Graphs() if form.graph else None

    @property
    def graphs(self) -> int:
        """CUDA graphs captured so far."""
        return len(self._graphs) if self._graphs else 0

    def __call__(self, latents: Tensor, call: Call, shown: slice) -> Tensor:
        """Normalised latents [C, 24, h, w] -> ImageNet-normalised pictures [C', 4, 3, H, W] of the latents `shown`.

        The result may be overwritten by the next call.
        """
        count = len(latents)
        if count not in self._tables:
            self._tables[count] = Tables(self._network, self._ring, count, self._device)
        tables, reach = self._tables[count], self._reach_of(call)
        tables.set(latents, call.clock, call.suffix_clock)

        def run() -> Tensor:
            return self._run(tables, reach, call, shown)

        if self._graphs is None or call.used < SLOTS:
            return run()
        weights = tuple(parameter.data_ptr() for parameter in self._network.parameters())
        return self._graphs.run((call.slots, call.restore, shown.start, shown.stop, weights), run)

    def _run(self, tables: Tables, reach: Reach, call: Call, shown: slice) -> Tensor:
        network, do, tokens = self._network, self._kernels, tables.tokens
        blocks: list[Block] = list(network.blocks)  # type: ignore[arg-type]
        heads, dtype = network.config.heads, network.compute_dtype
        segments = self._ring.segments(len(call.slots), call.used)
        x = network.embed_raw(tables.input)
        y = do.residual_norm(x, blocks[0].norm1.weight, EPS, dtype)
        for layer, block in enumerate(blocks):
            kind, pool = layer % 2, self._ring.pools[layer]
            kept = None if reach.restore is None else pool.index_select(1, reach.restore[kind])
            q = do.qk_rope_write(
                block.attn.to_qkv(y),
                tables.cos[kind],
                tables.sin[kind],
                tables.query_rows[kind],
                reach.key_rows[kind],
                len(self._ring.windows[kind].members),
                pool,
                EPS,
            )
            out = torch.empty_like(q)
            self._form.attention.run(q[:tokens], pool[0], pool[1], segments[kind], out[:tokens])
            do.few_queries(q[tokens:], pool[0], pool[1], reach.spans[kind], out[tokens:])
            if kept is not None and reach.restore is not None:
                pool.index_copy_(1, reach.restore[kind], kept)
            branch = block.attn.to_out(out.view(-1, heads * q.shape[-1]))
            y = do.residual_norm(x, block.norm2.weight, EPS, dtype, branch, block.scale1, tables.query_rows[kind])
            branch = block.ff.w2(do.swiglu(block.ff.w1(y)))
            if layer + 1 < len(blocks):
                y = do.residual_norm(x, blocks[layer + 1].norm1.weight, EPS, dtype, branch, block.scale2)
        return self._pictures(x, branch, blocks[-1].scale2, tables, shown)

    def _pictures(self, x: Tensor, branch: Tensor, scale: Tensor, tables: Tables, shown: slice) -> Tensor:
        """The last residual add and the output layer, for the shown latents only."""
        network, (height, width) = self._network, self._ring.windows[0].grid
        x, branch = (
            rows[: tables.tokens].unflatten(0, (tables.latents, -1))[shown].flatten(0, 1) for rows in (x, branch)
        )
        x = network.norm_out(torch.addcmul(x, branch.float(), scale))
        pixels = network.proj_out(x) if self._head is None else self._head(x).add_(network.proj_out.bias)
        return network.arrange(pixels.unflatten(0, (-1, height, width)))

    def _reach_of(self, call: Call) -> Reach:
        key = (call.slots, call.used, call.restore)
        if key not in self._reach:
            ring, suffix = self._ring, self._network.config.suffix
            tables = self._tables[len(call.slots)]
            rows, spans = [], []
            for kind, windows in enumerate(ring.windows):
                tokens = ring.rows(call.slots)[kind].index_select(0, tables.query_rows[kind][: tables.tokens].long())
                copies = ring.suffix_rows[kind].view(len(windows.members), suffix).t().flatten()
                rows.append(torch.cat((tokens, copies)).int())
                pieces = few_queries.cut(windows.spans(call.used))
                spans.append(torch.tensor(pieces, dtype=torch.int32, device=self._device))
            back = None if call.restore is None else tuple(ring.rows((call.restore,)))
            self._reach[key] = Reach(tuple(rows), tuple(spans), back)
        return self._reach[key]


class Graphs:
    """CUDA graphs by kind of call: the first time runs as it is and warms everything up, the second is recorded."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._recorded: dict[Any, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool: Any = None
        self._refused = False

    def __len__(self) -> int:
        return len(self._recorded)

    def run(self, key: Any, work: Callable[[], Tensor]) -> Tensor:
        """The result of `work`, which must read and write the same memory whenever `key` is the same."""
        if self._refused or key not in self._seen:
            self._seen.add(key)
            return work()
        if key not in self._recorded:
            try:
                self._record(key, work)
            except RuntimeError as error:
                self._refused = True
                log.warning("the ViT decoder goes on without a CUDA graph: %s", " ".join(str(error).split())[:200])
                return work()
        graph, result = self._recorded[key]
        graph.replay()
        return result

    def _record(self, key: Any, work: Callable[[], Tensor]) -> None:
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work().contiguous()
        self._recorded[key] = (graph, result)
