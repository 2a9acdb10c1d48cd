"""The two environments that `cli.py` makes for itself, with nothing but the standard library.

`.venv` holds everything the demo and the tests run with (requirements.txt beside this file); `.cache/comfy-cli` holds
comfy-cli alone, for the release check, because it brings fifty packages that must not mix with the host's. A marker
file in each records what was installed, so that a second run starts at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"
COMFY_CLI = "comfy-cli==1.23.0"
TESTED = (3, 11)
MARKER = "streamrender_h3.installed"
UNFINISHED = "unfinished"
ENVIRONMENT_BYTES = 4_000_000_000  # .venv is 2.7 GB when finished; pip unpacks wheels beside it


class SetupError(RuntimeError):
    """The environment cannot be made; the message says why and what to do."""


def python_of(folder: Path) -> Path:
    """The interpreter of the virtual environment in `folder`."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def running_in(folder: Path) -> bool:
    """True when this very process runs on the interpreter of the virtual environment in `folder`."""
    return Path(sys.prefix).resolve() == folder.resolve()


def hand_over(python: Path, arguments: Sequence[str]) -> NoReturn:
    """Go on as `python arguments...`, in this process where the system can (so that Ctrl-C reaches the same id)."""
    command = [str(python), *arguments]
    sys.stdout.flush()
    if os.name == "nt":
        sys.exit(subprocess.call(command))
    os.execv(command[0], command)


def ensure_venv(root: Path) -> Path:
    """Make or complete `<root>/.venv` from requirements.txt and return its interpreter.

    Raises SetupError when the Python is unsuitable, pip fails, the network is missing or the disk is full.
    """
    folder = root / ".venv"
    pins = [line for line in REQUIREMENTS.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return _ensure(folder, pins, "the environment of the demo and the tests", ENVIRONMENT_BYTES)


def ensure_comfy_cli(root: Path) -> Path:
    """Make `<root>/.cache/comfy-cli` and return its `comfy` command."""
    _ensure(root / ".cache" / "comfy-cli", [COMFY_CLI], "comfy-cli for the release check", 700_000_000)
    return comfy_program(root)


def comfy_program(root: Path) -> Path:
    """Where the `comfy` command of the release check is, made or not."""
    return python_of(root / ".cache" / "comfy-cli").with_name("comfy.exe" if os.name == "nt" else "comfy")


def _ensure(folder: Path, pins: Sequence[str], what: str, need_bytes: int) -> Path:
    python, marker = python_of(folder), folder / MARKER
    wanted = hashlib.sha256("\n".join(pins).encode()).hexdigest()
    if _installed(python, marker) == wanted:
        return python
    base = _base_python()
    with _lock(folder):
        if _installed(python, marker) == wanted:  # another process finished it while this one waited
            return python
        if folder.exists() and not marker.exists():
            raise SetupError(
                f"{folder} exists but was not made by cli.py, and it will not be changed; "
                "move it away, then run the command again"
            )
        _check_space(folder.parent, need_bytes)
        print(f"Installing {what} into {folder} (once; a few minutes at most)", flush=True)
        if not python.exists():  # never made, or its base Python is gone
            shutil.rmtree(folder, ignore_errors=True)
        fresh = _installed(python, marker) in (None, UNFINISHED)
        folder.mkdir(parents=True, exist_ok=True)
        marker.write_text(UNFINISHED + "\n")  # from here on the folder is known to be ours
        if fresh:
            _run([base, "-m", "venv", str(folder)], _explain_venv)
        _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", *pins], _explain_pip)
        marker.write_text(wanted + "\n")
    return python


def _installed(python: Path, marker: Path) -> str | None:
    """What the marker of a usable environment says; None for a missing one or one whose base Python is gone."""
    if not marker.exists() or not python.exists():
        return None
    return marker.read_text().strip()


def _base_python() -> str:
    """The interpreter to build environments with: this one if it is the tested version, else python3.11 from PATH."""
    here, tested = sys.version_info[:2], ".".join(map(str, TESTED))
    if here == TESTED:
        return sys.executable
    other = shutil.which(f"python{tested}")
    if other:
        return other
    mine = ".".join(map(str, here))
    if here < TESTED:
        raise SetupError(
            f"this is Python {mine}; the pinned packages need Python {tested}: install it and run python{tested} cli.py"
        )
    print(
        f"warning: this is Python {mine}. Only {tested} is tested; the pinned torch may come as a CUDA build of 7 GB;\n"
        f"         with Python {tested} installed, run python{tested} cli.py instead",
        file=sys.stderr,
    )
    return sys.executable


def _check_space(folder: Path, need: int) -> None:
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < need:
        raise SetupError(
            f"{free / 1e9:.1f} GB free in {folder}; {need / 1e9:.1f} GB are needed: free some and run the command again"
        )


def _run(command: list[str], explain: Callable[[str], str]) -> None:
    """Run a command, its output folded into one line on a terminal; SetupError with its last words when it fails."""
    tail: list[str] = []
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise SetupError(f"{command[0]} cannot be started ({error.strerror}); check this Python installation") from None
    live = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 3
    try:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-80:], line.rstrip()]
            if live:
                print("\r\x1b[K  " + line.strip()[:width], end="", flush=True)
        code = process.wait()
    finally:
        if process.poll() is None:
            _end(process)
        if live:
            print("\r\x1b[K", end="", flush=True)
    if code:
        print("\n".join(tail[-15:]), file=sys.stderr)
        raise SetupError(explain("\n".join(tail)))


def _end(process: subprocess.Popen[str]) -> None:
    """Stop a process of ours and what it started: it leads a group of its own."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.terminate()
    process.wait()


def _explain_venv(output: str) -> str:
    if "ensurepip" in output:
        return "this Python cannot make virtual environments (no ensurepip); on Debian: apt install python3-venv"
    if "No space left" in output:
        return "the disk is full; free some space and run the command again"
    return "python -m venv failed (its last lines are above)"


def _explain_pip(output: str) -> str:
    if "No space left" in output:
        return "the disk became full while installing; free about 4 GB and run the command again"
    network = (
        "NewConnectionError",
        "Temporary failure in name resolution",
        "ConnectTimeout",
        "ReadTimeout",
        "ProxyError",
        "Network is unreachable",
    )
    if any(word in output for word in network):
        return (
            "the package index cannot be reached; check the network or the proxy settings, then run the command again"
        )
    if "No matching distribution" in output or "Could not find a version" in output:
        return (
            "pip found no version of the package named above: the package index cannot be reached, "
            "or has nothing for this Python and system (tested: Python 3.11 on x86_64 Linux)"
        )
    return "pip failed (its last lines are above); run the command again to continue where it stopped"


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One process at a time makes an environment; the others wait, then find it finished."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
