"""`streamrender-h3`, or `python3 cli.py`: every verb calls a room and does nothing itself.

`demo` and `test` start from a bare Python: only the standard library is imported until their environment exists, and
this file must stay readable for older Pythons so that they get an answer instead of a syntax error.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent
PACK = "streamrender_h3"


class UsageError(Exception):
    """What the person typed, or where, cannot work; the message is one line with the remedy."""


def import_pack(root: Path = ROOT) -> ModuleType:
    """The pack as `streamrender_h3`, installed or not: the tree at `root` is registered under that name."""
    if PACK not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            PACK, root / "__init__.py", submodule_search_locations=[str(root)]
        )
        if spec is None or spec.loader is None:
            raise UsageError(f"{root} is not the folder of the pack; put cli.py back beside its __init__.py")
        sys.modules[PACK] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PACK])
    return sys.modules[PACK]


# --- verbs -----------------------------------------------------------------------------------------------------------


def demo(args: argparse.Namespace) -> int:
    _enter_environment(["demo", *(["--keep"] if args.keep else []), *(["--out", str(args.out)] if args.out else [])])
    import_pack()
    import demo as room  # tests/host/demo.py

    return room.run(ROOT, args.out, args.keep)


def test(args: argparse.Namespace) -> int:
    environment = _enter_environment(["test", *args.pytest])
    import fetch_comfyui

    if not os.environ.get("COMFYUI_PATH"):
        fetch_comfyui.fetch(ROOT)
    environment.ensure_comfy_cli(ROOT)
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        os.environ.setdefault("REQUIRE_COMFYUI", "1")
    os.chdir(ROOT)
    # By its script and not as `-m pytest`, which would put our `nodes` on sys.path in front of ComfyUI's.
    # Without a choice everything runs, in two processes that take whole files, so that each file's servers start once.
    chosen = args.pytest or ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # two processes with a thread for every core would wait for each other
    return environment.hand_over(Path(sys.executable), [str(Path(sys.executable).with_name("pytest")), *chosen])


# --- arguments -------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """argparse, with its complaints as one line like every other error of ours."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


class Verb(NamedTuple):
    """A verb of a room: its module has `arguments(parser)` and `run(args) -> int`."""

    module: str
    text: str
    torch: bool = True


VERBS = {
    "render": Verb(".nodes.sampler.command", "render a clip with the same engine, without ComfyUI"),
    "plan": Verb(".nodes.schedule.command", "print what every chunk of a schedule takes, keeps and gives", torch=False),
    "inspect": Verb(".nodes.loader.inspect_command", "say what a checkpoint file is, from its header"),
    "palette": Verb(
        ".nodes.palette.command", "judge a class-colour clip: classes, exactness, likely faults and their remedy"
    ),
    "bench": Verb(".nodes.bench.command", "measure a part of the pack on this machine, with random weights"),
    "doctor": Verb(".nodes.loader.doctor_command", "say what this machine has, what works on it, and what files are"),
    "queue": Verb(".nodes.batch.command", "queue a folder of clips in several looks and seeds in a running ComfyUI"),
    "tables": Verb(
        ".nodes.sampler.tables_command", "write the modulation tables of a checkpoint for a number of steps"
    ),
}


def parser(typed: str | None = None) -> Parser:
    """All verbs; of a room's verb the options only when it is the one `typed`, because its room must be imported for them."""
    top = Parser(
        prog="cli.py" if not __package__ else "streamrender-h3",
        description="StreamRender-H3: a semantic clip becomes video.",
    )
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, text: str, run: Callable[[argparse.Namespace], int] | None) -> Parser:
        one = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        one.set_defaults(run=run)
        return one

    one = verb("demo", "render the example graph in a real ComfyUI, from a bare machine on", demo)
    one.add_argument("--keep", action="store_true", help="leave the server running and print its address")
    one.add_argument("--out", type=Path, metavar="DIR", help="folder for the video (default: .cache/demo)")

    one = verb("test", "run the tests; further arguments go to pytest", test)
    one.add_argument("pytest", nargs="*", help="arguments for pytest")

    for name, room in VERBS.items():
        module = _room(room) if name == typed else None
        one = verb(name, room.text, module.run if module else None)
        if module:
            module.arguments(one)
    return top


def _room(verb: Verb) -> ModuleType:
    if verb.torch:
        _need_torch()
        _prepare_cpu_companions()
    import_pack()
    return importlib.import_module(PACK + verb.module)


# --- the interpreter -------------------------------------------------------------------------------------------------


def _enter_environment(again: list[str]) -> ModuleType:
    """Make .venv if needed and go on inside it; returns the module tests/host/environment.py."""
    host = ROOT / "tests" / "host"
    if not host.is_dir():
        raise UsageError(
            "demo and test need a checkout of the repository, and this copy has no tests folder; run them in a clone"
        )
    sys.path.insert(0, str(host))
    import environment

    python = environment.ensure_venv(ROOT)
    if not environment.running_in(ROOT / ".venv"):
        environment.hand_over(python, [str(ROOT / "cli.py"), *again])
    return environment


def _need_torch() -> None:
    """Stay in an interpreter that has torch, else go on in .venv, else say how to get one."""
    if importlib.util.find_spec("torch"):
        return
    python = ROOT / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists() or Path(sys.prefix).resolve() == (ROOT / ".venv").resolve():
        raise UsageError(
            "this Python has no torch; use ComfyUI's Python, or run `python3 cli.py demo` once to make .venv"
        )
    command = [str(python), str(ROOT / "cli.py"), *sys.argv[1:]]
    if os.name == "nt":
        sys.exit(subprocess.call(command))
    os.execv(command[0], command)


def _prepare_cpu_companions() -> None:
    """Let transformers import torchvision in the environment of `demo`, whose torch is a CPU build."""
    host = ROOT / "tests" / "host"
    if host.is_dir():
        sys.path.insert(0, str(host))
        importlib.import_module("run_comfyui").install_companions()


def _stop(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0 done, 2 an error told in one line, 130 stopped."""
    if not __package__ and sys.path and Path(sys.path[0] or ".").resolve() == ROOT:
        del sys.path[0]  # our folder `nodes` must not be importable under that name
    typed = sys.argv[1:] if arguments is None else list(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        top = parser(typed[0] if typed else None)
        if typed[:1] == ["test"] and typed[1:2] not in (["-h"], ["--help"]):
            args = top.parse_args(["test"])
            args.pytest = typed[1:]
        else:
            args = top.parse_args(typed)
        return args.run(args)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("SRH3_DEBUG") == "1":
            raise
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
