"""The whole training in miniature: every stage, a second call that goes on, files that the loaders read and a render."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from streamrender_h3.nodes.codec import TAE, TAEWidths, decode_clip, load_decoder, load_encoder
from streamrender_h3.nodes.codec.vit import ViTConfig
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.look import Look
from streamrender_h3.nodes.model import H3, H3Config, build_tables, patchify, unpatchify
from streamrender_h3.nodes.palette import clip_from_frames
from streamrender_h3.nodes.sampler import Settings, TimeGrid, render
from streamrender_h3.nodes.sampler.network import Conditions, Network
from streamrender_h3.nodes.sampler.pack import WindowLatents
from streamrender_h3.nodes.schedule import RELEASE
from streamrender_h3.workflows.nano.train import train, vit_path
from streamrender_h3.workflows.nano.train_codec import clip_loss, lean, picture_loss
from streamrender_h3.workflows.nano.train_data import FIRST_SEED, devices, jobs, load_clips
from streamrender_h3.workflows.nano.train_dit import Shares
from streamrender_h3.workflows.nano.train_recipe import Recipe, Stage
from streamrender_h3.workflows.nano.train_windows import (
    Layouts,
    clean,
    modulation,
    prepare_blocks,
    run_bootstrap,
    run_moving,
    run_prefix,
)
from streamrender_h3.workflows.nano.train_windows import Look as TrainingLook
from streamrender_h3.workflows.nano.weights import WeightFiles

for _name in ("torchvision", "torchaudio"):
    try:
        importlib.import_module(_name)
    except (ImportError, OSError, RuntimeError):
        sys.modules[_name] = None  # type: ignore[assignment]

MINI = Recipe(
    size=(64, 96), reference_size=(64, 64), short=6, medium=7, long=8, long_share=3, held_long=1, held_looks=2,
    text_dim=32, tae=TAEWidths(encoder=8, decoder=(8, 8, 8, 8)), vit=ViTConfig(layers=2, hidden=32, heads=2, ffn=32, window=4),
    h3=H3Config(hidden=32, layers=2, refiner_layers=1, heads=2, head_dim=16, ffn=32, text_dim=32, freq_dim=32, time_hidden=16,
                time_dim=8, rope_freqs=2),
    crop=(32, 32), tae_photos=2, tae_maps=1, vit_clips=1, vit_latents=4, clips=2, windows=2, pictures=1, rollouts=2, eval_every=0.0,
)  # fmt: skip
BUDGETS = {"data": 60.0, "tae": 100.0, "vit": 100.0, "dit": 100.0}


def stripes(track, look, frames, size, device="cpu", **_options):
    """Stands in for the renderer, which has tests of its own: moving stripes of all classes, each with one colour."""
    ids = (torch.arange(size[1]) // 8 + torch.tensor(list(frames))[:, None] // 2)[:, None] % 14
    ids = ids.expand(-1, *size).to(torch.uint8).contiguous()
    return ids, (ids[:, None] * torch.tensor([9, 5, 17]).view(1, 3, 1, 1)).to(torch.uint8)


def train_mini(work: Path, out: Path, seconds: float, **options) -> dict:
    shares = Shares(rollouts_from=0.0, own_path_from=0.0, pictures_from=0.0, guidance=0.3)
    call: dict = {"workers": 0, "shares": shares, "most_clips": 4} | options
    with pytest.MonkeyPatch.context() as patch:
        module = "streamrender_h3.workflows.nano.train_data"
        patch.setattr(f"{module}.render", stripes)
        patch.setattr(f"{module}.prompt_for", lambda *_: "A red car drives on a grey road. " * 24)
        return train(work, out, MINI, torch.device("cpu"), seconds=seconds, budgets=BUDGETS, **call)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """The folder of a training that was called twice, and both reports."""
    folder = tmp_path_factory.mktemp("training")
    return folder, [train_mini(folder, folder / "out", seconds, max_steps=3) for seconds in (0.0, 600.0)]


def test_a_call_without_time_stops_cleanly_and_the_next_one_goes_on(trained: tuple[Path, list[dict]]) -> None:
    folder, (first, second) = trained
    assert first["stages"]["tae"]["steps"] == 0 and not first["stages"]["tae"]["done"]
    assert {name: (s["steps"], s["done"]) for name, s in second["stages"].items()} == dict.fromkeys(
        ("tae", "vit", "dit"), (3, True)
    )
    assert json.loads((folder / "out" / "training_report.json").read_text()) == second


def test_a_stage_can_begin_from_finished_weights(trained: tuple[Path, list[dict]], tmp_path: Path) -> None:
    codec = WeightFiles.below(trained[0] / "out").codec
    options = {"folder": tmp_path, "seconds": 1.0, "deadline": 0.0, "lr": 1.0}
    fresh, begun = TAE(MINI.tae), TAE(MINI.tae)
    assert Stage("tae", network=fresh, **options).lr > Stage("tae", network=begun, begin=[codec], **options).lr
    for name, tensor in load_file(codec).items():
        assert torch.equal(begun.state_dict()[name], tensor.float()), name
        assert "bias" in name or not torch.equal(fresh.state_dict()[name], tensor.float()), name


def test_a_training_goes_on_from_finished_weights_with_clips_they_have_not_seen(
    trained: tuple[Path, list[dict]], tmp_path: Path
) -> None:
    folder, (_, before) = trained
    report = train_mini(
        tmp_path / "work", tmp_path / "out", 600.0, max_steps=1, most_clips=3, shares=None, begin=folder / "out"
    )
    assert report["began_from"] == before and all(stage["done"] for stage in report["stages"].values())
    assert min(report["data"]["training_seeds"]) == max(before["data"]["training_seeds"]) + 1
    for name in ("diffusion_models", "vae_approx"):
        for path in sorted((folder / "out" / name).glob("*.safetensors")):
            old, new = load_file(path), load_file(tmp_path / "out" / name / path.name)
            for key, tensor in old.items():
                torch.testing.assert_close(
                    new[key].float(), tensor.float(), atol=0.02, rtol=0.1, msg=f"{path.name} {key}"
                )


def test_a_decoder_may_step_in_time_before_it_upsamples() -> None:
    decoder = TAE(MINI.tae).decoder
    latents = torch.randn(2, 5, 24, 2, 3)
    assert [type(layer) for layer in decoder] != [type(layer) for layer in lean(decoder)]
    torch.testing.assert_close(decode_clip(lean(decoder), latents), decode_clip(decoder, latents))


def test_motion_costs_what_single_frames_do_not_show() -> None:
    true = torch.zeros(1, 4, 3, 16, 16)
    steady, jumping = torch.full_like(true, 0.1), torch.full_like(true, 0.1)
    jumping[:, 1::2] = -0.1
    assert picture_loss(jumping[0], true[0]) == picture_loss(steady[0], true[0])
    assert clip_loss(steady, true) == picture_loss(steady[0], true[0]) < clip_loss(jumping, true)


def test_drawing_processes_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices(torch.device("cuda"), 3) == ["cuda:0", "cuda:1", "cuda:0"]
    assert devices(torch.device("cpu"), 2) == ["cpu", "cpu"]


def test_held_out_seeds_are_never_trained_on(trained: tuple[Path, list[dict]]) -> None:
    facts = trained[1][1]["data"]
    assert facts["held_out_seeds"] and facts["training_seeds"]
    assert max(facts["held_out_seeds"]) < FIRST_SEED <= min(facts["training_seeds"])


def test_every_look_is_held_out_once_and_trained_on() -> None:
    drawn = [job for job, _ in zip(jobs(Recipe()), range(36), strict=False)]
    held, training = [j.look for j in drawn if j.held], [j.look for j in drawn if not j.held]
    assert len(set(held)) == len(held) == 12 and set(training) == set(held)


def test_the_files_load_and_render(trained: tuple[Path, list[dict]]) -> None:
    folder, _ = trained
    files = WeightFiles.below(folder / "out")
    model = load_h3(files.model.with_name("h3_example.safetensors.index.json"), dtype=torch.float32, device="cpu")
    assert replace(model.config, freq_dim=0, time_hidden=0, time_dim=0) == replace(
        MINI.h3, freq_dim=0, time_hidden=0, time_dim=0
    )
    encoder, decoder = load_encoder(files.codec), load_decoder(vit_path(files))
    clips = load_clips(folder / "clips", torch.device("cpu"))
    maps = (clips.map_rgb(clips.maps[:40]) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    clip = clip_from_frames(maps.numpy(), reference_size=MINI.reference_size)
    picture = encoder.encode_picture(clips.photos[0].float() / 255)
    look = Look(text=clips.text[0], tags=clips.tags[0], picture=picture, media_rows=clips.media_rows, prompt="")
    chunks = list(render(clip, look, model, encoder, decoder, Settings(RELEASE, TimeGrid.trailing(2))))
    frames = torch.cat([chunk.frames for chunk in chunks])
    assert frames.shape == (40, 3, *MINI.size) and torch.isfinite(frames).all()


def test_batched_windows_predict_what_the_sampler_predicts() -> None:
    torch.manual_seed(5)
    model = H3(MINI.h3, dtype=torch.float32).requires_grad_(False)
    state, geometry, grid = model.state_dict(), MINI.geometry, TimeGrid.trailing(2)
    tables = build_tables(state.__getitem__, MINI.h3, grid.h3_times(), torch.float32)
    tags = torch.tensor([1, 1, 0, 0, 0, 1, 1])
    text, picture = torch.randn(2, 7, 32), torch.randn(2, 24, 1, 4, 6)
    layouts = Layouts(model, geometry, tags, 5)
    first, latents = RELEASE.window_at(0), len(RELEASE.window_at(0).latents)
    video, maps, sound = torch.randn(2, 24, latents, 4, 6), torch.randn(2, 24, latents, 4, 4), torch.randn(2, 2, 32, 50)
    windows = RELEASE.window_at(1), RELEASE.window_at(5)
    later = torch.randn(2, 24, 8, 4, 6), torch.randn(2, 24, 8, 4, 4), torch.randn(2, 2, 32, 43)
    later[0][1, :, :3], later[1][1, :, :3] = later[0][0, :, :3], later[1][0, :, :3]  # two windows of one clip
    later[2][:, :, :, :15] = 0

    expected = []
    for row in range(2):
        network = Network(model, tables, Conditions(text[row], tags, 5, picture[row], geometry), grid)
        expected.append(network(first, WindowLatents(picture[row], maps[row], video[row], sound[row]), 1)[0])
        if row == 0:
            expected += [
                network(w, WindowLatents(picture[0], later[1][i], later[0][i], later[2][i]), 1)[0]
                for i, w in enumerate(windows)
            ]

    prepare_blocks([model], compile=False)
    at, look = modulation(model, grid.video[1], grid.audio[1]), TrainingLook(model.refine_text(text), picture)
    velocity, _ = run_bootstrap(model, layouts.get(7, 0), look, maps, video, sound, at)
    x0 = unpatchify(clean(patchify(video), velocity, grid.video[1]), latents, 4, 6)
    torch.testing.assert_close(x0, torch.stack([expected[0], expected[3]]), atol=2e-5, rtol=1e-4)
    one = TrainingLook(look.text[:1], picture[:1])
    bank = run_prefix(model, layouts.get(7, 1), one, later[1][:1, :, :3], later[0][:1, :, :3], at)
    pair = [layouts.get(7, window.index) for window in windows]
    velocity, _ = run_moving(model, pair, bank, later[1][:, :, 3:], later[0][:, :, 3:], later[2][:, :, :, 15:], at)
    x0 = unpatchify(clean(patchify(later[0][:, :, -3:]), velocity, grid.video[1]), 3, 4, 6)
    torch.testing.assert_close(x0, torch.stack(expected[1:3]), atol=2e-5, rtol=1e-4)
