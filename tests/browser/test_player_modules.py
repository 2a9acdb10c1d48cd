"""The browser modules that need no browser: sequencer, timeline, figures, sessions, in Node's own test runner."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
WEB = HERE.parents[1] / "web"


def test_modules_pass_their_own_tests(node):
    files = sorted(map(str, (HERE / "modules").glob("*.test.mjs")))
    assert len(files) == 3
    done = subprocess.run([node, "--test", *files], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "# fail 0" in done.stdout and "# pass 0" not in done.stdout


@pytest.mark.parametrize("path", sorted(WEB.rglob("*.*js")), ids=lambda path: path.name)
def test_scripts_are_plain_modules(node, path):
    """No build step: the file is what runs. Only .js is loaded by the host itself, so there is exactly one."""
    done = subprocess.run([node, "--check", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (path.suffix == ".js") == (path.parent == WEB)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300
