"""A long clip: every segment starts from the last frame of the one before, and nothing but that and the noise is carried over."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import clip_oracle
from recompute_network import Network
from small_render import SIZE, look_of, moving_clip
from streamrender_h3.nodes.codec import load_decoder, load_encoder
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.look import encode_picture, with_picture_latent
from streamrender_h3.nodes.sampler import NonFiniteError, picture_noise
from streamrender_h3.nodes.sampler.clip_plan import ClipPlan
from streamrender_h3.nodes.sampler.clip_recipes import FAST_V1
from streamrender_h3.nodes.sampler.clip_render import ClipInputs, ClipSettings, render_clip
from streamrender_h3.workflows.nano.weights import TEXT_DIM, write_weights
from test_independent_recompute import sensitive

FRAMES, SEED = 50, 5  # three segments of 22: frames 0-21, 22-42, 43-49


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segments")
    files = write_weights(folder / "weights", seed=6)
    path = sensitive(files.model, folder / "h3.safetensors")
    model = load_h3(path, dtype=torch.float32, device="cpu")
    encoder, decoder = load_encoder(files.codec), load_decoder(files.codec)
    return ClipInputs(look_of(2, TEXT_DIM), model, decoder, moving_clip(FRAMES), encoder), Network(path)


@pytest.fixture(scope="module")
def settings():
    return ClipSettings(FAST_V1, ClipPlan.of(FRAMES, 22), SEED)


@pytest.fixture(scope="module")
def rendered(world, settings):
    return list(render_clip(world[0], settings))


def of_segment(rendered, settings, number, name, dim):
    indices = [chunk.index for chunk in settings.plan.chunks if chunk.segment.index == number]
    return torch.cat([getattr(rendered[index], name) for index in indices], dim=dim)


def test_every_segment_equals_a_clip_of_its_own_from_the_last_frame(world, settings, rendered):
    inputs, network = world
    maps = list(inputs.clip.reference_frames())
    picture = with_picture_latent(inputs.look, inputs.encoder).picture
    hum = picture_noise(SEED, tuple(picture.shape))
    g = torch.Generator().manual_seed(SEED)
    assert len(settings.plan.segments) == 3
    for segment in settings.plan.segments:
        noise = [torch.randn(shape, generator=g) for shape in ((24, 7, 4, 6), (2, 32, 37), (24, 7, 4, 4))]
        own = [maps[min(FRAMES - 1, segment.start + k)] for k in range(22)]
        stream = inputs.encoder.stream()
        with torch.inference_mode():
            reference = torch.cat([stream.push(frame[None]) for frame in own], dim=1).float()
        video, audio = clip_oracle.sample(
            network,
            FAST_V1.name,
            inputs.look.text,
            inputs.look.tags,
            *noise[:2],
            picture=0.999 * picture + 0.001 * hum,
            reference=0.999 * reference + 0.001 * noise[2],
        )
        found = (
            of_segment(rendered, settings, segment.index, "video", 1),
            of_segment(rendered, settings, segment.index, "audio", 2),
        )
        for ours, theirs in zip(found, (video, audio), strict=True):
            assert ((ours - theirs).norm() / theirs.norm()).item() <= 1e-5
        stream = inputs.decoder.stream()
        with torch.inference_mode():
            frames = torch.cat([stream.push(found[0]), stream.flush()]).float()
        assert len(frames) == 22
        shown = frames[segment.shown.start - segment.start : segment.stop - segment.start]
        assert torch.equal(of_segment(rendered, settings, segment.index, "frames", 0), shown)
        last = (frames[-1].clamp(0, 1) * 255).round().byte().permute(1, 2, 0)
        picture = encode_picture(inputs.encoder, last)


def test_the_clip_has_all_its_frames_and_maps_in_order(world, settings, rendered):
    assert sum(len(chunk.frames) for chunk in rendered) == FRAMES
    maps = torch.cat([chunk.maps for chunk in rendered])
    wanted = torch.stack([(frame * 255).round().byte() for frame in world[0].clip.reference_frames()])
    assert torch.equal(maps, wanted)
    assert [chunk.index for chunk in rendered] == list(range(rendered[0].total))
    assert all(chunk.frames.shape[1:] == (3, *SIZE) for chunk in rendered)


def test_the_time_of_a_segment_is_told_in_equal_parts(rendered):
    assert len({len(chunk.step_ms) for chunk in rendered}) == 1 and len(rendered[0].step_ms) == 4
    assert all(chunk.encode_ms > 0 and chunk.decode_ms > 0 for chunk in rendered)


def test_steps_are_told_with_the_chunk_they_are_for(world, settings):
    heard = []
    list(render_clip(world[0], settings, on_step=lambda chunk, step: heard.append((chunk, step))))
    firsts = [next(c.index for c in settings.plan.chunks if c.segment.index == n) for n in range(3)]
    assert heard == [(first, step) for first in firsts for step in range(4)]


def test_values_that_are_no_numbers_stop_the_render_where_they_appear(world, settings, monkeypatch):
    inputs = world[0]
    broken = replace(inputs.look, text=inputs.look.text.clone())
    broken.text[3, 1] = torch.nan
    with pytest.raises(NonFiniteError, match="text states"):
        next(render_clip(replace(inputs, look=broken), settings))


def test_a_clip_is_decoded_as_it_is_taken_and_not_before(world, settings, monkeypatch):
    """After the last step memory is constant: every chunk is decoded when it is asked for."""
    from streamrender_h3.nodes.sampler import clip_render

    original, decoded = clip_render.decode_chunk, []
    monkeypatch.setattr(clip_render, "decode_chunk", lambda *a, **k: decoded.append(1) or original(*a, **k))
    for number, chunk in enumerate(render_clip(world[0], settings), 1):
        assert len(decoded) == number and len(chunk.frames) <= 17
