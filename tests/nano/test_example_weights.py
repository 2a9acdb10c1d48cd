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
from streamrender_h3.workflows.nano.world import Track, WorldLook, prompt_for
from streamrender_h3.workflows.nano.world import render as draw

SIZE, REFERENCE_SIZE = (256, 448), (160, 288)
FRAMES = 30  # the bootstrap
CLIP_SEED = 1001


@pytest.fixture(scope="module")
def assets(repository):
    return repository / "workflows" / "assets"


@pytest.fixture(scope="module")
def openings(assets):
    """Class ids [30, 256, 448] of the example clip, and by look its picture [3, 256, 448] and the 30 frames made from both."""
    clip = clip_from_video(assets / "semantic_clip_lossless.mp4", RACING, REFERENCE_SIZE)
    model = load_h3(sorted((assets / "diffusion_models").glob("*.safetensors"))[0], dtype=torch.float32, device="cpu")
    codec = assets / "vae_approx" / "taeh3_example.safetensors"
    track, night = Track.from_seed(CLIP_SEED), WorldLook.named("blue hour", CLIP_SEED)
    _, drawn = draw(track, night, [0], SIZE)
    looks = {
        "shipped": (
            prepare_picture(load_picture(assets / "picture.jpg"), SIZE).rgb,
            (assets / "prompt.txt").read_text(encoding="utf-8"),
        ),
        "blue hour": (drawn[0].permute(1, 2, 0).contiguous().numpy(), prompt_for(track, night, range(0, 124, 12))),
    }
    made = {}
    for name, (rgb, prompt) in looks.items():
        states = encode_text(assets / "text_encoders" / "qwen3vl_example", prompt, rgb, dtype=torch.float32)
        look = make_look(states, rgb=torch.from_numpy(rgb.copy()), prompt=prompt)
        settings = Settings(RELEASE, TimeGrid.trailing(2))
        chunk = next(render(clip, look, model, load_encoder(codec), load_decoder(codec), settings))
        made[name] = torch.from_numpy(rgb.copy()).float().permute(2, 0, 1) / 255, chunk.frames
    ids = [resize_labels(labels, SIZE) for labels, _ in zip(clip.open(), range(FRAMES), strict=False)]
    return torch.stack([torch.from_numpy(frame) for frame in ids]), made


@pytest.mark.parametrize("look", ["shipped", "blue hour"])
def test_it_follows_its_own_map_better_than_a_mirrored_one(openings, look):
    ids, made = openings
    _, frames = made[look]
    assert frames.shape == (FRAMES, 3, *SIZE) and torch.isfinite(frames).all()
    assert edge_agreement(frames, ids, ids.flip(2)) > 2 * edge_agreement(frames, ids.flip(2), ids)


@pytest.mark.parametrize("look", ["shipped", "blue hour"])
def test_it_keeps_the_colours_of_its_own_picture(openings, look):
    """Mean colour of the first second within 12 grey levels of its reference picture and far from the other look's."""
    _, made = openings
    off = {
        name: ((made[look][1].mean((0, 2, 3)) - rgb.mean((1, 2))).abs() * 255).max() for name, (rgb, _) in made.items()
    }
    other = next(name for name in off if name != look)
    assert off[look] < 12 and off[other] > 3 * off[look]


def test_the_files_say_what_they_are_and_stay_small(assets):
    files = [path for path in assets.rglob("*.safetensors") if path.is_file()]
    assert max(path.stat().st_size for path in files) < 16e6
    assert sum(path.stat().st_size for path in files) < 60e6
    report = json.loads((assets / "training_report.json").read_text(encoding="utf-8"))
    assert report["model"] == "example model, procedural world"
    held, trained = set(report["data"]["held_out_seeds"]), set(report["data"]["training_seeds"])
    assert held and trained and not held & trained
