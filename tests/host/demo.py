"""`cli.py demo`: the shipped graph, opened and rendered in a real ComfyUI, from nothing to a video file."""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
import tempfile
from pathlib import Path

import comfy_server
import fetch_comfyui

WORKFLOW = "semantic_to_video"


def run(root: Path, out: Path | None, keep: bool) -> int:
    """Render the example and print where the video is; `keep` leaves the server running.

    `out` is the folder for the video (default: `<root>/.cache/demo`). Returns the exit code; problems are raised.
    """
    graphs = importlib.import_module("streamrender_h3.workflows.run")
    folder = writable(out or root / ".cache" / "demo")
    workflow = json.loads((root / "workflows" / f"{WORKFLOW}.json").read_text(encoding="utf-8"))
    base = Path(tempfile.mkdtemp(prefix="streamrender_h3_demo_"))
    server, finished = None, False
    try:
        comfyui = fetch_comfyui.find_comfyui(root, base) or fetch_comfyui.fetch(root)
        print(f"Starting ComfyUI {fetch_comfyui.comfyui_version(comfyui)} from {comfyui}", flush=True)
        server = comfy_server.start(comfyui, base, root=root, stop_with_parent=not keep)
        print(f"Rendering workflows/{WORKFLOW}.json on {server.url}", flush=True)
        result = asyncio.run(graphs.run_workflow(server.url, workflow, bar=True))
        videos = [entry for entry in result.files() if entry["filename"].endswith(".mp4")]
        if not videos:
            raise RuntimeError(f"the workflow saved no MP4; its outputs were {result.history.get('outputs')}")
        for path in asyncio.run(graphs.download(server.url, videos, folder)):
            print(f"Video: {path}", flush=True)
        finished = True
    finally:
        if server and not (keep and finished):
            server.stop()
        if server and finished and keep:
            print(
                f"ComfyUI keeps running at {server.url} (its folder is {base}); stop it with: kill {server.process.pid}"
            )
        elif finished or server is None:
            shutil.rmtree(base, ignore_errors=True)
        else:
            print(f"The server's log: {server.log}")
    return 0


def writable(folder: Path) -> Path:
    """The folder, made if needed and known to take files, before minutes are spent on a video for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RuntimeError(
            f"the output folder {folder} cannot be written ({error.strerror}); choose another with --out"
        ) from None
    return folder.resolve()
