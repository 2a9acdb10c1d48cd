"""A night's work in small: a ComfyUI with tiny weights, two or three short clips, two looks, and the command that queues them."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import comfy_server
from bench import write_clip, write_picture
from streamrender_h3.nodes.preview import read_report
from streamrender_h3.workflows.nano.weights import WeightFiles, write_weights

FRAMES = 46  # three chunks
LONG = os.environ.get("SRH3_LONG") == "1"
CLIPS = ("bend", "hill", "town") if LONG else ("bend", "hill")


def digest(video: Path) -> str:
    """sha256 over every decoded frame."""
    import av

    found = hashlib.sha256()
    with av.open(str(video)) as container:
        for frame in container.decode(video=0):
            found.update(frame.to_ndarray(format="rgb24").tobytes())
    return found.hexdigest()


def with_widgets(workflow: Mapping[str, Any], changes: Mapping[str, Mapping[int, Any]]) -> dict[str, Any]:
    """A copy of a graph in the form of the editor, with other widget values: node type -> position -> value."""
    changed = copy.deepcopy(dict(workflow))
    for node in changed["nodes"]:
        for position, value in changes.get(node["type"], {}).items():
            node["widgets_values"][position] = value
    return changed


@dataclass
class Night:
    """One ComfyUI folder and a folder of work for it. `server` may be stopped and started again in the same place."""

    root: Path
    comfyui: Path
    base: Path
    work: Path
    weights: WeightFiles
    server: comfy_server.ComfyServer

    @classmethod
    def prepare(cls, root: Path, comfyui: Path, folder: Path, workflow: Mapping[str, Any]) -> Night:
        weights = write_weights(folder / "base" / "models", seed=4)
        server = comfy_server.start(comfyui, folder / "base")
        night = cls(root, comfyui, folder / "base", folder / "work", weights, server)
        (night.work / "clips").mkdir(parents=True)
        for number, name in enumerate(CLIPS):
            write_clip(night.work / "clips" / f"{name}.mp4", FRAMES, (128, 128 + 32 * number))
        write_picture(night.work / "noon.png", (64, 96))
        write_picture(night.work / "dusk.png", (96, 96))
        night.write_looks(noon={"prompt": "noon by the sea", "picture": "noon.png"}, dusk={"picture": "dusk.png"})
        small = {
            "SRH3_SemanticPaletteEncode": {1: 64, 2: 64},
            "SRH3_Look": {0: "a road by the sea", 1: 96, 2: 64, 3: weights.text_encoder.name},
            "SRH3_LoadModel": {0: weights.model.name},
            "SRH3_LoadEncoder": {0: weights.codec.name},
            "SRH3_LoadDecoder": {0: weights.codec.name},
        }
        (night.work / "graph.json").write_text(json.dumps(with_widgets(workflow, small)), encoding="utf-8")
        return night

    def write_looks(self, **looks: Mapping[str, str]) -> None:
        entries = [{"name": name, **look} for name, look in looks.items()]
        (self.work / "looks.json").write_text(json.dumps({"looks": entries}), encoding="utf-8")

    def command(self, *more: Any, clips: str = "clips") -> list[str]:
        words = ["queue", "graph.json", "--clips", clips, "--looks", "looks.json", "--server", self.server.url, *more]
        return [sys.executable, str(self.root / "cli.py"), *map(str, words)]

    def start(self, *more: Any, **options: Any) -> subprocess.Popen[str]:
        """The command in a process of its own."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(self.command(*more, **options), cwd=self.work, env=env, text=True, **pipes)

    def queue(self, *more: Any, **options: Any) -> tuple[int, list[dict[str, Any]], str]:
        """Run the command to its end: exit code, table, what it said on the way."""
        return self.finish(self.start("--json", *more, **options))

    @staticmethod
    def finish(process: subprocess.Popen[str], seconds: float = 400) -> tuple[int, list[dict[str, Any]], str]:
        out, err = process.communicate(timeout=seconds)
        return process.returncode, json.loads(out) if out.startswith("[") else [], err

    def restart(self) -> None:
        """Another server at the same address, in the same folders."""
        port = int(self.server.url.rsplit(":", 1)[1])
        shutil.rmtree(self.base / "custom_nodes")
        self.server = comfy_server.start(self.comfyui, self.base, port=port)

    def file(self, row: Mapping[str, Any]) -> Path:
        return self.base / "output" / row["file"]

    def report(self, row: Mapping[str, Any]) -> dict[str, Any]:
        report = read_report(self.file(row))
        assert report is not None
        return report

    @property
    def journals(self) -> list[Path]:
        folder = self.base / "user" / "streamrender_h3" / "journals"
        return sorted(folder.iterdir()) if folder.is_dir() else []
