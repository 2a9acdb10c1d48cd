"""The command `plan`: what every chunk of a schedule takes, keeps and gives."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from .rows import RELEASE_GEOMETRY
from .schedule import Schedule
from .table import format_table, plan_table


def arguments(parser: ArgumentParser) -> None:
    for option, start, text in (
        ("--sink", 2, "units from the start that every chunk sees"),
        ("--window", 2, "units just before the chunk that it sees"),
        ("--chunk", 2, "units made per chunk"),
        ("--bootstrap", 7, "units of the first chunk (default: 7)"),
        ("--chunks", 12, "chunks to list (default: 12)"),
        ("--text-rows", 64, "rows of the prompt (default: 64)"),
    ):
        parser.add_argument(option, type=int, default=start, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: Namespace) -> int:
    policy = Schedule(sink=args.sink, window=args.window, chunk=args.chunk, bootstrap=args.bootstrap)
    table = plan_table(policy, RELEASE_GEOMETRY, args.text_rows, args.chunks)
    print(json.dumps(table, indent=2) if args.json else format_table(table))
    return 0
