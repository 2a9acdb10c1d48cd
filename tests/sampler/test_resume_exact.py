"""A render that goes on from its journalled state is the undisturbed render, bit for bit on the CPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from streamrender_h3.nodes.codec import CausalViT, ViTConfig, ViTDecoder
from streamrender_h3.nodes.sampler import DENSE, TimeGrid, chain, render
from streamrender_h3.nodes.sampler.looks import add_change
from streamrender_h3.nodes.sampler.render import Resume
from streamrender_h3.nodes.sampler.replay import decoder_at, replay_start
from streamrender_h3.nodes.sampler.state import RolloutState
from streamrender_h3.nodes.schedule import TEACHER
from streamrender_h3.workflows.nano.weights import randomise

sys.path.insert(0, str(Path(__file__).parent))
from small_render import BASE, look_of, moving_clip


@pytest.fixture(scope="module")
def vit():
    """A causal ViT with random weights, three layers deep: its memory reaches 18 latents back."""
    config = ViTConfig(hidden=32, heads=4, layers=3, ffn=64)
    network = CausalViT(config)
    randomise(network, torch.Generator().manual_seed(2), 0.2)
    return network


def undisturbed(tiny_parts, look, settings, frames):
    model, encoder, decoder = tiny_parts
    return list(render(moving_clip(frames), look, model, encoder, decoder, settings))


def continued_from(tiny_parts, look, settings, frames, made):
    """The rest of the render after the chunks `made`, from nothing but what a journal stores of them."""
    model, encoder, decoder = tiny_parts
    state = RolloutState.from_tensors(made[-1].state.tensors())
    latents = torch.cat([chunk.video for chunk in made], dim=1)
    resume = Resume(state, latents, sum(len(chunk.frames) for chunk in made))
    return render(moving_clip(frames), look, model, encoder, decoder, settings, resume=resume)


def assert_equal(expected, made):
    assert expected.index == made.index and expected.total == made.total
    for name in ("video", "audio", "reference", "frames", "maps"):
        assert torch.equal(getattr(expected, name), getattr(made, name)), (expected.index, name)


@pytest.mark.parametrize("after", [1, 2, 5])
def test_the_rest_of_a_render_does_not_depend_on_an_interruption(tiny_parts, after):
    look = look_of(0, tiny_parts[0].config.text_dim)
    whole = undisturbed(tiny_parts, look, BASE, 66)
    rest = list(continued_from(tiny_parts, look, BASE, 66, whole[:after]))
    assert len(rest) == len(whole) - after
    for expected, made in zip(whole[after:], rest, strict=True):
        assert_equal(expected, made)


@pytest.mark.parametrize(
    "settings",
    [
        replace(BASE, attention=DENSE),
        replace(BASE, branches=chain()),
        replace(BASE, schedule=TEACHER, attention=DENSE),
        replace(BASE, grid=TimeGrid.trailing(1)),
    ],
    ids=["dense", "chain", "teacher", "one step"],
)
def test_that_holds_for_every_way_of_rendering(tiny_parts, settings):
    look = look_of(0, tiny_parts[0].config.text_dim)
    whole = undisturbed(tiny_parts, look, settings, 56)
    for after in (1, len(whole) - 1):
        for expected, made in zip(
            whole[after:], continued_from(tiny_parts, look, settings, 56, whole[:after]), strict=True
        ):
            assert_equal(expected, made)


def test_that_holds_before_at_and_after_a_look_change(tiny_parts):
    width = tiny_parts[0].config.text_dim
    looks = add_change(look_of(0, width), look_of(1, width, rows=12), 2.0)
    whole = undisturbed(tiny_parts, looks, BASE, 80)
    single = undisturbed(tiny_parts, look_of(0, width), BASE, 80)
    changed = [not torch.equal(a.video, b.video) for a, b in zip(whole, single, strict=True)]
    assert changed == [False] * 3 + [True] * 4  # 2 s is frame 48, nearest to the border before frame 47
    assert whole[2].prefills == 2 and whole[3].prefills == 4  # one bank per step, built again
    for after in (2, 3, 4):
        made = next(continued_from(tiny_parts, looks, BASE, 80, whole[:after]))
        assert_equal(whole[after], made)


def test_a_finished_render_has_no_chunk_left(tiny_parts):
    look = look_of(0, tiny_parts[0].config.text_dim)
    whole = undisturbed(tiny_parts, look, BASE, 40)
    assert list(continued_from(tiny_parts, look, BASE, 40, whole)) == []


@pytest.mark.parametrize("mode", ["pair", "early_single", "early_pair"])
@pytest.mark.parametrize("done", [1, 2, 9, 30, 31, 49, 78])
def test_the_causal_vit_is_rebuilt_from_what_it_can_still_see(vit, mode, done):
    """Bit for bit, also in the modes that show a lone latent early, although only the latents in reach are decoded again."""
    decoder = ViTDecoder(vit, mode=mode)
    latents = torch.randn(24, done + 7, 4, 6, generator=torch.Generator().manual_seed(3))
    whole = decoder.stream()
    whole.push(latents[:, :done])
    again = decoder_at(decoder, latents[:, :done])
    for index in range(done, done + 7):
        some = latents[:, index : index + 1]
        assert torch.equal(whole.push(some), again.push(some)), index
    assert torch.equal(whole.flush(), again.flush())


def test_only_what_is_in_reach_is_decoded_again(tiny_parts, vit):
    assert replay_start(tiny_parts[2], 100) == 90 and replay_start(tiny_parts[2], 30) == 0
    deep = ViTDecoder(vit)
    assert deep.reach == 18 and replay_start(deep, 600) == 570


def test_too_short_a_replay_would_be_noticed(vit):
    """The guard of the two tests above: with a smaller reach the rebuilt ring is another one."""

    class Short(ViTDecoder):
        reach = 2

    decoder = Short(vit)
    latents = torch.randn(24, 66, 4, 6, generator=torch.Generator().manual_seed(3))
    whole, again = decoder.stream(), decoder_at(decoder, latents[:, :62])
    whole.push(latents[:, :62])
    assert not torch.equal(whole.push(latents[:, 62:]), again.push(latents[:, 62:]))
