"""Loading the pack changes nothing in ComfyUI, wakes no GPU and reaches for no network (in a process of its own)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROBE = Path(__file__).resolve().parent / "import_probe.py"

GUILTY = """
import socket
import comfy.utils, torch

comfy.utils.common_upscale = None
for deed in (lambda: socket.create_connection(("127.0.0.1", 9), 1), lambda: torch.zeros(1, device="cuda")):
    try:
        deed()
    except Exception:
        pass


async def comfy_entrypoint():
    from comfy_api.latest import ComfyExtension

    class Extension(ComfyExtension):
        async def get_node_list(self):
            return []

    return Extension()
"""


def probe(comfyui: Path, pack: Path, base: Path) -> dict:
    base.mkdir(exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, str(PROBE), str(comfyui), str(pack), str(base)],
        cwd=base,
        env={**variables, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_loading_the_pack_is_harmless(comfyui, repository, tmp_path):
    report = probe(comfyui, repository, tmp_path / "base")
    assert report["nodes"], "no nodes were listed"
    assert report["changed"] == []
    assert report["sockets"] == []
    assert report["cuda"] == []


def test_the_probe_sees_a_guilty_pack(comfyui, tmp_path):
    (tmp_path / "guilty").mkdir()
    (tmp_path / "guilty" / "__init__.py").write_text(GUILTY)
    report = probe(comfyui, tmp_path / "guilty", tmp_path / "base")
    assert report["changed"] == ["comfy.utils.common_upscale"]
    assert len(report["sockets"]) >= 1
    assert len(report["cuda"]) >= 1
