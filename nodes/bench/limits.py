"""What a forward of H3 cannot be faster than: its matrix products and its attention, each alone at its real shape.

Small layers (patch projections, heads) are not counted: they are below a thousandth of the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import dense_attention, fp8_rows, quant_matmul
from ...kernels.choice import AttentionError
from ...kernels.fp8_rows import Fp8Rows
from ..loader.quant_linear import QuantLinear
from ..model import H3, H3Config
from .measure import median_ms
from .model import STEPS, Subject, fp8_weights
from .rows import Row

log = logging.getLogger(__name__)

LAYERS = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
FP8 = "fp8"
QUANTISED = ("int8",)  # attentions that are not exact
BLOCKS_IN_TURN = 4  # weights of so many blocks take turns, as they do in a forward
REPEATS = 8


class Shape(NamedTuple):
    """Rows that run, and rows that they attend to."""

    rows: int
    keys: int


def linear_flops(config: H3Config, rows: int) -> int:
    """Of the four products of all blocks, one forward."""
    return 2 * rows * config.layers * config.hidden * (4 * config.inner + 3 * config.ffn)


def attention_flops(config: H3Config, shape: Shape) -> int:
    """Of the attention of all blocks, one forward."""
    return 4 * shape.rows * shape.keys * config.inner * config.layers


def chunk_flops(config: H3Config, shape: Shape) -> int:
    return STEPS * (linear_flops(config, shape.rows) + attention_flops(config, shape))


@dataclass
class Limits:
    """Milliseconds per block, measured: of the four products by kind of weights, of the attention by backend."""

    config: H3Config
    shape: Shape
    linears: dict[str, float] = field(default_factory=dict)
    attention: dict[str, float] = field(default_factory=dict)
    exact: list[str] = field(default_factory=list)  # backends that do not quantise
    rows: list[Row] = field(default_factory=list)

    def best(self, attention: str | None = None) -> float:
        """Of the backend named, or of the fastest that does not quantise."""
        return self.attention[attention] if attention in self.attention else min(self.attention[n] for n in self.exact)

    def chunk_ms(self, linears: str, attention: str | None = None) -> float:
        """All blocks and steps."""
        return STEPS * self.config.layers * (self.linears[linears] + self.best(attention))


def plain_kind(model: H3) -> str:
    """How tables name unquantised weights."""
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(model.dtype, "fp32")


class Backend(NamedTuple):
    """An attention that runs here; `exact` ones do not quantise."""

    name: str
    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    run_lse: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None
    exact: bool


def backends(device: torch.device, dtype: torch.dtype, head_dim: int) -> list[Backend]:
    """Every attention of the pack that passes its self-test on the device, the chosen one first."""
    chosen = dense_attention.choose_dense(device, dtype, head_dim)
    found = {chosen.name: chosen}
    for name in dense_attention.BACKENDS:
        with suppress(AttentionError):
            found.setdefault(name, dense_attention.choose_dense(device, dtype, head_dim, name))
    return [Backend(name, one.run, one.run_lse, name not in QUANTISED) for name, one in found.items()]


def plain_attention(subject: Subject) -> str:
    """The attention that the pack chooses."""
    return dense_attention.choose_dense(subject.device, subject.model.dtype, subject.config.head_dim).name


def weight_of(layer: torch.nn.Module) -> Tensor:
    """The weight [out, in] of a linear layer, in codes or not."""
    assert isinstance(layer.weight, Tensor)
    return layer.weight


def operand(layer: torch.nn.Module, x: Tensor) -> Tensor | Fp8Rows:
    """Rows as the layer's product takes them: in fp8 for an fp8 layer."""
    return fp8_rows.reference(x) if isinstance(layer, QuantLinear) else x


def product(layer: torch.nn.Module, rows: Tensor | Fp8Rows) -> Callable[[], Tensor]:
    """The matrix product of a layer alone."""
    if not isinstance(rows, Fp8Rows):
        return lambda: F.linear(rows, weight_of(layer))
    assert isinstance(layer, QuantLinear)
    return lambda: quant_matmul.fp8_product(rows, layer.weight, layer.scale, torch.bfloat16)


@torch.inference_mode()
def measure_limits(subject: Subject, shape: Shape, peak: float) -> Limits:
    """Products and attention at `shape`; `peak` TFLOP/s is what one large product reaches, the limit of these rows."""
    config, model, device = subject.config, subject.model, subject.device
    found = Limits(config, shape)
    models = {plain_kind(model): model}
    if quant_matmul.chosen(FP8, device).works:
        models[FP8] = fp8_weights(model)
    for kind, one in models.items():
        found.linears[kind] = 0.0
        for name in LAYERS:
            layers = [block.get_submodule(name) for block in one.blocks[:BLOCKS_IN_TURN]]
            outs, ins = weight_of(layers[0]).shape
            x = torch.randn(shape.rows, ins, device=device, dtype=model.dtype)
            rows = operand(layers[0], x)
            work = [product(layer, rows) for layer in layers]
            ms = median_ms(device, lambda: [run() for run in work], repeats=repeats(device, 2)) / len(work)  # noqa: B023
            found.linears[kind] += ms
            add(found.rows, f"{name}, {kind}, per block", 2 * shape.rows * outs * ins, ms, peak)
    for backend in backends(device, model.dtype, config.head_dim):
        try:
            ms = attention_ms(subject, shape, backend)
        except Exception as error:  # it passed its self-test and cannot do the real shape
            if backend.name == plain_attention(subject):
                raise
            log.warning("attention %s at %d x %d failed: %s", backend.name, *shape, error)
            continue
        found.attention[backend.name] = ms
        found.exact += [backend.name] if backend.exact else []
        name = f"attention {shape.rows} x {shape.keys}, {backend.name}, per block"
        add(found.rows, name, attention_flops(config, shape) // config.layers, ms, peak)
    return found


def attention_ms(subject: Subject, shape: Shape, backend: Backend, *, lse: bool = False) -> float:
    """Milliseconds of one block's attention, with its log-sum-exp if asked for."""
    config, device = subject.config, subject.device
    run = backend.run_lse if lse else backend.run
    assert run is not None
    q, k, v = (
        torch.randn(rows, config.heads, config.head_dim, device=device, dtype=subject.model.dtype)
        for rows in (shape.rows, shape.keys, shape.keys)
    )
    return median_ms(device, lambda: run(q, k, v), repeats=repeats(device, REPEATS))


def repeats(device: torch.device, count: int) -> int:
    """How often a thing is timed; a CPU is slow and steady."""
    return count if device.type == "cuda" else 1


def add(rows: list[Row], name: str, flops: int, ms: float, peak: float) -> None:
    """One measured row next to the time of its arithmetic at `peak` TFLOP/s."""
    rows.append(Row(name, ms, flops / ms / 1e9, flops / peak / 1e9))


@torch.inference_mode()
def in_turn_ms(subject: Subject, shape: Shape, backend: Backend, kind: str) -> float:
    """Milliseconds of the products and attentions of one forward, block after block and nothing between them."""
    config, device = subject.config, subject.device
    model = fp8_weights(subject.model) if kind == FP8 else subject.model
    q, k, v = (
        torch.randn(rows, config.heads, config.head_dim, device=device, dtype=subject.model.dtype)
        for rows in (shape.rows, shape.keys, shape.keys)
    )
    work: list[Callable[[], object]] = []
    inputs: dict[int, Tensor | Fp8Rows] = {}
    for block in model.blocks:
        for name in LAYERS:
            layer = block.get_submodule(name)
            ins = weight_of(layer).shape[1]
            if ins not in inputs:
                x = torch.randn(shape.rows, ins, device=device, dtype=subject.model.dtype)
                inputs[ins] = operand(layer, x)
            work.append(product(layer, inputs[ins]))
            if name == LAYERS[0]:
                work.append(lambda: backend.run(q, k, v))
    return median_ms(device, lambda: [run() for run in work], repeats=1, rounds=3)
