"""The shipped example weights: they load through the ordinary loaders and paint what the map says."""

from __future__ import annotations

import json

import pytest
import torch
from streamrender_h3.nodes.codec import load_decoder, load_encoder
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.look import encode_text, load_picture, make_look, prepare_picture
from streamrender_h3.nodes.palette import RACING, clip_from_video, resize_labels
from streamrender_h3.nodes.sampler import Settings, TimeGrid, render
from streamrender_h3.nodes.schedule import RELEASE
from streamrender_h3.workflows.nano.measures import edge_agreement

SIZE, REFERENCE_SIZE = (256, 448), (160, 288)
FRAMES = 30  # the bootstrap


@pytest.fixture(scope="module")
def assets(repository):
    return repository / "workflows" / "assets"


@pytest.fixture(scope="module")
def opening(assets):
    """Class ids [30, 256, 448] of the example clip and the pictures [30, 3, 256, 448] made from them."""
    clip = clip_from_video(assets / "semantic_clip_lossless.mp4", RACING, REFERENCE_SIZE)
    model = load_h3(sorted((assets / "diffusion_models").glob("*.safetensors"))[0], dtype=torch.float32, device="cpu")
    codec = assets / "vae_approx" / "taeh3_example.safetensors"
    rgb = prepare_picture(load_picture(assets / "picture.jpg"), SIZE).rgb
    prompt = (assets / "prompt.txt").read_text(encoding="utf-8")
    states = encode_text(assets / "text_encoders" / "qwen3vl_example", prompt, rgb, dtype=torch.float32)
    look = make_look(states, rgb=torch.from_numpy(rgb.copy()), prompt=prompt)
    settings = Settings(RELEASE, TimeGrid.trailing(2))
    chunk = next(render(clip, look, model, load_encoder(codec), load_decoder(codec), settings))
    ids = [resize_labels(labels, SIZE) for labels, _ in zip(clip.open(), range(FRAMES), strict=False)]
    return torch.stack([torch.from_numpy(frame) for frame in ids]), chunk.frames, look


def test_it_follows_its_own_map_better_than_a_mirrored_one(opening):
    ids, frames, _ = opening
    assert frames.shape == (FRAMES, 3, *SIZE) and torch.isfinite(frames).all()
    assert edge_agreement(frames, ids) > 1.3 * edge_agreement(frames, ids.flip(2))


def test_it_keeps_the_colours_of_the_picture(opening):
    """Mean colour of the first second within 12 grey levels of the reference picture."""
    _, frames, look = opening
    picture = look.rgb.float().permute(2, 0, 1) / 255
    assert ((frames.mean((0, 2, 3)) - picture.mean((1, 2))).abs() * 255).max() < 12


def test_the_files_say_what_they_are_and_stay_small(assets):
    files = [path for path in assets.rglob("*.safetensors") if path.is_file()]
    assert max(path.stat().st_size for path in files) < 16e6
    assert sum(path.stat().st_size for path in files) < 60e6
    report = json.loads((assets / "training_report.json").read_text(encoding="utf-8"))
    assert report["model"] == "example model, procedural world"
    held, trained = set(report["data"]["held_out_seeds"]), set(report["data"]["training_seeds"])
    assert held and trained and not held & trained
