"""Start and stop a real ComfyUI with this pack in it: own base directory, free loopback port, nothing shared.

Standard library only. `start` returns when the server answers and the pack is in; `ComfyServer.stop` ends it by its
process id. The demo and the host tests both use this.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAUNCHER = Path(__file__).resolve().parent / "run_comfyui.py"
ROOT = LAUNCHER.parents[2]
PACK = "streamrender_h3"
FOLDERS = ("custom_nodes", "models", "input", "output", "temp", "user/default")
IMPORT_TROUBLE = ("IMPORT FAILED", "Cannot import", "Error while calling comfy_entrypoint")
SETTINGS = {  # no dialogs over the graph in a browser's first visit
    "Comfy.TutorialCompleted": True,
    "Comfy.Workflow.ShowMissingModelsWarning": False,
    "Comfy.Workflow.ShowMissingNodesWarning": False,
    "Comfy.Minimap.Visible": False,
    "Comfy.Workflow.Persist": False,
    "Comfy.VueNodes.Enabled": False,
}


class ServerFailed(RuntimeError):
    """The server did not come up, or came up without the pack; the message holds the end of its log."""


@dataclass
class ComfyServer:
    """A running server. `url` has no slash at its end; `base` holds its input, output, models and user folders."""

    url: str
    base: Path
    log: Path
    process: subprocess.Popen[bytes]

    def log_text(self, start: int = 0) -> str:
        """The log from byte `start` on, without terminal colours."""
        with open(self.log, "rb") as file:
            file.seek(start)
            return plain(file.read().decode("utf-8", "replace"))

    def get(self, route: str) -> Any:
        """GET a route; the parsed JSON of the answer."""
        with urllib.request.urlopen(self.url + route, timeout=30) as answer:
            return json.load(answer)

    def read(self, route: str) -> bytes:
        """GET a route; the bytes of the answer."""
        with urllib.request.urlopen(self.url + route, timeout=30) as answer:
            return answer.read()

    def post(self, route: str, body: Mapping[str, Any] | None = None) -> Any:
        """POST JSON to a route; the parsed answer, or None for an empty one. HTTP errors are raised by urllib."""
        data = json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + route, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else None

    def stop(self) -> None:
        """End the server by its process id: SIGINT for a clean exit, then harder."""
        for sign, patience in (
            (signal.SIGINT, 10),
            (signal.SIGTERM, 5),
            (getattr(signal, "SIGKILL", signal.SIGTERM), 5),
        ):
            if self.process.poll() is not None:
                return
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                self.process.send_signal(sign)
                self.process.wait(patience)


def plain(text: str) -> str:
    """The text without ANSI escapes: newer hosts colour their log even in a file."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def import_trouble(log: str) -> list[str]:
    """The lines of a host's log that say the pack (or anything else) could not be imported."""
    return [line for line in log.splitlines() if any(word in line for word in IMPORT_TROUBLE)]


def prepare_base(base: Path, packs: Mapping[str, Path]) -> None:
    """Make ComfyUI's folders below `base` and put each pack into custom_nodes, as a link where links are possible."""
    for folder in FOLDERS:
        (base / folder).mkdir(parents=True, exist_ok=True)
    (base / "user/default/comfy.settings.json").write_text(json.dumps(SETTINGS))
    for name, source in packs.items():
        link = base / "custom_nodes" / name
        try:
            link.symlink_to(source, target_is_directory=True)
        except OSError:
            shutil.copytree(source, link, ignore=shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__"))


def command(
    comfyui: Path, base: Path, packs: Iterable[str], extra: Sequence[str], api_nodes: bool = False
) -> list[str]:
    """The command line that runs ComfyUI on the CPU with these packs only. COMFYUI_PYTHON names another interpreter."""
    python = os.environ.get("COMFYUI_PYTHON") or sys.executable
    fixed = ["--cpu", "--base-directory", str(base), "--database-url", "sqlite:///:memory:", "--disable-auto-launch"]
    fixed += [] if api_nodes else ["--disable-api-nodes"]
    return [
        *(python, str(LAUNCHER), str(comfyui), *fixed),
        *("--disable-all-custom-nodes", "--whitelist-custom-nodes", *packs),
        *extra,
    ]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A server's environment: unbuffered log, nothing written into the ComfyUI tree, no hub access, no PYTHONPATH."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    fixed = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    return {**inherited, **fixed, **(extra or {})}


def quick_test(
    comfyui: Path, base: Path, *, packs: Mapping[str, Path], env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Let ComfyUI import this pack and `packs`, then leave (`--quick-test-for-ci`); its exit code and log."""
    packs = {PACK: ROOT, **packs}
    prepare_base(base, packs)
    run = subprocess.run(
        command(comfyui, base, packs, ["--quick-test-for-ci"]),
        cwd=base,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=180,
    )
    return run.returncode, plain(run.stdout.decode("utf-8", "replace"))


def start(
    comfyui: Path,
    base: Path,
    *,
    root: Path = ROOT,
    extra: Sequence[str] = (),
    packs: Mapping[str, Path] | None = None,
    env: Mapping[str, str] | None = None,
    api_nodes: bool = False,
    stop_with_parent: bool = True,
    patience: float = 120,
    port: int | None = None,
) -> ComfyServer:
    """A server with the pack at `root` (and further `packs`, name -> folder) that answers on loopback, at `port` or a free one.

    `stop_with_parent=False` lets it outlive this process. Raises ServerFailed with the end of the log when the server
    ends or stays silent for `patience` seconds, or when a pack could not be imported.
    """
    packs = {PACK: root, **(packs or {})}
    prepare_base(base, packs)
    variables = environment(
        {**({"SRH3_STOP_WITH_PARENT": str(os.getpid())} if stop_with_parent else {}), **(env or {})}
    )
    for attempt in (1, 2):
        chosen = port or free_port()
        line = [*command(comfyui, base, packs, extra, api_nodes), "--listen", "127.0.0.1", "--port", str(chosen)]
        log = base / f"comfyui-{chosen}.log"
        with open(log, "wb") as sink:
            process = subprocess.Popen(
                line,
                cwd=base,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        server = ComfyServer(f"http://127.0.0.1:{chosen}", base, log, process)
        try:
            _wait(server, patience)
        except ServerFailed:
            if attempt == 1 and "address already in use" in server.log_text().lower():
                continue
            raise
        except BaseException:
            server.stop()
            raise
        return server
    raise AssertionError("unreachable")


def free_port() -> int:
    """A loopback port nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(server: ComfyServer, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        code = server.process.poll()
        if code is not None:
            raise ServerFailed(f"ComfyUI ended with code {code} while starting:\n{server.log_text()[-4000:]}")
        try:
            server.get("/system_stats")
            break
        except (OSError, ValueError):
            if time.monotonic() > deadline:
                server.stop()
                raise ServerFailed(
                    f"ComfyUI did not answer within {patience:.0f} s:\n{server.log_text()[-4000:]}"
                ) from None
            time.sleep(0.1)
    log = server.log_text()
    if import_trouble(log):
        server.stop()
        raise ServerFailed(f"ComfyUI could not import the pack:\n{log[-6000:]}")
