"""The forms of the prefix bank, through the plain modules and through the fast forward: all give the same latents."""

import pytest
import torch
from streamrender_h3.kernels.block_stream import BlockStreamer
from streamrender_h3.kernels.dense_attention import DenseChoice, choose_dense
from streamrender_h3.nodes.model import Form
from streamrender_h3.nodes.sampler import Network, RenderError, Rollout, Settings, TimeGrid
from streamrender_h3.nodes.sampler.bank import FORMS, SANDWICH, SPLIT, PrefixBank
from streamrender_h3.nodes.sampler.bank_forms import Sandwich, tail_rows
from streamrender_h3.nodes.sampler.render import check_settings
from streamrender_h3.nodes.schedule import RELEASE

CHUNKS = 7  # bootstrap and one cycle of the six layouts


@pytest.fixture
def attention():
    return choose_dense(torch.device("cpu"), torch.float32, 32, "sdpa")


@pytest.fixture
def roll(full_model, tables_for, conditions):
    def roll(form=SPLIT, attention=None, chunks=CHUNKS):
        grid, bank = TimeGrid.trailing(2), PrefixBank(form)
        network = Network(
            full_model,
            tables_for(grid),
            conditions,
            grid,
            bank=bank,
            form=attention if isinstance(attention, Form) else attention and Form(attention),
        )
        rollout = Rollout(RELEASE, grid, network, conditions.picture, audio_channels=32, seed=3, freeze_sink=True)
        generator = torch.Generator().manual_seed(9)
        height, width = conditions.geometry.reference
        return [
            rollout.step(torch.randn(24, len(rollout.next_window.latents), height, width, generator=generator))
            for _ in range(chunks)
        ]

    return roll


def worst(found, expected):
    pairs = [(a.video, b.video) for a, b in zip(found, expected, strict=True)]
    pairs += [(a.audio, b.audio) for a, b in zip(found, expected, strict=True)]
    return max(((a - b).norm() / b.norm()).item() for a, b in pairs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fast", [False, True], ids=["plain modules", "fast forward"])
def test_every_form_gives_the_same_latents(roll, attention, form, fast):
    error = worst(roll(form, attention if fast else None), roll())
    if form == "fp8":
        assert 1e-6 < error < 5e-2
    elif (form, fast) == (SPLIT, False):
        assert error == 0
    else:
        assert error < 2e-6


def test_plain_modules_with_an_attention_of_the_table(roll, attention):
    seen = []

    def watched(q, k, v):
        seen.append(len(k) - len(q))
        return attention.run(q, k, v)

    form = Form(DenseChoice("watched", watched, None), fast=False)
    assert worst(roll(SPLIT, form, chunks=3), roll(chunks=3)) < 2e-6
    assert len(seen) == 3 * (2 + 4 + 2) and max(seen) > 0


def test_a_split_bank_needs_no_log_sum_exp(roll, attention):
    """An attention without one gets bank and moving rows joined."""
    alone = DenseChoice("alone", attention.run, None)
    assert worst(roll(SPLIT, alone, chunks=3), roll(chunks=3)) < 2e-6


def test_the_two_calls_of_a_split_bank_are_merged(roll, attention):
    """A merge that ignored the log-sum-exp would show."""

    def flat(q, k, v):
        out, lse = attention.run_lse(q, k, v)
        return out, torch.zeros_like(lse)

    wrong = DenseChoice("wrong", attention.run, flat)
    assert worst(roll(SPLIT, wrong, chunks=2), roll(chunks=2)) > 1e-4


def test_streamed_blocks_change_nothing_in_the_fast_forward(roll, attention, full_model):
    expected = roll(SANDWICH, attention, chunks=3)
    streamer = BlockStreamer(full_model.blocks, torch.device("cpu"), everything=True)
    try:
        assert len(streamer.streamed) == len(full_model.blocks)
        assert worst(roll(SANDWICH, attention, chunks=3), expected) == 0
    finally:
        streamer.close()


# ---------------------------------------------------------------------------------------------------------- a sandwich


def filled(sandwich, step, layer, prefix):
    """Bank rows that say where they belong."""
    like = torch.empty(prefix, 2, 4)
    for number, room in enumerate(sandwich.own(("a", step), layer, like)):
        room.fill_(100 * step + 10 * layer + number)


def test_both_steps_see_their_bank_beside_their_moving_rows():
    prefix, moving = 5, 7
    sandwich = Sandwich(moving)
    for step in (0, 1):
        for layer in (0, 1):
            filled(sandwich, step, layer, prefix)
    for rows in (moving, moving - 3, tail_rows(moving) + 1, moving):  # fewer, and more than there was room for
        for step in (0, 1):
            for layer in (0, 1):
                like = torch.empty(rows, 2, 4)
                for room in sandwich.tail(("a", step), layer, like):
                    room.fill_(-1)
                ((keys, values),) = sandwich.seen(("a", step), layer, rows)
                for number, seen in enumerate((keys, values)):
                    assert len(seen) == prefix + rows and seen.is_contiguous()
                    assert (seen == -1).sum() == rows * 8
                    assert (seen == 100 * step + 10 * layer + number).sum() == prefix * 8
    assert sandwich.nbytes == 2 * 2 * 2 * prefix * 8 * 4


def test_a_third_step_or_another_length_is_refused():
    sandwich = Sandwich(4)
    filled(sandwich, 0, 0, 5)
    with pytest.raises(RuntimeError, match="two banks of 5 rows; step 2"):
        filled(sandwich, 2, 0, 5)
    with pytest.raises(RuntimeError, match="came with 6 rows"):
        filled(sandwich, 1, 0, 6)


def test_settings_refuse_a_form_that_cannot_be():
    with pytest.raises(RenderError, match="'burger'; choose one of sandwich, split, fp8"):
        check_settings(Settings(RELEASE, TimeGrid.trailing(2), bank="burger"))
    with pytest.raises(RenderError, match="holds two banks, and this render has 4; use split"):
        check_settings(Settings(RELEASE, TimeGrid.trailing(4), bank=SANDWICH))
