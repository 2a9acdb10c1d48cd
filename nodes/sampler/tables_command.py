"""The command `tables`: the modulation tables of a checkpoint for a number of steps."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..loader import write_tables
from .command import count
from .grids import TimeGrid


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--steps", type=count, default=2, help="denoising steps per chunk (default: 2)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="safetensors file to write")


def run(args: Namespace) -> int:
    write_tables(args.checkpoint, TimeGrid.trailing(args.steps).h3_times(), args.out)
    print(args.out)
    return 0
