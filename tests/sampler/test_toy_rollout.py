"""The sampler without a network: grids, steps, random numbers and the golden toy rollout."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from streamrender_h3.nodes.sampler import Noise, Rollout, TimeGrid, combine_seed, ddim_step, h3_time, trailing_sigmas
from streamrender_h3.nodes.sampler.grids import ddim_coefficients
from streamrender_h3.nodes.schedule import RELEASE

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "stream_plan.json").read_text())
TIMESTEPS = [
    (float(shift), int(steps), entry) for shift, grids in GOLDEN["timesteps"].items() for steps, entry in grids.items()
]


@pytest.mark.parametrize("shift,steps,expected", TIMESTEPS, ids=[f"shift{s:g}-steps{n}" for s, n, _ in TIMESTEPS])
def test_grid_equals_golden(shift, steps, expected):
    sigmas = trailing_sigmas(steps, shift)
    assert sigmas == pytest.approx(expected["repo_f64"], abs=1e-15)
    assert [float(torch.tensor(s, dtype=torch.float32)) for s in sigmas] == expected["repo_f32"]
    assert [h3_time(s) for s in sigmas] == expected["h3_f32"]
    coefficients = [ddim_coefficients(sigmas, i) for i in range(steps)]
    assert [a for a, _ in coefficients] == pytest.approx(expected["ddim_x0_coeff"], abs=1e-12)
    assert [b for _, b in coefficients] == pytest.approx(expected["ddim_xt_coeff"], abs=1e-12)


def test_release_grid_is_never_the_integer_rounded_one():
    grid = TimeGrid.trailing(2)
    assert grid.video == (1.0, 6 / 7) and grid.audio == pytest.approx((1.0, 0.6))
    assert grid.h3_times() == (0.0, 0.1428571343421936, 0.3999999761581421, 0.9990000128746033)


@pytest.mark.parametrize("steps", [49, 98, 103, 107, 196, 197])
def test_awkward_step_counts_have_exactly_that_many_levels(steps):
    sigmas = trailing_sigmas(steps, 6.0)
    assert len(sigmas) == steps and sigmas[-1] > 0
    assert all(a > b for a, b in itertools.pairwise(sigmas))


@pytest.mark.parametrize("steps", [0, -1, 201])
def test_steps_out_of_range_are_refused(steps):
    with pytest.raises(ValueError, match=f"steps is {steps}"):
        TimeGrid.trailing(steps)


def test_ddim_recovers_the_noise_it_implies():
    torch.manual_seed(0)
    x0, noise = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    sigmas = (0.9, 0.4)
    x_t = (1 - sigmas[0]) * x0 + sigmas[0] * noise
    expected = (1 - sigmas[1]) * x0 + sigmas[1] * noise
    torch.testing.assert_close(ddim_step(x0, x_t, sigmas, 0), expected)
    assert ddim_step(x0, x_t, sigmas, 1) is x0


@pytest.mark.parametrize("example", GOLDEN["seed_derivation"]["combine_seed_examples"])
def test_combine_seed_equals_golden(example):
    assert combine_seed(*example["parts"]) == int(example["value"])


def test_noise_is_one_stream_from_the_seed():
    noise, again = Noise(7), torch.Generator().manual_seed(7)
    for shape in ((2, 3), (5,), (1, 4)):
        assert torch.equal(noise.draw(*shape), torch.randn(shape, generator=again))


class FakePredictor:
    """The golden file's stand-in for the network; keeps what it was shown."""

    def __init__(self, grid):
        self.grid, self.seen = grid, {}

    def __call__(self, window, latents, step):
        new, new_audio = len(window.latents), len(window.audio_new)
        x_video, x_audio = latents.video[:, -new:], latents.audio[:, :, -new_audio:]
        if step == 0:
            self.seen[window.index] = latents
        x0_video = (
            0.5 * x_video + 0.25 * self.grid.video[step] + 0.1 * latents.video.mean() + 0.05 * latents.reference.mean()
        )
        x0_audio = 0.25 * x_audio - 0.125 * self.grid.audio[step] + 0.1 * latents.audio.mean()
        return x0_video, x0_audio


def test_toy_rollout_equals_golden():
    toy = GOLDEN["toy_rollout"]
    grid = TimeGrid.trailing(2)
    predict = FakePredictor(grid)
    height, width = toy["target_latent"]
    picture = torch.zeros(24, 1, height, width)
    rollout = Rollout(RELEASE, grid, predict, picture, audio_channels=32, seed=toy["seed"], freeze_sink=True)
    for expected in toy["chunks"]:
        index = expected["chunk"]
        reference = torch.full((24, len(rollout.next_window.latents), *toy["reference_latent"]), 0.1 * (index + 1))
        chunk = rollout.step(reference)
        shown = predict.seen[index]
        new, new_audio = len(chunk.window.latents), len(chunk.window.audio_new)
        found = {
            "init_noise_video_first4": shown.video[:, -new:],
            "init_noise_audio_first4": shown.audio[:, :, -new_audio:],
            "conditioned_reference_first4": shown.reference,
            "x0_video_first4": chunk.video,
            "x0_audio_first4": chunk.audio,
        }
        if index:  # in chunk 0 the history is all noise and already overwritten by the current latents
            found["conditioned_history_first4"] = shown.video
        for name, tensor in found.items():
            assert tensor.contiguous().flatten()[:4].tolist() == pytest.approx(expected[name], abs=2e-5), (index, name)
        assert chunk.video.mean().item() == pytest.approx(expected["x0_video_mean"], abs=2e-5)
        assert chunk.audio.mean().item() == pytest.approx(expected["x0_audio_mean"], abs=2e-5)


def test_wrong_number_of_map_latents_is_refused():
    rollout = Rollout(
        RELEASE,
        TimeGrid.trailing(2),
        FakePredictor(TimeGrid.trailing(2)),
        torch.zeros(24, 1, 4, 6),
        audio_channels=32,
        seed=1,
        freeze_sink=True,
    )
    with pytest.raises(ValueError, match="chunk 0 got 3 map latents and needs 9"):
        rollout.step(torch.zeros(24, 3, 4, 4))
