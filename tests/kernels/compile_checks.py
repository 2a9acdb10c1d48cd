"""Compile every kernel for the cards of the specification, without a GPU, at the sizes of the released models.

A script: a process that interprets kernels cannot compile them. Prints one JSON line per kernel and architecture.
"""

from __future__ import annotations

import json
import sys

import compile_cases_decoder
import compile_cases_sparse
import compile_cases_transformer
from compile_case import compiled

ARCHITECTURES = (80, 89, 90, 100, 120)


def main() -> int:
    for architecture in ARCHITECTURES:
        rooms = (compile_cases_decoder, compile_cases_transformer, compile_cases_sparse)
        cases = {name: case for room in rooms for name, case in room.cases(architecture).items()}
        for name, case in cases.items():
            line = {"architecture": architecture, "kernel": name, **compiled(case, architecture)}
            print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
