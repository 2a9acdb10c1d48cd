"""The command `inspect`: what a checkpoint file is, from its header."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from .command_options import order_arguments
from .inspect import inspect_file


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    order_arguments(parser)


def run(args: Namespace) -> int:
    report = inspect_file(args.file, args.qkv_order, args.gate_order)
    print(json.dumps(report.as_dict(), indent=2) if args.json else report.as_text())
    return 0
