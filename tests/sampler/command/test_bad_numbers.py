"""Sizes, numbers and devices that cannot be, on the real command line: refused in one line, before any model runs."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("size", ["100x64", "96x72", "32x64", "96x32", "0x0", "-96x64"])
def test_video_size_that_does_not_fit(refused, size):
    refused(f"output size {size}", "multiples of 32 and at least 64", "Use for example", size=size)


@pytest.mark.parametrize("size", ["100x64", "96x72", "32x64", "96x32", "0x0", "-96x64"])
def test_map_size_that_does_not_fit(refused, size):
    refused(f"reference size is {size}", "multiples of 32 and at least 64", "Set it to", reference_size=size)


@pytest.mark.parametrize("name", ["size", "reference_size"])
@pytest.mark.parametrize("text", ["big", "96", "96x64x3", "96.0x64"])
def test_size_that_is_no_size(refused, name, text):
    refused(f"{name.replace('_', ' ')} is {text!r}", "write width x height", **{name: text})


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("0,0,0,0", ("chunk is 0", "at least 1 is needed", "Set chunk to 2")),
        ("a,b", ("schedule is 'a,b'", "Write for example 2,2,2,7")),
        ("2,2,2", ("schedule is '2,2,2'", "Write for example 2,2,2,7")),
        ("-1,2,2,7", ("sink is -1", "at least 0 is needed")),
        ("2,-2,2,7", ("window is -2", "at least 0 is needed")),
        ("2,2,2,0", ("bootstrap is 0", "at least 1 is needed", "Set bootstrap to 7")),
        ("4,2,2,3", ("sink is 4 units but the bootstrap makes only 3", "Set sink to 3 or less, or use dense windows")),
    ],
)
def test_schedule_out_of_range(refused, schedule, words):
    refused(*words, schedule=schedule)


@pytest.mark.parametrize("steps", ["0", "-1", "x", "1.5", "201"])
def test_steps_out_of_range(refused, steps):
    refused("steps", steps, steps=steps)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_out_of_range(refused, seed):
    refused(f"seed is {seed}", "from 0 to 18446744073709551615", seed=seed)


def test_the_largest_seed_is_one(command):
    code, error = command.run(seed=2**64 - 1)
    assert code == 0, error


def test_cuda_without_a_device(refused):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    refused("no CUDA device", "use --device cpu", device="cuda")
