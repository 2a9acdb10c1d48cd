"""The release check: comfy-cli accepts the pack, the archive is complete and lean, and a render runs from the archive.

comfy-cli lives in `.cache/comfy-cli`, made by `cli.py test`. It works on a copy of the tracked files with a home of
its own, so neither this tree nor a developer's settings are touched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import zipfile
from pathlib import Path

import comfy_server
import environment
import pytest
from bench import frames_of, write_clip
from streamrender_h3.nodes.batch.prompt import to_api

TOP = {
    "LICENSE",
    "NOTICE",
    "README.md",
    "__init__.py",
    "cli.py",
    "pyproject.toml",
    "kernels",
    "nodes",
    "web",
    "workflows",
}


@pytest.fixture(scope="module")
def comfy_cli(repository, tmp_path_factory):
    """Runs `comfy ARGUMENTS` in a folder; returns the finished process, its output as text."""
    program = environment.comfy_program(repository)
    if not program.exists():
        words = "no comfy-cli; python3 cli.py test makes it"
        if os.environ.get("REQUIRE_COMFYUI") == "1":
            pytest.fail(words, pytrace=False)
        pytest.skip(words)
    home = tmp_path_factory.mktemp("home")
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XDG_CONFIG_HOME")}
    variables = {**inherited, "HOME": str(home), "DO_NOT_TRACK": "1", "NO_COLOR": "1", "COLUMNS": "200"}

    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        command = [str(program), "--skip-prompt", *arguments]
        return subprocess.run(
            command,
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
        )

    run("tracking", "disable", cwd=home)
    return run


@pytest.fixture(scope="module")
def copy(repository, tmp_path_factory):
    """The files git would publish, as a repository of their own."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("this tree is not a git checkout, so nothing says which files belong to it")
    folder = tmp_path_factory.mktemp("release") / "pack"
    for name in filter(None, listed.stdout.split("\0")):
        if (repository / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(repository / name, folder / name)
    for command in (["git", "init", "-q"], ["git", "add", "-A"]):
        subprocess.run(command, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def archive(comfy_cli, copy):
    done = comfy_cli("node", "pack", cwd=copy)
    assert done.returncode == 0, done.stdout
    return copy / "node.zip"


def test_comfy_cli_accepts_the_pack_without_warnings(comfy_cli, copy):
    done = comfy_cli("node", "validate", cwd=copy)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
    assert not re.search(r"warning|S102|S307|E702", done.stdout, re.IGNORECASE), done.stdout


def test_the_archive_holds_what_a_user_needs_and_nothing_else(archive, copy):
    names = {name for name in zipfile.ZipFile(archive).namelist() if not name.endswith("/")}
    assert {name.split("/")[0] for name in names} == TOP
    assert [
        name for name in names if any(part.startswith((".", "__pycache__", "test")) for part in name.split("/"))
    ] == []
    for folder in ("kernels", "nodes", "web", "workflows/assets"):
        wanted = {str(path.relative_to(copy)) for path in (copy / folder).rglob("*") if path.is_file()}
        assert wanted <= names
    assert {path.name for path in (copy / "workflows").glob("*.json")} <= {Path(name).name for name in names}
    assert archive.stat().st_size < 100e6


def test_a_render_runs_from_the_archive_through_comfy_cli(comfy_cli, archive, comfy_server_factory, tmp_path):
    """`comfy run` opens the UI file, converts it itself and waits: an independent check of our graph file, too.

    The demo test renders the whole clip; here a shorter one lies under its name in the server's input folder.
    """
    zipfile.ZipFile(archive).extractall(tmp_path / "pack")
    server = comfy_server_factory(root=tmp_path / "pack")
    workflow = tmp_path / "pack" / "workflows" / "semantic_to_video.json"
    clip = next(n["widgets_values"][0] for n in json.loads(workflow.read_text())["nodes"] if n["type"] == "LoadVideo")
    assert (server.base / "input" / clip).is_file()
    write_clip(server.base / "input" / clip, frames=34, size=(256, 448))
    port = server.url.rsplit(":", 1)[1]
    done = comfy_cli(
        *("run", "--workflow", str(workflow), "--host", "127.0.0.1", "--port", port, "--wait", "--timeout", "400"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    (video,) = (server.base / "output").rglob("*.mp4")
    assert frames_of(video)[0] == 34
    assert comfy_server.import_trouble(server.log_text()) == []
    for name in ("two_looks", "decode_latent", "clip_list"):
        takes(comfy_cli, server, tmp_path / "pack" / "workflows" / f"{name}.json", tmp_path)
    server.stop()


def takes(comfy_cli, server, workflow, folder):
    """`comfy run` queues the graph, by its own conversion with the values that ours has; it is not rendered."""
    port = server.url.rsplit(":", 1)[1]
    done = comfy_cli("run", "--workflow", str(workflow), "--host", "127.0.0.1", "--port", port, cwd=folder)
    assert done.returncode == 0, done.stdout
    (entry,) = server.get("/queue")["queue_running"]
    server.post("/interrupt")
    ours = to_api(json.loads(workflow.read_text(encoding="utf-8")), server.get("/object_info"))
    for key, node in ours.items():
        made = entry[2][key]
        assert made["class_type"] == node["class_type"]
        assert {name: made["inputs"].get(name) for name in node["inputs"]} == node["inputs"], workflow.name
    deadline = time.monotonic() + 100
    while server.get("/queue")["queue_running"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
