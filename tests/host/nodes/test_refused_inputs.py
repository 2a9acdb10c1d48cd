"""Node classes with bad input: clear errors before anything runs."""

from __future__ import annotations

import json
import logging
from fractions import Fraction

import numpy as np
import pytest
import torch
from node_calls import (
    LOOK,
    PALETTE_ENCODE,
    PICTURE,
    SIZE,
    class_frames,
    conditioning,
    refused,
)


@pytest.mark.parametrize(
    ("node", "name", "folder"),
    [
        ("LoadModel", "model_name", "diffusion_models"),
        ("LoadEncoder", "encoder_name", "vae_approx"),
        ("LoadDecoder", "decoder_name", "vae_approx"),
    ],
)
def test_a_model_file_that_is_gone_is_named_with_its_folder(host, node, name, folder):
    order = {"qkv_order": "auto"} if node == "LoadModel" else {}
    values = {name: "gone.safetensors", "dtype": "auto", **order}
    refused(host, node, "'gone.safetensors'", folder, "refresh the page", kind=FileNotFoundError, **values)


def test_unknown_choices_of_the_loaders_are_named(host):
    model, codec = host.weights.model.name, host.weights.codec.name
    refused(host, "LoadModel", "'fp8'", "choose dtype from", model_name=model, dtype="fp8", qkv_order="auto")
    refused(host, "LoadModel", "'mixed'", "qkv_order from", model_name=model, dtype="auto", qkv_order="mixed")
    refused(host, "LoadEncoder", "Load H3 Encoder", "'fp8'", "choose one of", encoder_name=codec, dtype="fp8")
    refused(host, "LoadDecoder", "Load H3 Decoder", "'fp8'", "choose one of", decoder_name=codec, dtype="fp8")


def test_files_of_another_kind_are_refused(host):
    model, codec = host.weights.model, host.weights.codec
    (host.base / "models" / "vae_approx" / "h3.safetensors").write_bytes(model.read_bytes())
    (host.base / "models" / "diffusion_models" / "tae.safetensors").write_bytes(codec.read_bytes())
    refused(host, "LoadModel", "TAE", "Load H3 Encoder", model_name="tae.safetensors", dtype="auto", qkv_order="auto")
    refused(host, "LoadEncoder", "no video codec of MiniMax-H3", encoder_name="h3.safetensors", dtype="auto")
    refused(host, "LoadDecoder", "no video codec of MiniMax-H3", decoder_name="h3.safetensors", dtype="auto")


def test_exactly_one_of_video_and_images_is_taken(host):
    refused(host, "SemanticPaletteEncode", "neither 'video' nor 'images' is", "exactly one", **PALETTE_ENCODE)
    both = {"video": object(), "images": class_frames(1)}
    refused(host, "SemanticPaletteEncode", "both 'video' and 'images' are", "exactly one", **PALETTE_ENCODE, **both)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"palette": "rallye"}, ("'rallye'", "Choose a built-in name")),
        ({"reference_width": 100}, ("100x64", "multiples of 32", "Set it to")),
        ({"reference_height": 32}, ("64x32", "at least 64", "Set it to")),
        ({"fps": -1.0}, ("frame rate is -1.0", "Set fps to 24")),
        ({"images": class_frames(0)}, ("holds no frames", "Connect a clip that is not empty")),
        ({"images": class_frames(2, (64, 60))}, ("60x64", "at least 64")),
    ],
)
def test_a_clip_that_cannot_be_read_is_refused(host, changes, words):
    refused(host, "SemanticPaletteEncode", *words, **{**PALETTE_ENCODE, "images": class_frames(2), **changes})


def test_video_files_that_cannot_be_read_are_refused(host, tmp_path):
    from comfy_api.latest import InputImpl

    (tmp_path / "junk.mp4").write_bytes(b"\1\2\3" * 500)
    for name in ("junk.mp4", "absent.mp4"):
        video = InputImpl.VideoFromFile(str(tmp_path / name))
        refused(host, "SemanticPaletteEncode", name, **PALETTE_ENCODE, video=video)


def test_a_video_made_of_frames_keeps_its_labels_and_its_clock(host):
    from comfy_api.latest import InputImpl, Types

    parts = Types.VideoComponents(images=class_frames(10), audio=None, frame_rate=Fraction(12))
    video = InputImpl.VideoFromComponents(parts)
    clip, legend, report, _ = host.run("SemanticPaletteEncode", **PALETTE_ENCODE, video=video)
    assert clip.frames == 20 and "20 frames, 1 chunks" in report  # 12 fps becomes 24
    first = next(clip.open())
    assert {int(k) for k in np.unique(first)} == {1, 11, 12} and legend.shape[-1] == 3


def test_a_look_needs_a_text_source(host):
    refused(host, "Look", "no text source", "connect 'clip' or 'positive'", **LOOK)
    values = {**LOOK, "text_encoder": "gone"}
    refused(host, "Look", "'gone'", "text_encoders", "config.json", kind=FileNotFoundError, **values)


def test_an_empty_prompt_is_refused(host):
    refused(host, "Look", "prompt is empty", **{**LOOK, "prompt": " ", "text_encoder": host.weights.text_encoder.name})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 100}, ("output size 100x64", "multiples of 32", "Use for example")),
        ({"height": 32}, ("output size 96x32", "at least 64", "Use for example")),
        ({"picture": torch.zeros(2, *SIZE, 3)}, ("holds 2 images", "exactly one", "Image From Batch")),
        ({"picture": torch.zeros(1, *SIZE)}, ("shape", "Connect an IMAGE output")),
    ],
)
def test_a_picture_that_does_not_fit_is_refused(host, changes, words):
    refused(host, "Look", *words, **{**LOOK, "positive": conditioning(), **changes})


def test_a_picture_of_wrong_aspect_is_stretched_and_that_is_logged(host, caplog):
    with caplog.at_level(logging.INFO, "streamrender_h3"):
        look, picture = host.run("Look", **{**LOOK, "picture": torch.zeros(1, 64, 64, 3)}, positive=conditioning())
    assert look.size == SIZE and picture.shape == (1, *SIZE, 3)
    assert "stretched from 64x64 to 96x64" in caplog.text and "50 % too wide" in caplog.text


@pytest.mark.parametrize(
    ("positive", "words"),
    [
        (conditioning(minimax_keyframes=[object()]), ("keyframes", "ref_image_0")),
        (conditioning(minimax_refs=[{"kind": "video"}]), ("video reference", "Semantic Palette Encode")),
        (
            conditioning(minimax_refs=[{"kind": "video_audio"}]),
            ("video and audio reference", "Semantic Palette Encode"),
        ),
        (conditioning(minimax_refs=[{"kind": "image"}] * 2), ("2 reference pictures", "only ref_image_0")),
        (conditioning() * 2, ("2 entries", "exactly one")),
        ([], ("0 entries", "exactly one")),
        (conditioning(minimax_token_tags=torch.ones(3, dtype=torch.long)), ("3 modality tags for 9 text rows",)),
        (conditioning(minimax_token_tags=torch.full((9,), 2)), ("[2]", "Encode the prompt again")),
        ([[torch.zeros(2, 9, 96), {}]], ("a batch of one", "Encode a single prompt")),
    ],
)
def test_conditioning_that_does_not_fit_is_refused(host, positive, words):
    refused(host, "Look", *words, **LOOK, positive=positive)


def test_a_clip_of_another_type_is_refused(host):
    class OtherClip:
        def tokenize(self, text: str) -> None: ...

    refused(host, "Look", "does not take pictures", "type to 'minimax'", **LOOK, clip=OtherClip())


LOOKS = {"looks": [{"name": "noon", "prompt": "high sun"}]}


@pytest.mark.parametrize(
    ("looks", "changes", "words"),
    [
        (LOOKS, {"folder": "none"}, ("folder", "none does not exist")),
        (LOOKS, {"pattern": "*.mov"}, ("no clip that fits '*.mov'",)),
        (LOOKS, {"seeds": " "}, ("seeds is ' '", "at least one number")),
        (LOOKS, {"seeds": "one"}, ("the seed 'one'",)),
        (LOOKS, {}, ("look 'noon' has no picture", "connect 'picture'")),
        ({"looks": [{"name": "noon"}]}, {}, ("look 'noon' has no prompt", "connect 'prompt'")),
        ({"looks": [{"name": "noon", "picture": "none.png"}]}, {}, ("none.png, which is not there",)),
    ],
)
def test_a_list_that_cannot_be_made_is_refused_as_a_whole(host, looks, changes, words):
    folder = host.base / "input" / "clips"
    folder.mkdir(exist_ok=True)
    (folder / "bend.mp4").write_bytes(b"x")
    (folder / "looks.json").write_text(json.dumps(looks))
    values = {"folder": "clips", "pattern": "*", "looks": "clips/looks.json", "seeds": "1", **changes}
    refused(host, "ClipList", *words, **values)


def test_a_list_has_an_entry_per_clip_look_and_seed_and_takes_what_looks_leave_out_from_its_inputs(host):
    folder = host.base / "input" / "clips"
    folder.mkdir(exist_ok=True)
    (folder / "bend.mp4").write_bytes(b"x")
    (folder / "looks.json").write_text(json.dumps({"looks": [{"name": "noon"}, {"name": "dusk", "prompt": "low sun"}]}))
    values = {"folder": "clips", "pattern": "*", "looks": "clips/looks.json", "seeds": "1-2"}
    paths, pictures, prompts, seeds, names = host.run("ClipList", **values, picture=PICTURE, prompt="as given")
    assert paths == [str(folder / "bend.mp4")] * 4 and seeds == [1, 2, 1, 2]
    assert prompts == ["as given"] * 2 + ["low sun"] * 2 and all(picture is PICTURE for picture in pictures)
    assert names == ["bend_noon_1", "bend_noon_2", "bend_dusk_1", "bend_dusk_2"]
