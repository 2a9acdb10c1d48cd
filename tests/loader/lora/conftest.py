"""The factors of all modules, the model they change, and diffusers with them merged."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from streamrender_h3.nodes.loader import (
    load_h3,
    write_h3,
)

sys.path.insert(0, str(Path(__file__).parent))
from lora_files import ADALN, BOUNDARY, CORE, CPU, TIME, TIMES, diffusers_parts


@pytest.fixture(scope="session")
def factors(native):
    """Native module -> (A [r, in], B [out, r]) for every linear of the model; ranks differ from module to module."""
    g = torch.Generator().manual_seed(11)
    made = {}
    for number, module in enumerate([*CORE, *ADALN, *TIME, *BOUNDARY]):
        out, width = native[f"{module}.weight"].shape
        rank = 4 + number % 3
        made[module] = (torch.randn(rank, width, generator=g) * 0.2, torch.randn(out, rank, generator=g) * 0.2)
    return made


@pytest.fixture(scope="session")
def merged_output(twin, inputs, run):
    """diffusers' velocities with {module: factor} of (A, B) added to its weights."""

    def merged_output(factors, scale=1.0, also=None):
        model = copy.deepcopy(twin)
        modules = dict(model.named_modules())
        scales = scale if callable(scale) else lambda module, rank: scale
        for module, (down, up) in factors.items():
            for name, rows in diffusers_parts(module, up):
                modules[name].weight += scales(module, len(down)) * rows @ down
        if also:
            also(modules)
        places = torch.arange(23).split([6, 5, 4, 8])
        video, audio = model(
            torch.cat([inputs["before"], inputs["video"]])[None],
            inputs["audio"][None],
            inputs["text"][None],
            torch.tensor(TIMES),
            inputs["time_index"],
            inputs["tags"],
            inputs["positions"],
            torch.cat([places[1], places[3]]),
            places[2],
            places[0],
            return_dict=False,
        )
        return video[0, 5:], audio[0]

    return merged_output


@pytest.fixture
def base(tmp_path, native):
    return load_h3(write_h3(tmp_path / "base" / "m.safetensors", native)[0], **CPU)
