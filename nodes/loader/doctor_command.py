"""The command `doctor`: what this machine has and whether it works here."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

import torch

from .doctor import diagnose


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="model files or folders to recognise")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="to try things on (default: cuda when there is one)")
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: Namespace) -> int:
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    missing = [str(path) for path in args.files if not path.exists()]
    if missing:
        raise ValueError(f"{missing[0]} is not there; name model files or folders that exist")
    diagnosis = diagnose(device, args.files)
    print(json.dumps(diagnosis.as_dict(), indent=2) if args.json else diagnosis.as_text())
    return 0
