"""The sparse window, an experiment, on a random tiny transformer: against the dense prefix bank, and against a masked softmax
written from the specification."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from streamrender_h3.kernels.dense_attention import DenseChoice, choose_dense
from streamrender_h3.kernels.sparse_dispatch import choose_sparse
from streamrender_h3.nodes.model import Form, audio_from_rows, unpatchify
from streamrender_h3.nodes.sampler import Network, Rollout, TimeGrid, chain, h3_time
from streamrender_h3.nodes.sampler.bank import SANDWICH, SPLIT, PrefixBank
from streamrender_h3.nodes.sampler.pack import RowTimes, make_layout, pack_whole
from streamrender_h3.nodes.sampler.window_sparse import SparseWindow
from streamrender_h3.nodes.schedule import RELEASE, Geometry, Schedule
from window_oracle import WindowOracle

GRID = TimeGrid.trailing(2)
LIMIT = 1e-5


@pytest.fixture(scope="module")
def given(conditions):
    """Conditions with several tiles to a latent: 2 x 2 of the video, some of them one row wide, and 1 x 2 of the map."""
    generator = torch.Generator().manual_seed(2)
    picture = torch.randn(24, 1, 24, 18, generator=generator)
    geometry = Geometry(target=(24, 18), reference=(16, 20), picture=(24, 18))
    return replace(conditions, picture=picture, geometry=geometry)


@pytest.fixture(scope="module")
def network(full_model, tables_for, given):
    def network(keep=None, *, bank=SPLIT, form=None, sparse=None, **changes):
        if keep is not None:
            sparse = SparseWindow(keep, choose_sparse(torch.device("cpu"), torch.float32, 32))
        return Network(
            full_model, tables_for(GRID), given, GRID, bank=PrefixBank(bank), form=form, sparse=sparse, **changes
        )

    return network


def roll(predict, given, chunks=3, schedule=RELEASE):
    rollout = Rollout(schedule, GRID, predict, given.picture, audio_channels=32, seed=3, freeze_sink=True)
    generator = torch.Generator().manual_seed(9)
    height, width = given.geometry.reference
    return [
        rollout.step(torch.randn(24, len(rollout.next_window.latents), height, width, generator=generator))
        for _ in range(chunks)
    ]


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def worst(found, expected):
    pairs = [pair for a, b in zip(found, expected, strict=True) for pair in ((a.video, b.video), (a.audio, b.audio))]
    return max(relative(*pair) for pair in pairs)


@dataclass
class Compared:
    """Predicts with the sparse window and compares every continuation with the oracle on the whole window."""

    network: Network
    keep: float
    worst: float = 0.0
    oracles: list = field(default_factory=list)

    def __call__(self, window, latents, step):
        found = self.network(window, latents, step)
        if window.is_bootstrap:
            return found
        (branch,), conditions, model = self.network.branches, self.network.conditions, self.network.model
        geometry, sigmas = conditions.geometry, (GRID.video[step], GRID.audio[step])
        layout = make_layout(model, window, geometry, conditions.tags, reference=branch.reference)
        oracle = WindowOracle(layout.plan, window, geometry, self.keep)
        times = RowTimes.at(*sigmas, device=torch.device("cpu"))
        rows = pack_whole(layout, model.refine_text(conditions.text), latents, times)
        video, audio = model(rows, self.network.tables.at(times.times), sparse=oracle)
        new, sounds = len(window.latents), len(window.audio_new)
        expected = (
            latents.video[:, -new:] + (1 - h3_time(sigmas[0])) * unpatchify(video, new, *latents.video.shape[-2:]),
            latents.audio[:, :, -sounds:] + (1 - h3_time(sigmas[1])) * audio_from_rows(audio),
        )
        self.worst = max([self.worst, *map(relative, found, expected)])
        self.oracles.append(oracle)
        return found


@pytest.mark.parametrize("schedule", [RELEASE, Schedule(0, 4, 1, 5), Schedule(4, 5, 2, 7)], ids=str)
@pytest.mark.parametrize("keep", [40.0, 60.0])
def test_it_equals_a_masked_softmax_over_the_whole_window(network, given, keep, schedule):
    compared = Compared(network(keep), keep)
    roll(compared, given, schedule=schedule)
    assert len(compared.oracles) == 4
    print(compared.worst, [o.gap for o in compared.oracles])
    assert compared.worst < LIMIT
