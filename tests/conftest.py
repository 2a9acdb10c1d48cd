"""Every test imports the pack from this tree as `streamrender_h3`, whether it is installed or not."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

_spec = importlib.util.spec_from_file_location("streamrender_h3_command", ROOT / "cli.py")
_command = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_command)
_command.import_pack(ROOT)

sys.path.insert(0, str(ROOT / "tests" / "host"))
from run_comfyui import install_companions  # noqa: E402 (found through the line above)

install_companions()  # diffusers and transformers import torchvision


def pytest_configure(config: pytest.Config) -> None:
    """Let the Pythons that tests start find the pack too: a folder with a link to it goes on their PYTHONPATH."""
    folder = tempfile.mkdtemp(prefix="streamrender_h3_path_")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    Path(folder, "streamrender_h3").symlink_to(ROOT, target_is_directory=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The check of all types takes minutes in a fresh clone: first, so that the other process does not wait for it."""
    items.sort(key=lambda item: item.path.name != "test_code_style.py")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of this repository."""
    return ROOT
