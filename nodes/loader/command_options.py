"""The transformer's side of commands: how its file is read, which tables and adapters go with it."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from .adapters import with_adapter
from .detect import GATE_ORDERS, QKV_ORDERS
from .load import H3Model, load_h3
from .table_cache import WORTH_BYTES, TableCache


def model_arguments(parser: ArgumentParser) -> None:
    """Options of a command that loads a transformer to run it."""
    order_arguments(parser)
    adapter_arguments(parser)
    parser.add_argument(
        "--tables",
        type=Path,
        metavar="FILE",
        help="finished AdaLN tables to use (default: made from the model, or the one file of tables beside a model without)",
    )
    parser.add_argument(
        "--tables-cache",
        default=str(default_cache_folder()),
        metavar="DIR",
        help="where tables made from large models are kept; 'none' for nowhere (default: %(default)s)",
    )


def order_arguments(parser: ArgumentParser) -> None:
    """Options for what names and shapes of a checkpoint cannot tell."""
    text = "order of {} rows; 'auto' goes by the layout and says what it assumed, the other if a render is noise"
    parser.add_argument("--qkv-order", choices=QKV_ORDERS, default="auto", help=text.format("qkv"))
    parser.add_argument("--gate-order", choices=GATE_ORDERS, default="auto", help=text.format("first MLP"))


def adapter_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--lora", action="append", default=[], metavar="FILE[:STRENGTH]", help="apply an adapter; may be repeated"
    )


def adapter_of(text: str) -> tuple[Path, float]:
    """FILE or FILE:STRENGTH; a colon without a number behind it belongs to the path."""
    path, colon, strength = text.rpartition(":")
    try:
        return (Path(path), float(strength)) if colon else (Path(text), 1.0)
    except ValueError:
        return Path(text), 1.0


def default_cache_folder() -> Path:
    """Below XDG_CACHE_HOME, or the person's .cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "streamrender_h3" / "tables"


def load_chosen(args: Namespace, **options: Any) -> H3Model:
    """The model of `args.model` with its options; `options` are those of `load_h3`. Prints a line per adapter."""
    cache = None if args.tables_cache == "none" else TableCache(args.tables_cache, worth_bytes=WORTH_BYTES)
    model = load_h3(
        args.model,
        qkv_order=args.qkv_order,
        gate_order=args.gate_order,
        tables=args.tables,
        cache=cache,
        **options,
    )
    for text in args.lora:
        path, strength = adapter_of(text)
        model = with_adapter(model, path, strength)
        print(model.adapters[-1].summary)
    return model
