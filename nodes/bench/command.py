"""The command `bench`: measure one part of the pack on this machine, with random weights."""

from __future__ import annotations

import importlib
import logging
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from .measure import machine
from .model import release_weights
from .rows import BenchError, Options, Report, Size, as_json

PRESETS = ("full", "example")

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """A part of the pack: its module has `measure(options) -> list[Report]`."""

    module: str
    text: str
    shares_weights: bool = True  # those of `model.weights`, which stay on the device between such parts


PARTS = {
    "chunk": Part(".chunk", "ms per continuation chunk of the transformer, from plain modules to its fastest form"),
    "bootstrap": Part(".bootstrap", "the first chunk of a stream, and the prefill of its prefix banks"),
    "attention": Part(".attention", "every attention that runs here, at the transformer's shapes"),
    "kernels": Part(".kernel_rows", "the transformer's kernels between the matrix products"),
    "peer": Part(".peer", "the same window through diffusers"),
    "clip": Part(
        ".clip", "ms per denoising step of a whole clip from text, dense and over 20 and 10 % of its video", False
    ),
    "sparse": Part(
        ".sparse", "one layer's sparse attention of a whole clip beside dense attention and FastVideo's kernel", False
    ),
    "decoder": Part(".decoder", "ms per pair of the ViT decoder, from plain PyTorch to its fastest form", False),
    "roofline": Part(".roofline", "what other cards may reach, by arithmetic, from an earlier run of chunk", False),
}


def arguments(parser: ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "parts",
        nargs="+",
        metavar="PART",
        choices=list(PARTS),
        help="one or more of: " + "; ".join(f"{name}: {part.text}" for name, part in PARTS.items()),
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
    parser.add_argument(
        "--text-rows", type=int, metavar="N", help="rows of the prompt, its picture included (default: 1883 in full)"
    )
    parser.add_argument(
        "--forms",
        default="",
        metavar="TEXT",
        help="chunk and clip: only forms with this in their names, several with | between them (in chunk plain modules too)",
    )
    parser.add_argument(
        "--frames", action="append", type=int, default=[], metavar="N", help="clip: length; can be given several times"
    )
    parser.add_argument("--from", dest="source", metavar="FILE", help="JSON of a run of chunk, for roofline")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda when there is one")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="print JSON instead of a table, or write it to FILE"
    )


def run(args: Namespace) -> int:
    """Measure, print."""
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise BenchError("device is cuda and torch sees no CUDA device here; use --device cpu or install a CUDA torch")
    where = machine(torch.device(device))
    sizes = tuple(size_of(text) for text in args.size)
    options = Options(args.preset, sizes, device, args.text_rows, args.forms, tuple(args.frames), args.source)
    reports: list[Report] = []
    with progress():
        for name in dict.fromkeys(args.parts):
            reports += (found := measured(name, options))
            document = as_json(options, " ".join(dict.fromkeys(report.part for report in reports)), where, reports)
            if args.json != "-":
                print(*(report.as_text() for report in found), sep="\n", flush=True)
            if args.json and args.json != "-":  # after every part, so that a run cut short leaves what it has
                Path(args.json).write_text(document + "\n", encoding="utf-8")
    if args.json == "-":
        print(document)
    return 0


@contextmanager
def progress() -> Iterator[None]:
    """What is chosen and measured goes to stderr while it happens."""
    logger, handler = logging.getLogger("streamrender_h3"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def measured(name: str, options: Options) -> list[Report]:
    """The reports of one part."""
    part = PARTS[name]
    if not part.shares_weights:
        release_weights()
    begin = time.perf_counter()
    reports = importlib.import_module(part.module, __package__).measure(options)
    log.info("bench %s: %.1f s", name, time.perf_counter() - begin)
    for report in reports:
        report.part = name
    return reports


def size_of(text: str) -> Size:
    """`1344x768` as (768, 1344)."""
    try:
        width, height = (int(side) for side in text.lower().split("x"))
    except ValueError:
        raise BenchError(f"size is {text!r}; write width x height in pixels, for example 1344x768") from None
    return height, width
