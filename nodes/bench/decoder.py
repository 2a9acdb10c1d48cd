"""The part `decoder`: milliseconds per pair of latents of the causal ViT decoder, from plain PyTorch on.

Each optimisation is added in turn. The limit is what the matrix products and attentions of a pair take alone, measured
in the same run with the same shapes; it includes the output layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.dispatch import choose
from ..codec import CausalViT, DecodeMode, ViTConfig, ViTDecoder
from ..codec.ring import ring_bytes
from ..codec.space import LATENT_CHANNELS, pixels_to_rgb
from ..codec.vit_form import ALL_KERNELS, Form, can_split
from .decoder_parts import attention_flops, linear_flops, parts
from .measure import GIB, matmul_peak, peak_gib, start_peak, time_ms
from .plain_decoder import PlainDecoder
from .rows import BenchError, Options, Report, Row, Size

SIZES = {"full": ((768, 1344), (480, 832)), "example": ((256, 448),)}
CONFIGS = {"full": ViTConfig(), "example": ViTConfig(layers=6, hidden=256, heads=4, ffn=512, window=8)}
BRANCH_SCALE = 0.3  # random branches then weigh about as much as the embedded latents
QUALITY_PAIRS = 6  # the last three of them are compared, with a full ring
HELD = 2  # of ten latents, in the pack's usual chunks of 3, 2, 3, 2


class Step(NamedTuple):
    """One form of the decoder in the order of its optimisations: `pair` [2, 24, h, w] -> RGB of the pair's last latent."""

    name: str
    make: Callable[[], Callable[[Tensor], Tensor]]


def measure(options: Options) -> list[Report]:
    """One report per size."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    wide = random_network(CONFIGS[options.preset], device)
    narrow = copy.deepcopy(wide)
    if device.type == "cuda":
        for name, parameter in narrow.named_parameters():
            if CausalViT.narrow(name):
                parameter.data = parameter.data.bfloat16()
    return [report(size, wide, narrow, options) for size in options.sizes or SIZES[options.preset]]


def random_network(config: ViTConfig, device: torch.device) -> CausalViT:
    """A network with weights that keep its activations near 1, made on the device."""
    with torch.device(device):
        network = CausalViT(config).requires_grad_(False)
    for name, tensor in network.named_parameters():
        if tensor.ndim > 1 and name != "register_tokens":
            tensor.normal_(std=tensor[0].numel() ** -0.5)
        elif name.endswith(("scale1", "scale2")):
            tensor.fill_(BRANCH_SCALE)
        elif name.endswith("bias") or name == "register_tokens":
            tensor.normal_(std=0.02)
    return network.eval()


def steps(wide: CausalViT, narrow: CausalViT, grid: tuple[int, int]) -> Iterator[Step]:
    """The forms that this device can run, the fastest last."""
    device, dtype, head_dim = narrow.register_tokens.device, narrow.compute_dtype, narrow.config.head_dim
    cuda = device.type == "cuda"
    autocast = torch.bfloat16 if cuda else None

    def plain(network: CausalViT) -> Callable[[], Callable[[Tensor], Tensor]]:
        def make() -> Callable[[Tensor], Tensor]:
            stream = PlainDecoder(network, grid, autocast)
            return lambda pair: pixels_to_rgb(stream.pair(pair)[1])

        return make

    def stream(form: Form) -> Callable[[], Callable[[Tensor], Tensor]]:
        def make() -> Callable[[Tensor], Tensor]:
            decoder = ViTDecoder(narrow, form=form).stream()
            return lambda pair: decoder.push(pair.transpose(0, 1))[-4:]

        return make

    groups = choose(device, dtype, head_dim, "sdpa")
    yield Step("plain PyTorch", plain(wide))
    if cuda:
        yield Step("+ bf16 weights stored once", plain(narrow))
    yield Step("+ key ring, windows without mask", stream(Form(groups)))
    if not cuda:
        return
    done: set[str] = set()
    for text, kernel in (
        ("+ picture order, fused rotation and ring write", "qk_rope_write"),
        ("+ fused residual and norm", "residual_norm"),
        ("+ fused SwiGLU", "swiglu"),
        ("+ suffix attention in pieces", "few_queries"),
    ):
        done.add(kernel)
        yield Step(text, stream(Form(groups, fast=True, kernels=frozenset(done))))
    split = can_split(device)
    if split:
        yield Step("+ output layer on tensor cores", stream(Form(groups, True, ALL_KERNELS, True)))
    best = choose(device, dtype, head_dim)
    yield Step(f"+ attention of windows: {best.name}", stream(Form(best, True, ALL_KERNELS, split)))
    yield Step("+ CUDA graph (final)", stream(Form(best, True, ALL_KERNELS, split, True)))


def report(size: Size, wide: CausalViT, narrow: CausalViT, options: Options) -> Report:
    """All forms at one size, the matrix products alone, the early modes and the quality."""
    config, device = narrow.config, narrow.register_tokens.device
    if size[0] % config.patch or size[1] % config.patch or min(size) < config.patch:
        raise BenchError(f"size is {size[1]}x{size[0]}; both sides must be multiples of {config.patch} pixels")
    grid = (size[0] // config.patch, size[1] // config.patch)
    made = Report(f"ViT decoder, {options.preset} preset, {size[1]}x{size[0]}, per pair of latents")
    peak = matmul_peak(device, narrow.compute_dtype)
    made.facts["matmul TFLOP/s of one large product"] = peak
    pieces = parts(narrow, grid, peak)
    made.rows += pieces.rows
    limit = pieces.pair_ms
    made.facts["matmul ms"] = limit
    flops = linear_flops(config, grid) + attention_flops(config, grid)
    generator = torch.Generator(device).manual_seed(1)
    latents = torch.randn(8, 2, LATENT_CHANNELS, *grid, device=device, generator=generator)
    repeats = 9 if device.type == "cuda" else 2
    pictures: dict[str, Tensor] = {}
    for step in steps(wide, narrow, grid):
        start_peak(device)
        ms, pictures[step.name] = timed(step, latents, repeats)
        made.rows.append(Row(step.name, ms, flops / ms / 1e9, limit, peak_gib(device)))
    first, *_, last = pictures
    made.facts |= {
        "plain ms": row(made, first).ms,
        "final ms": row(made, last).ms,
        "final / matmul": row(made, last).ms / limit,
        "plain / final": row(made, first).ms / row(made, last).ms,
        "PSNR of the final form against plain, dB": psnr(pictures[last], pictures[first]),
    }
    if device.type == "cuda":
        exact = PlainDecoder(wide, grid, None)
        frames = torch.stack([pixels_to_rgb(exact.pair(pair)[1]) for pair in latents[:QUALITY_PAIRS]])[-3:]
        made.facts["PSNR of plain against float32, dB"] = psnr(pictures[first], frames)
        made.facts["PSNR of the final form against float32, dB"] = psnr(pictures[last], frames)
        made.facts["attention"] = str(choose(device, narrow.compute_dtype, config.head_dim))
    early_modes(made, narrow, latents, repeats)
    made.facts["ring GiB"] = ring_bytes(config, grid, narrow.compute_dtype.itemsize) / GIB
    return made


def timed(step: Step, latents: Tensor, repeats: int) -> tuple[float, Tensor]:
    """Milliseconds per pair, and pictures of the last three pairs of `QUALITY_PAIRS`, four frames each.

    Those pairs end in latents that do not start a block, so that every form shows all four frames.
    """
    decode = step.make()
    pictures = torch.stack([decode(pair) for pair in latents[:QUALITY_PAIRS]])[-3:]
    pairs = cycle(latents)
    return time_ms(latents.device, lambda: decode(next(pairs)), repeats=repeats), pictures


def early_modes(made: Report, network: CausalViT, latents: Tensor, repeats: int) -> None:
    """What showing a held latent at once costs: a lone latent in the middle of a stream, on top of its regular pair."""
    device = network.register_tokens.device
    modes: tuple[DecodeMode, ...] = ("pair", "early_single", "early_pair")
    times = {}
    for mode in modes:
        stream = ViTDecoder(network, mode=mode).stream()
        for pair in latents:
            stream.push(pair.transpose(0, 1))
        lone = cycle([latent[:, None] for pair in latents for latent in pair])
        push = stream.push

        def apart(push: Callable[[Tensor], Tensor] = push, lone: Iterator[Tensor] = lone) -> None:
            push(next(lone))
            push(next(lone))

        times[mode] = time_ms(device, apart, repeats=repeats, warm=7)
    for mode in modes[1:]:
        extra = times[mode] - times["pair"]
        made.rows.append(Row(f"{mode}: extra per held latent", extra))
        made.facts[f"{mode}: share of the decoder's time with {HELD} of 10 latents held"] = (
            HELD * extra / (5 * times["pair"])
        )


def row(made: Report, name: str) -> Row:
    return next(row for row in made.rows if row.name == name)


def psnr(made: Tensor, expected: Tensor) -> float:
    """Decibels, of pictures in [0, 1]."""
    error = float((made.double() - expected.double()).square().mean())
    return float("inf") if error == 0 else -10 * float(torch.tensor(error, dtype=torch.float64).log10())
