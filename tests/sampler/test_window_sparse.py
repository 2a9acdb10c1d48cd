"""The sparse window, an experiment, on a random tiny transformer: against the dense prefix bank, and against a masked softmax
written from the specification."""

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from small_render import BASE, look_of, moving_clip
from streamrender_h3.kernels.dense_attention import DenseChoice, choose_dense
from streamrender_h3.kernels.sparse_dispatch import choose_sparse
from streamrender_h3.nodes.model import RELEASE as RELEASED
from streamrender_h3.nodes.model import Form, audio_from_rows, unpatchify
from streamrender_h3.nodes.sampler import DENSE, Network, RenderError, Rollout, TimeGrid, chain, h3_time, render
from streamrender_h3.nodes.sampler.bank import FORMS, FP8, SANDWICH, SPLIT, PrefixBank
from streamrender_h3.nodes.sampler.fingerprint import attention_of
from streamrender_h3.nodes.sampler.memory import Rows, window_bytes
from streamrender_h3.nodes.sampler.pack import RowTimes, make_layout, pack_whole
from streamrender_h3.nodes.sampler.render import check_settings
from streamrender_h3.nodes.sampler.report import RenderReport
from streamrender_h3.nodes.sampler.window_sparse import SparseWindow
from streamrender_h3.nodes.schedule import RELEASE, RELEASE_GEOMETRY, Geometry, Schedule, tile_plan
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
    assert compared.worst < LIMIT
    for oracle in compared.oracles:
        assert oracle.gap > 1e-6  # no choice hangs on a rounding
        counts = [len(tiles) for seen in oracle.seen for tiles in seen.values()]
        assert min(counts) == oracle.kept < len(oracle.tiles)


@pytest.fixture
def attention():
    return choose_dense(torch.device("cpu"), torch.float32, 32, "sdpa")


@pytest.mark.parametrize("bank", FORMS)
@pytest.mark.parametrize("fast", [False, True], ids=["plain modules", "fast forward"])
def test_every_form_of_bank_and_network_gives_the_same(network, given, attention, bank, fast):
    """Bank and moving rows come as two stretches, as one, and at step 1 of a sandwich with the moving rows first."""
    expected = roll(network(50.0), given)
    error = worst(roll(network(50.0, bank=bank, form=Form(attention) if fast else None), given), expected)
    if bank == FP8:
        assert 1e-6 < error < 5e-2
    else:
        assert error < LIMIT


def test_plain_modules_with_an_attention_of_the_table(network, given, attention):
    form = Form(attention, fast=False)
    assert worst(roll(network(50.0, form=form), given, 2), roll(network(50.0), given, 2)) < LIMIT


@pytest.mark.parametrize("bank", [SPLIT, SANDWICH])
def test_everything_kept_is_the_dense_prefix_bank(network, given, bank):
    assert worst(roll(network(100.0, bank=bank), given), roll(network(bank=bank), given)) < LIMIT


def test_almost_everything_kept_is_almost_dense_and_half_is_not(network, given):
    """The limits of the other comparisons can fail."""
    dense = roll(network(), given, 2)
    errors = [worst(roll(network(keep), given, 2), dense) for keep in (97.0, 50.0)]  # 47 and 24 of 48 tiles
    assert 1e-5 < errors[0] < errors[1]


def test_a_dense_attention_without_log_sum_exp_lists_what_every_row_sees(network, given, attention):
    sparse = network(50.0).sparse
    alone = replace(sparse, choice=replace(sparse.choice, dense=DenseChoice("alone", attention.run, None)))
    assert worst(roll(network(sparse=alone), given, 2), roll(network(50.0), given, 2)) < LIMIT


def test_sparse_off_for_measurements_is_dense(network, given):
    off = SparseWindow(10.0, choose_sparse(torch.device("cpu"), torch.float32, 32, "off"))
    assert worst(roll(network(sparse=off), given, 2), roll(network(), given, 2)) < LIMIT


def test_the_first_chunk_knows_nothing_of_it(network, given):
    sparse, dense = roll(network(50.0), given, 2), roll(network(), given, 2)
    assert torch.equal(sparse[0].video, dense[0].video) and not torch.equal(sparse[1].video, dense[1].video)


def test_every_branch_of_the_chain_has_its_own_window(network, given):
    """A branch without reference has no reference tiles; together they are the sum of them alone."""
    together, parts = network(50.0, branches=chain()), [network(50.0, branches=(branch,)) for branch in chain()]

    def predict(window, latents, step):
        found = together(window, latents, step)
        sums = [part(window, latents, step) for part in parts]
        for stream in (0, 1):
            torch.testing.assert_close(found[stream], sum(s[stream] for s in sums), atol=1e-5, rtol=1e-5)
        return found

    roll(predict, given)
    assert together.bank.prefills == 6


def test_the_smallest_share_still_sees_the_aligned_reference(network, given, monkeypatch):
    """What the kernel is given, by list: every forced tile, whatever its score, and nothing beyond when no budget is left."""
    from streamrender_h3.kernels import window_attention

    lists, made = [], window_attention.window_lists

    def watched(steps, q, k, tiles, means):
        q = q.flip(0)  # scores that have nothing to do with what is near
        lists.append((*made(steps, q, k, tiles, means), tiles))
        return lists[-1][:2]

    monkeypatch.setattr(window_attention, "window_lists", watched)
    roll(network(1.0), given, 2)
    plan = tile_plan(RELEASE.window_at(1), given.geometry)
    assert len(lists) == 2 * 3  # steps and layers
    for listed, count, tiles in lists:
        runs = tiles.moving.n_prefix + tiles.bank.n_prefix
        for query, forced in enumerate(plan.forced):
            for head in range(4):
                assert (listed[head, query, : count[head, query]] - runs).tolist() == list(forced)


def test_means_of_the_bank_are_made_once(network, given, monkeypatch):
    from streamrender_h3.nodes.sampler import window_sparse

    made, real = [], window_sparse.grid_means
    monkeypatch.setattr(window_sparse, "grid_means", lambda *args: made.append(len(args[1])) or real(*args))
    predict = network(50.0)
    roll(predict, given, 4)
    assert len(made) == 2 * 3 and len(set(made)) == 1  # steps and layers, though three chunks used them
    assert predict.bank.get("text+map", 1).means[2].shape == (4, 3 * (4 + 2), 32)


# --------------------------------------------------------------------------------------------------------- whole renders


def rendered(parts, **changes):
    model, encoder, decoder = parts
    look = look_of(1, model.config.text_dim)
    return list(render(moving_clip(40), look, model, encoder, decoder, replace(BASE, **changes)))


def test_a_render_says_that_it_is_an_experiment(tiny_parts, caplog):
    with caplog.at_level("WARNING", "streamrender_h3"):
        dense, everything = rendered(tiny_parts), rendered(tiny_parts, window_keep=100.0)
        half = rendered(tiny_parts, window_keep=50.0)
    assert caplog.text.count("sparse window attention is an experiment") == 2 and "does not pay" in caplog.text
    assert [len(chunk.frames) for chunk in half] == [len(chunk.frames) for chunk in dense]
    assert worst(everything, dense) < LIMIT and worst(half, dense) > LIMIT
    report = RenderReport(replace(BASE, window_keep=50.0), 40)
    for chunk in half:
        report.add(chunk)
    told = json.loads(report.as_json("abc"))["window_attention"]
    assert told["keep_percent"] == 50.0 and "not trained with it" in told["warning"]
    assert "window_attention" not in BASE.facts()


def test_a_journal_of_a_dense_render_is_not_continued_with_it():
    assert attention_of(BASE) == "prefix"
    assert attention_of(replace(BASE, window_keep=50.0)) == "prefix, window keeps 50.0 %"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window_keep": 50.0, "attention": DENSE}, "goes with the prefix bank, and attention is 'dense'"),
        ({"window_keep": 0.0}, "keep 0 % of its tiles; set more than 0 and at most 100"),
        ({"window_keep": float("nan")}, "keep nan % of its tiles"),
    ],
)
def test_what_cannot_be_is_refused(changes, words):
    with pytest.raises(RenderError, match=words):
        check_settings(replace(BASE, **changes))


def test_the_memory_plan_counts_its_means():
    """At the released sizes 78 tiles of the sink in float32: 56 x 128 x 4 bytes in each of 50 layers, for two banks."""
    rows = Rows.of(RELEASE, RELEASE_GEOMETRY, 1500)
    plan = tile_plan(RELEASE.window_at(1), RELEASE_GEOMETRY)
    means = 2 * 50 * 78 * 56 * 128 * 4
    assert means < window_bytes(RELEASED, plan, rows, 2, 2) < means + 600_000_000
