"""`streamrender-h3`, or `python3 cli.py`: every verb calls a room and does nothing itself.

`demo` and `test` start from a bare Python: only the standard library is imported until their environment exists, and
this file must stay readable for older Pythons so that they get an answer instead of a syntax error.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

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
    return environment.hand_over(Path(sys.executable), [str(Path(sys.executable).with_name("pytest")), *args.pytest])


def render(args: argparse.Namespace) -> int:
    _need_torch()
    import_pack()
    _prepare_cpu_companions()
    command = importlib.import_module(PACK + ".nodes.sampler.command")
    import torch

    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    args.dtype = args.dtype or ("bf16" if args.device == "cuda" else "fp32")
    return command.render_command(args) or 0


def plan(args: argparse.Namespace) -> int:
    import_pack()
    schedule = importlib.import_module(PACK + ".nodes.schedule")
    policy = schedule.Schedule(sink=args.sink, window=args.window, chunk=args.chunk, bootstrap=args.bootstrap)
    table = schedule.plan_table(policy, schedule.RELEASE_GEOMETRY, args.text_rows, args.chunks)
    print(json.dumps(table, indent=2) if args.json else schedule.format_table(table))
    return 0


def inspect(args: argparse.Namespace) -> int:
    _need_torch()
    import_pack()
    report = importlib.import_module(PACK + ".nodes.loader").inspect_file(args.file)
    print(json.dumps(report.as_dict(), indent=2) if args.json else report.as_text())
    return 0


def palette(args: argparse.Namespace) -> int:
    _need_torch()
    import_pack()
    room = importlib.import_module(PACK + ".nodes.palette")
    clip = room.clip_from_video(args.clip, room.load_palette(args.palette), fps=args.fps, repair=args.repair)
    report = room.clip_report(clip)
    if args.labels:
        room.write_labels(clip, args.labels)
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    print(f"{report['verdict']}: {report['frames']} frames at 24 fps, {report['doubtful_share']:.2%} doubtful pixels")
    print("\n".join(f"  {share:7.2%}  {name}" for name, share in report["classes"].items() if share))
    if report["advice"]:
        print(report["advice"])
    return 0


def tables(args: argparse.Namespace) -> int:
    _need_torch()
    import_pack()
    grids = importlib.import_module(PACK + ".nodes.sampler.grids")
    loader = importlib.import_module(PACK + ".nodes.loader")
    loader.write_tables(args.checkpoint, grids.TimeGrid.trailing(args.steps).h3_times(), args.out)
    print(args.out)
    return 0


# --- arguments -------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """argparse, with its complaints as one line like every other error of ours."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def parser() -> Parser:
    """All verbs and their options."""
    top = Parser(
        prog="cli.py" if not __package__ else "streamrender-h3",
        description="StreamRender-H3: a semantic clip becomes video.",
    )
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(run: Callable[[argparse.Namespace], int], text: str) -> Parser:
        one = verbs.add_parser(run.__name__, help=text, description=text, allow_abbrev=False)
        one.set_defaults(run=run)
        return one

    one = verb(demo, "render the example graph in a real ComfyUI, from a bare machine on")
    one.add_argument("--keep", action="store_true", help="leave the server running and print its address")
    one.add_argument("--out", type=Path, metavar="DIR", help="folder for the video (default: .cache/demo)")

    one = verb(test, "run the tests; further arguments go to pytest")
    one.add_argument("pytest", nargs="*", help="arguments for pytest")

    one = verb(render, "render a clip with the same engine, without ComfyUI")
    one.add_argument("clip", type=Path, metavar="CLIP", help="semantic clip: a video file in palette colours")
    for option, text in (
        ("--picture", "reference picture of the first frame"),
        ("--prompt-file", "text file with the prompt"),
        ("--text-encoder", "Hugging Face folder of the Qwen3-VL text encoder"),
        ("--model", "H3 checkpoint: file, any shard of an index, or folder"),
        ("--encoder", "video encoder checkpoint (TAE)"),
        ("--decoder", "video decoder checkpoint (TAE or causal ViT)"),
        ("--out", "video file to write (.mp4)"),
    ):
        one.add_argument(option, type=Path, required=True, help=text)
    one.add_argument("--steps", type=_count, default=2, help="denoising steps per chunk (default: 2)")
    one.add_argument("--seed", type=int, default=20260830, help="seed of the noise (default: %(default)s)")
    one.add_argument(
        "--schedule",
        default="release",
        help="release, teacher, or sink,window,chunk,bootstrap in units of 4 or 5 frames",
    )
    one.add_argument(
        "--attention",
        choices=("prefix", "dense"),
        default="prefix",
        help="dense: for checkpoints without prefix training",
    )
    one.add_argument("--dtype", choices=("fp32", "bf16"), help="of the network (default: bf16 on cuda, fp32 on cpu)")
    one.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda when there is one")
    one.add_argument(
        "--save-latents", type=Path, metavar="FILE", help="also write what went in and came out, fp32 safetensors"
    )
    one.add_argument("--size", metavar="WxH", help="of the video, in pixels (default: what the checkpoint says)")
    one.add_argument("--reference-size", metavar="WxH", help="of the semantic reference the network sees, in pixels")
    one.add_argument("--palette", default="racing", help="built-in palette name or palette file (default: %(default)s)")

    one = verb(plan, "print what every chunk of a schedule takes, keeps and gives")
    for option, start, text in (
        ("--sink", 2, "units from the start that every chunk sees"),
        ("--window", 2, "units just before the chunk that it sees"),
        ("--chunk", 2, "units made per chunk"),
        ("--bootstrap", 7, "units of the first chunk (default: 7)"),
        ("--chunks", 12, "chunks to list (default: 12)"),
        ("--text-rows", 64, "rows of the prompt (default: 64)"),
    ):
        one.add_argument(option, type=int, default=start, metavar="N", help=text)
    one.add_argument("--json", action="store_true", help="machine-readable")

    one = verb(inspect, "say what a checkpoint file is, from its header")
    one.add_argument("file", type=Path, metavar="FILE")
    one.add_argument("--json", action="store_true", help="machine-readable")

    one = verb(palette, "judge a class-colour clip: classes, exactness, likely faults and their remedy")
    one.add_argument("clip", type=Path, metavar="CLIP", help="video file or folder of pictures in palette colours")
    one.add_argument("--palette", default="racing", help="built-in palette name or palette file (default: %(default)s)")
    one.add_argument("--repair", choices=("auto", "on", "off"), default="auto", help="of doubtful pixels")
    one.add_argument("--fps", type=float, help="frames per second of a folder (default: 24)")
    one.add_argument("--json", action="store_true", help="machine-readable")
    one.add_argument("--labels", type=Path, metavar="DIR", help="also write class ids, one grey PNG per frame")

    one = verb(tables, "write the modulation tables of a checkpoint for a number of steps")
    one.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    one.add_argument("--steps", type=_count, default=2, help="denoising steps per chunk (default: 2)")
    one.add_argument("--out", type=Path, required=True, metavar="FILE", help="safetensors file to write")
    return top


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


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
    top = parser()
    typed = sys.argv[1:] if arguments is None else list(arguments)
    if typed[:1] == ["test"] and typed[1:2] not in (["-h"], ["--help"]):
        args = top.parse_args(["test"])
        args.pytest = typed[1:]
    else:
        args = top.parse_args(typed)
    signal.signal(signal.SIGTERM, _stop)
    try:
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
