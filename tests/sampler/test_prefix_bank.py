"""The prefix bank, dense windows and guidance on a random tiny transformer, fp32."""

from dataclasses import dataclass

import pytest
import torch
from streamrender_h3.nodes.model import audio_from_rows, unpatchify
from streamrender_h3.nodes.sampler import (
    DENSE,
    PREFIX,
    SINGLE,
    Network,
    Rollout,
    TimeGrid,
    chain,
    fitting_weights,
    h3_time,
)
from streamrender_h3.nodes.sampler.pack import RowTimes, make_layout, pack_whole
from streamrender_h3.nodes.schedule import RELEASE, Schedule

CHUNKS = 9


def roll(predict, conditions, *, chunks=CHUNKS, schedule=RELEASE, grid=None, freeze=True, seed=3):
    grid = grid or TimeGrid.trailing(2)
    rollout = Rollout(schedule, grid, predict, conditions.picture, audio_channels=32, seed=seed, freeze_sink=freeze)
    generator = torch.Generator().manual_seed(9)
    height, width = conditions.geometry.reference
    return [
        rollout.step(torch.randn(24, len(rollout.next_window.latents), height, width, generator=generator))
        for _ in range(chunks)
    ]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def masked_whole_window(network, window, latents, step, tags, text):
    """The whole window in one forward in which prefix rows see only prefix rows: what the bank must equal."""
    model, sigmas = network.model, (network.grid.video[step], network.grid.audio[step])
    layout = make_layout(model, window, network.conditions.geometry, tags, reference=True)
    visible = torch.ones(layout.plan.total, layout.plan.total, dtype=torch.bool)
    prefix = torch.zeros(layout.plan.total, dtype=torch.bool)
    for rows in layout.plan.prefix:
        prefix[rows.start : rows.stop] = True
    visible[prefix.nonzero().flatten()[:, None], (~prefix).nonzero().flatten()] = False
    times = RowTimes.at(*sigmas, device=torch.device("cpu"))
    video, audio = model(pack_whole(layout, text, latents, times), network.tables.at(times.times), visible=visible)
    new, new_audio = len(window.latents), len(window.audio_new)
    return (
        latents.video[:, -new:] + (1 - h3_time(sigmas[0])) * unpatchify(video, new, *latents.video.shape[-2:]),
        latents.audio[:, :, -new_audio:] + (1 - h3_time(sigmas[1])) * audio_from_rows(audio),
    )


@dataclass
class Checked:
    """Predicts through the bank and compares every continuation with the masked whole window."""

    network: Network
    worst: float = 0.0
    compared: int = 0

    def __call__(self, window, latents, step):
        found = self.network(window, latents, step)
        if not window.is_bootstrap:
            conditions = self.network.conditions
            text = self.network.model.refine_text(conditions.text)
            expected = masked_whole_window(self.network, window, latents, step, conditions.tags, text)
            self.worst = max([self.worst, *map(relative, found, expected)])
            self.compared += 1
        return found


@pytest.mark.parametrize(
    "schedule", [RELEASE, Schedule(1, 3, 2, 7), Schedule(0, 4, 1, 5), Schedule(4, 5, 2, 7)], ids=str
)
def test_prefix_bank_equals_masked_recompute(full_model, tables_for, conditions, schedule):
    grid = TimeGrid.trailing(2)
    checked = Checked(Network(full_model, tables_for(grid), conditions, grid))
    roll(checked, conditions, schedule=schedule)
    assert checked.compared == 2 * (CHUNKS - 1)
    assert checked.worst < 1e-5


def test_dense_window_is_not_the_prefix_window(full_model, tables_for, conditions):
    """Prefix rows that could see moving rows would change the result: the comparison above can fail."""
    grid = TimeGrid.trailing(2)
    prefix = roll(Network(full_model, tables_for(grid), conditions, grid), conditions, chunks=2)
    dense = roll(Network(full_model, tables_for(grid), conditions, grid, attention=DENSE), conditions, chunks=2)
    assert torch.equal(prefix[0].video, dense[0].video)
    assert relative(dense[1].video, prefix[1].video) > 1e-4


class CountedForwards(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.rows = model, []

    def forward(self, rows, modulation, **options):
        self.rows.append(sum(rows.segments))
        return self.model(rows, modulation, **options)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)


def test_two_prefills_at_chunk_one_and_steps_forwards_per_chunk_after(full_model, tables_for, conditions):
    grid = TimeGrid.trailing(2)
    counted = CountedForwards(full_model)
    network = Network(counted, tables_for(grid), conditions, grid)
    forwards = []

    def predict(window, latents, step):
        before = len(counted.rows)
        result = network(window, latents, step)
        forwards.append((window.index, counted.rows[before:]))
        return result

    roll(predict, conditions, chunks=4)
    rows = {index: [r for i, step in forwards if i == index for r in step] for index in range(4)}
    assert [len(rows[k]) for k in range(4)] == [2, 4, 2, 2]
    assert network.bank.prefills == 2
    prefix = len(conditions.tags) + 6 + 3 * 4 + 30 + 3 * 6
    assert rows[1][0] == rows[1][2] == prefix
    assert rows[2] == [5 * (4 + 6) + 2 * 29] * 2
    per_row = 2 * 4 * full_model.config.layers * full_model.config.inner
    assert network.bank.nbytes == 2 * prefix * per_row


def test_four_steps_make_four_banks(full_model, tables_for, conditions):
    grid = TimeGrid.trailing(4)
    network = Network(full_model, tables_for(grid), conditions, grid)
    roll(network, conditions, chunks=2, grid=grid)
    assert network.bank.prefills == 4


def test_dense_mode_freezes_nothing_and_draws_the_same_numbers(conditions):
    """Sink noise is frozen with the bank and fresh without it; the current latents start from the same noise."""
    seen = {True: [], False: []}
    for freeze, kept in seen.items():

        def predict(window, latents, step, kept=kept):
            kept.append(latents)
            return torch.zeros(24, len(window.latents), 4, 6), torch.zeros(2, 32, len(window.audio_new))

        roll(predict, conditions, chunks=3, freeze=freeze, grid=TimeGrid.trailing(1))
    frozen, fresh = seen[True], seen[False]
    assert torch.equal(frozen[1].video[:, :3], frozen[2].video[:, :3])
    assert torch.equal(frozen[1].reference[:, :3], frozen[2].reference[:, :3])
    assert not torch.equal(fresh[1].video[:, :3], fresh[2].video[:, :3])
    assert torch.equal(frozen[2].video[:, 3:], fresh[2].video[:, 3:])
    assert torch.equal(frozen[2].picture, frozen[0].picture)
    history = frozen[1].video[:, :3]
    assert 0 < history.std() < 0.01 and frozen[1].audio[:, :, :28].abs().max() == 0  # only pictures and maps are noised


def test_same_seed_same_latents_other_seed_other_latents(full_model, tables_for, conditions):
    grid = TimeGrid.trailing(2)
    first, again, other = (
        roll(Network(full_model, tables_for(grid), conditions, grid), conditions, chunks=3, seed=seed)
        for seed in (5, 5, 6)
    )
    assert all(
        torch.equal(a.video, b.video) and torch.equal(a.audio, b.audio) for a, b in zip(first, again, strict=True)
    )
    assert relative(other[2].video, first[2].video) > 0.1


def test_chain_weights_at_the_usual_scales():
    assert [(b.name, b.weight) for b in chain()] == [("null", -0.5), ("text", -1.5), ("text+map", 3.0)]
    assert [(b.name, b.weight) for b in chain(caption=False)] == [("null", -2.0), ("map", 3.0)]
    assert [b.weight for b in chain(2.0, 2.0)] == [-1.0, 2.0]  # equal scales: ordinary guidance, no text-only call
    assert [b.name for b in chain(1.0, 1.0)] == ["text+map"]


@pytest.mark.parametrize("attention", [PREFIX, DENSE])
def test_chain_equals_the_sum_of_its_branches(full_model, tables_for, conditions, attention):
    grid = TimeGrid.trailing(2)
    branches = chain()
    parts = {
        b.name: Network(full_model, tables_for(grid), conditions, grid, attention=attention, branches=(b,))
        for b in branches
    }
    together = Network(full_model, tables_for(grid), conditions, grid, attention=attention, branches=branches)

    def predict(window, latents, step):
        found = together(window, latents, step)
        sums = [part(window, latents, step) for part in parts.values()]
        for stream in (0, 1):
            torch.testing.assert_close(found[stream], sum(s[stream] for s in sums), atol=1e-5, rtol=1e-5)
        return found

    roll(predict, conditions, chunks=3, freeze=attention == PREFIX)
    assert together.bank.prefills == (6 if attention == PREFIX else 0)


def test_branches_see_what_they_say(full_model, tables_for, conditions):
    """Null: media rows only and no map. Text: no map. Changing what a branch does not see must not change it."""
    grid = TimeGrid.trailing(1)
    window = RELEASE.window_at(0)
    torch.manual_seed(0)
    from streamrender_h3.nodes.sampler.pack import WindowLatents

    latents = WindowLatents(
        conditions.picture, torch.randn(24, 9, 4, 4), torch.randn(24, 9, 4, 6), torch.randn(2, 32, 50)
    )
    other_map = WindowLatents(latents.picture, torch.randn(24, 9, 4, 4), latents.video, latents.audio)
    caption = conditions.text.clone()
    caption[conditions.media_rows :] += 1
    from dataclasses import replace

    for branch in chain():
        results = [
            Network(full_model, tables_for(grid), given, grid, branches=(replace(branch, weight=1.0),))(
                window, shown, 0
            )[0]
            for given, shown in (
                (conditions, latents),
                (conditions, other_map),
                (replace(conditions, text=caption), latents),
            )
        ]
        assert torch.equal(results[0], results[1]) == (not branch.reference)
        assert torch.equal(results[0], results[2]) == (not branch.caption)


def test_fitting_undoes_guidance():
    """Guided predictions put through the fitting weights give back the unguided one."""
    torch.manual_seed(0)
    null, text, full = torch.randn(3, 7, dtype=torch.float64)
    s0, s1 = 1.5, 3.0
    guided_text = null + s0 * (text - null)
    guided_full = guided_text + s1 * (full - text)
    weights = fitting_weights(s0, s1)
    assert weights == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    recovered = weights[0] * null + weights[1] * guided_text + weights[2] * guided_full
    torch.testing.assert_close(recovered, full)
    by_weights = sum(b.weight * v for b, v in zip(chain(s0, s1), (null, text, full), strict=True))
    torch.testing.assert_close(by_weights, null + s0 * (text - null) + s1 * (full - text))
    assert SINGLE[0].weight == 1.0
