"""From a semantic clip to frames with the tiny random checkpoint set: lengths, memory, determinism, refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from streamrender_h3.nodes.codec import load_decoder, load_encoder
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.look import make_look
from streamrender_h3.nodes.look.look import TextStates
from streamrender_h3.nodes.palette import RACING, clip_from_frames
from streamrender_h3.nodes.sampler import DENSE, RenderError, Settings, TimeGrid, check_inputs, render
from streamrender_h3.nodes.sampler.latent_file import LatentFile, native_length
from streamrender_h3.nodes.sampler.memory import bank_bytes
from streamrender_h3.nodes.sampler.report import RenderReport
from streamrender_h3.nodes.schedule import RELEASE, RELEASE_GEOMETRY, Schedule, row_plan
from streamrender_h3.workflows.nano.weights import write_weights

SIZE, MAP_SIZE = (64, 96), (64, 64)


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    files = write_weights(tmp_path_factory.mktemp("weights"), seed=4)
    model = load_h3(files.model, dtype=torch.float32, device="cpu")
    encoder = load_encoder(files.codec, device="cpu", dtype=torch.float32)
    decoder = load_decoder(files.codec, device="cpu", dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    states = TextStates(
        torch.randn(9, model.config.text_dim, generator=generator), torch.tensor([1, 0, 0, 0, 1, 1, 1, 1, 1]), 4
    )
    look = make_look(states, rgb=torch.randint(0, 256, (*SIZE, 3), generator=generator, dtype=torch.uint8))
    return model, encoder, decoder, look


def moving_clip(frames):
    """Road, sky and a car that drives across; made frame by frame, so that nothing but the render can hold frames."""

    def draw():
        for k in range(frames):
            picture = np.empty((*MAP_SIZE, 3), np.uint8)
            picture[:30], picture[30:] = RACING.colours[11], RACING.colours[1]
            picture[40:52, k % 50 : k % 50 + 12] = RACING.colours[12]
            yield picture

    return clip_from_frames(draw, RACING, MAP_SIZE, count=frames)


def settings(**changes):
    return Settings(RELEASE, TimeGrid.trailing(2), **changes)


def run(parts, frames, **changes):
    model, encoder, decoder, look = parts
    return list(render(moving_clip(frames), look, model, encoder, decoder, settings(**changes)))


@pytest.mark.parametrize("frames", [1, 4, 5, 22, 29, 30, 31, 38, 39, 40, 47, 48])
def test_any_length_in_is_the_same_length_out(parts, frames):
    chunks = run(parts, frames)
    assert sum(len(chunk.frames) for chunk in chunks) == frames
    assert len(chunks) == RELEASE.chunks_for(frames)
    assert all(chunk.frames.shape[1:] == (3, *SIZE) for chunk in chunks)
    assert [chunk.video.shape[1] for chunk in chunks] == [9, 3, 2, 3][: len(chunks)]


def test_padding_does_not_change_what_came_before(parts):
    """31 frames and 39 frames make the same two chunks when the clip stands still after frame 31."""
    model, encoder, decoder, look = parts
    still = np.full((*MAP_SIZE, 3), RACING.colours[1], np.uint8)
    short, long = (
        list(
            render(
                clip_from_frames(lambda n=n: iter([still] * n), RACING, MAP_SIZE, count=n),
                look,
                model,
                encoder,
                decoder,
                settings(),
            )
        )
        for n in (31, 39)
    )
    assert torch.equal(short[1].video, long[1].video)
    assert torch.equal(torch.cat([c.frames for c in short]), torch.cat([c.frames for c in long])[:31])


def test_same_inputs_same_video_and_other_seed_another(parts):
    first, again, other = (run(parts, 40, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a.frames, b.frames) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0].video, other[0].video)


def test_the_map_steers_the_result(parts):
    model, encoder, decoder, look = parts
    grass = np.full((*MAP_SIZE, 3), RACING.colours[4], np.uint8)
    flat = clip_from_frames(lambda: iter([grass] * 30), RACING, MAP_SIZE, count=30)
    other = list(render(flat, look, model, encoder, decoder, settings()))
    assert not torch.allclose(run(parts, 30)[0].video, other[0].video, atol=1e-4)


def test_every_step_is_reported_and_may_stop_the_render(parts):
    model, encoder, decoder, look = parts
    seen = []

    def stop_at(chunk, step):
        seen.append((chunk, step))
        if (chunk, step) == (1, 0):
            raise KeyboardInterrupt

    chunks = render(moving_clip(60), look, model, encoder, decoder, settings(), on_step=stop_at)
    assert len(next(chunks).frames) == 30
    with pytest.raises(KeyboardInterrupt):
        next(chunks)
    assert seen == [(0, 0), (0, 1), (1, 0)]


def test_dense_windows_render_schedules_a_bank_cannot(parts):
    model, encoder, decoder, look = parts
    schedule = Schedule(sink=4, window=2, chunk=2, bootstrap=3)
    banked = Settings(schedule, TimeGrid.trailing(1))
    with pytest.raises(RenderError, match="sink is 4 units but the bootstrap makes only 3"):
        list(render(moving_clip(30), look, model, encoder, decoder, banked))
    chunks = list(render(moving_clip(30), look, model, encoder, decoder, replace(banked, attention=DENSE)))
    assert sum(len(c.frames) for c in chunks) == 30


def test_text_of_another_width_is_refused_before_any_forward(parts):
    model, encoder, decoder, look = parts
    narrow = replace(look, text=look.text[:, :64])
    with pytest.raises(ValueError, match="64 wide"):
        check_inputs(moving_clip(5), narrow, model, settings(), encoder, decoder)


def test_nan_text_states_are_refused_before_the_model_runs(parts):
    model, encoder, decoder, look = parts
    poisoned = replace(look, text=torch.full_like(look.text, float("nan")))
    with pytest.raises(RenderError, match="chunk 0: the look's text states hold NaN"):
        list(render(moving_clip(30), poisoned, model, encoder, decoder, settings()))


def test_a_clip_without_frames_is_refused():
    with pytest.raises(ValueError):
        moving_clip(0)


def test_latent_file_is_the_native_pair_on_disk(tmp_path):
    file = LatentFile(tmp_path / "v", tmp_path / "a")
    video, audio = torch.randn(24, 14, 4, 6), torch.randn(2, 32, 79)
    for start, stop in ((0, 9), (9, 12), (12, 14)):
        sound = {0: (0, 50), 9: (50, 65), 12: (65, 79)}[start]
        file.add(video[:, start:stop], audio[:, :, slice(*sound)])
    picture, sound = file.tensors()
    assert native_length(14) == 12 and picture.shape == (1, 24, 12, 4, 6) and sound.shape == (1, 32, 2, 65)
    assert torch.equal(picture[0], video[:, :12])
    assert torch.equal(sound[0], audio[:, :, :65].permute(1, 0, 2))
    file.discard()
    assert not list(tmp_path.iterdir())


def test_report_is_json_with_a_row_per_chunk(parts):
    report = RenderReport(settings(seed=9), 40)
    for chunk in run(parts, 40, seed=9):
        report.add(chunk)
    figures = json.loads(report.as_json("abc"))
    assert figures["frames"] == 40 and figures["seed"] == 9 and figures["prefix_prefills"] == 2
    assert [row["latents"] for row in figures["chunks"]] == [9, 3, 2]
    assert all(len(row["step_ms"]) == 2 for row in figures["chunks"])


def test_bank_bytes_of_the_released_model():
    """Two banks at 1,024 text rows are 16.71 GiB in bf16."""
    from streamrender_h3.nodes.model import RELEASE as RELEASED

    prefix = row_plan(RELEASE.window_at(1), RELEASE_GEOMETRY, 1024).prefix_count
    assert bank_bytes(RELEASED, prefix, 2, 2) / 2**30 == pytest.approx(16.71, abs=0.01)
