"""The whole tree is clean for ruff and mypy, as configured in pyproject.toml."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

PACKAGES = ("streamrender_h3.nodes", "streamrender_h3.kernels", "streamrender_h3.workflows")


@pytest.mark.parametrize("arguments", [("ruff", "check", "."), ("ruff", "format", "--check", ".")], ids=" ".join)
def test_ruff_is_clean(repository, arguments):
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_are_clean(repository, tmp_path):
    """mypy finds the pack by its import name through a link; it reads no installed finder."""
    assert importlib.util.find_spec("mypy"), "mypy is pinned in tests/host/requirements.txt"
    (tmp_path / "streamrender_h3").symlink_to(repository, target_is_directory=True)
    chosen = [word for package in PACKAGES for word in ("-p", package)]
    command = [sys.executable, "-m", "mypy", "--config-file", str(repository / "pyproject.toml"), *chosen]
    command += ["-m", "streamrender_h3.cli", "--cache-dir", str(repository / ".cache" / "mypy")]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
