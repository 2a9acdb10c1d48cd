"""Whole clips against diffusers' transformer, layouts and scheduler, for every recipe, with text alone and with a clip."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import clip_oracle
from recompute_network import Network
from small_render import SIZE, look_of, moving_clip
from streamrender_h3.nodes.codec import load_decoder, load_encoder
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.look import TextLook, with_picture_latent
from streamrender_h3.nodes.sampler import picture_noise
from streamrender_h3.nodes.sampler.clip_plan import ClipPlan
from streamrender_h3.nodes.sampler.clip_recipes import RECIPES
from streamrender_h3.nodes.sampler.clip_render import ClipInputs, ClipSettings, render_clip
from streamrender_h3.nodes.sampler.guidance import SINGLE, chain
from streamrender_h3.workflows.nano.weights import TEXT_DIM, write_weights
from test_independent_recompute import sensitive

FRAMES, SEED = 20, 11
LIMIT = 1e-5


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(model, encoder, decoder, diffusers' network) of one random checkpoint."""
    folder = tmp_path_factory.mktemp("clip")
    files = write_weights(folder / "weights", seed=6)
    path = sensitive(files.model, folder / "h3.safetensors")
    model = load_h3(path, dtype=torch.float32, device="cpu")
    return model, load_encoder(files.codec), load_decoder(files.codec), Network(path)


def words(rows=8):
    generator = torch.Generator().manual_seed(3)
    return TextLook(torch.randn(rows, TEXT_DIM, generator=generator), torch.ones(rows, dtype=torch.int64), 0, SIZE)


def latents_of(chunks):
    chunks = list(chunks)
    return torch.cat([c.video for c in chunks], dim=1), torch.cat([c.audio for c in chunks], dim=2), chunks


def error(found, wanted):
    assert found.shape == wanted.shape
    return float(((found.double() - wanted.double()).norm() / wanted.double().norm()).detach())


def noised(clean, noise):
    return 0.999 * clean + 0.001 * noise


def inputs_of(world, mode):
    model, encoder, decoder, _ = world
    if mode == "T2VA":
        return ClipInputs(words(), model, decoder)
    return ClipInputs(look_of(2, TEXT_DIM), model, decoder, moving_clip(FRAMES), encoder)


@pytest.mark.parametrize("mode", ["T2VA", "Ref2VA"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_equals_a_loop_over_diffusers(world, recipe, mode, record_property):
    inputs = inputs_of(world, mode)
    settings = ClipSettings(RECIPES[recipe], ClipPlan.of(FRAMES), SEED)
    video, audio, chunks = latents_of(render_clip(inputs, settings))
    assert sum(len(chunk.frames) for chunk in chunks) == FRAMES

    g = torch.Generator().manual_seed(SEED)
    noise = (
        torch.randn(24, 7, 4, 6, generator=g),
        torch.randn(2, 32, 37, generator=g),
    )  # 22 frames: 7 latents, 36.67 sounds
    held = {}
    if mode == "Ref2VA":
        held = conditions(inputs, torch.randn(24, 7, 4, 4, generator=g))
    look = inputs.look
    wanted = clip_oracle.sample(world[3], recipe, look.text, look.tags, *noise, **held)
    found = max(error(video, wanted[0]), error(audio, wanted[1]))
    record_property("relative_error", found)
    assert found <= LIMIT
    assert RECIPES[recipe].steps == len(clip_oracle.schedulers(recipe)[0].timesteps)


def conditions(inputs, noise, start=0):
    """Picture and reference with their noise, encoded here frame by frame."""
    picture = with_picture_latent(inputs.look, inputs.encoder).picture
    stream = inputs.encoder.stream()
    frames = list(inputs.clip.reference_frames())[start:]
    frames += [frames[-1]] * (22 - len(frames))
    with torch.inference_mode():
        reference = torch.cat([stream.push(frame[None]) for frame in frames], dim=1).float()
    return {
        "picture": noised(picture, picture_noise(SEED, tuple(picture.shape))),
        "reference": noised(reference, noise),
    }


@pytest.mark.parametrize(
    "names", [("null", "text", "text+map"), ("null", "text+map")], ids=["three calls", "two calls"]
)
def test_the_guidance_chain_adds_up_calls_with_less_and_less(world, names):
    inputs = inputs_of(world, "Ref2VA")
    scales = (1.5, 3.0) if len(names) == 3 else (2.0, 2.0)
    branches = chain(*scales)
    assert tuple(branch.name for branch in branches) == names
    settings = ClipSettings(RECIPES["turbo LoRA (4 steps)"], ClipPlan.of(FRAMES), SEED, branches)
    video, audio, _ = latents_of(render_clip(inputs, settings))
    g = torch.Generator().manual_seed(SEED)
    noise = torch.randn(24, 7, 4, 6, generator=g), torch.randn(2, 32, 37, generator=g)
    held = conditions(inputs, torch.randn(24, 7, 4, 4, generator=g))
    weights = [(branch.weight, branch.name) for branch in branches]
    look = inputs.look
    wanted = clip_oracle.sample(
        world[3], "turbo LoRA (4 steps)", look.text, look.tags, *noise, weights, look.media_rows, **held
    )
    assert error(video, wanted[0]) <= LIMIT and error(audio, wanted[1]) <= LIMIT
    single = clip_oracle.sample(world[3], "turbo LoRA (4 steps)", look.text, look.tags, *noise, **held)
    assert error(single[0], wanted[0]) > 1e-2
    assert branches != SINGLE
