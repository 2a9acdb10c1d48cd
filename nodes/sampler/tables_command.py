"""The command `tables`: the modulation tables of a checkpoint for a number of steps, alone or as a smaller checkpoint."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from ..loader import bind, read_adapter, write_table_checkpoint
from ..loader.adapters import adapted_source
from ..loader.command_options import adapter_arguments, adapter_of, order_arguments
from ..loader.load import modulation_of, require_writable
from ..loader.table_checkpoint import FOR_COMFYUI, OWN
from ..model import save_tables
from .command import count
from .grids import AUDIO_SHIFT, VIDEO_SHIFT, TimeGrid


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--steps", type=count, default=2, help="denoising steps per chunk (default: 2)")
    parser.add_argument("--video-shift", type=float, default=VIDEO_SHIFT, metavar="A", help="of the picture's levels")
    parser.add_argument("--audio-shift", type=float, default=AUDIO_SHIFT, metavar="A", help="of the sound's levels")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables alone, as safetensors")
    parser.add_argument(
        "--checkpoint-out", type=Path, metavar="FILE", help="write the whole model with tables in place of projections"
    )
    parser.add_argument(
        "--for-comfyui", action="store_true", help="with --checkpoint-out: as a curve that stock ComfyUI reads"
    )
    adapter_arguments(parser)
    order_arguments(parser)


def run(args: Namespace) -> int:
    if not (args.out or args.checkpoint_out):
        raise ValueError("nothing to write; give --out FILE, --checkpoint-out FILE, or both")
    if args.for_comfyui and not args.checkpoint_out:
        raise ValueError("--for-comfyui arrived without --checkpoint-out FILE; give the file to write")
    for path in filter(None, (args.out, args.checkpoint_out)):
        require_writable(path)
    source = modulation_of(args.checkpoint, qkv_order=args.qkv_order, gate_order=args.gate_order)
    adapters = []
    for text in args.lora:
        path, strength = adapter_of(text)
        adapters.append(bind(read_adapter(path, source.tensors.config), source, strength))
        print(adapters[-1].summary)
    source = adapted_source(source, adapters)
    source.progress = _progress("AdaLN tables, layer")
    times = TimeGrid.trailing(args.steps, args.video_shift, args.audio_shift).h3_times()
    if args.out:
        save_tables(source.tables(times), args.out)
        print(args.out)
    if args.checkpoint_out:
        kind = FOR_COMFYUI if args.for_comfyui else OWN
        written = write_table_checkpoint(
            source, times, args.checkpoint_out, adapters=adapters, kind=kind, progress=_progress("tensor")
        )
        print(f"{written.path} ({written.nbytes / 1e9:.2f} GB{', was there already' if written.there else ''})")
    return 0


def _progress(what: str) -> Callable[[int, int], None]:
    """A counter on the terminal; silent where the output is no terminal."""

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{what} {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show
