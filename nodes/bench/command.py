"""The command `bench`: measure one part of the pack on this machine, with random weights."""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import NamedTuple

import torch

from .measure import device_name
from .rows import BenchError, Options, Size, as_json

PRESETS = ("full", "example")


class Part(NamedTuple):
    """A part of the pack: its module has `measure(options) -> list[Report]`."""

    module: str
    text: str


PARTS = {
    "decoder": Part(".decoder", "ms per pair of the ViT decoder, from plain PyTorch to its fastest form"),
}


def arguments(parser: ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "part", choices=list(PARTS), help="; ".join(f"{name}: {part.text}" for name, part in PARTS.items())
    )
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        default="full",
        help="sizes of the network: released or example (default: %(default)s)",
    )
    parser.add_argument(
        "--size", action="append", default=[], metavar="WxH", help="of the video, in pixels; can be given several times"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda when there is one")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="print JSON instead of a table, or write it to FILE"
    )


def run(args: Namespace) -> int:
    """Measure, print."""
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise BenchError("device is cuda and torch sees no CUDA device here; use --device cpu or install a CUDA torch")
    options = Options(args.preset, tuple(size_of(text) for text in args.size), device)
    module = importlib.import_module(PARTS[args.part].module, __package__)
    reports = module.measure(options)
    document = as_json(options, args.part, device_name(torch.device(device)), reports)
    if args.json == "-":
        print(document)
        return 0
    for report in reports:
        print(report.as_text())
    if args.json:
        Path(args.json).write_text(document + "\n", encoding="utf-8")
    return 0


def size_of(text: str) -> Size:
    """`1344x768` as (768, 1344)."""
    try:
        width, height = (int(side) for side in text.lower().split("x"))
    except ValueError:
        raise BenchError(f"size is {text!r}; write width x height in pixels, for example 1344x768") from None
    return height, width
