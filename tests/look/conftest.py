"""A tiny Qwen3-VL folder for the tests of this room, and pictures to show it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from streamrender_h3.workflows.nano.qwen import write_qwen


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen(tmp_path_factory.mktemp("qwen"), 7, hidden_text=64, layers=4)


@pytest.fixture(scope="session")
def picture() -> np.ndarray:
    """uint8 [256, 320, 3], a multiple of 32 inside the area bounds: 8 x 10 tokens."""
    return scenery(1)


@pytest.fixture(scope="session")
def other_picture() -> np.ndarray:
    """Another picture of the same size."""
    return scenery(2)


def scenery(seed: int, height: int = 256, width: int = 320) -> np.ndarray:
    """Flat ground, flat sky and a few boxes, uint8 [height, width, 3]."""
    random = np.random.default_rng(seed)
    image = np.empty((height, width, 3), np.uint8)
    image[: height // 2], image[height // 2 :] = random.integers(0, 256, (2, 3))
    for _ in range(6):
        top, left = int(random.integers(height - 60)), int(random.integers(width - 60))
        image[top : top + 50, left : left + 60] = random.integers(0, 256, 3)
    return image
