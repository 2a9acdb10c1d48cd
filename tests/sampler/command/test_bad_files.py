"""Bad files on the real command line: one line that names the input and the remedy, before any model runs, exit code 2."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from command_inputs import FRAMES, rewritten, write_clip, write_picture, write_sound
from streamrender_h3.nodes.preview import playable_frames
from streamrender_h3.workflows.nano.weights import TINY, write_weights


def test_the_good_inputs_are_good(command, forwards):
    code, error = command.run()
    assert (code, error) == (0, "")
    assert playable_frames(command.out) == FRAMES
    assert set(forwards) == {"text encoder", "video encoder", "decoder", "transformer"}  # the guard can fail


# ------------------------------------------------------------------------------------------------------------ the clip


def test_clip_that_is_an_empty_file(refused, tmp_path):
    path = tmp_path / "empty.mp4"
    path.write_bytes(b"")
    refused(f"'{path}' could not be read", "export it again", clip=path)


def test_clip_that_is_no_video(refused, tmp_path):
    path = tmp_path / "junk.mp4"
    path.write_bytes(b"\1\2\3" * 500)
    refused(f"'{path}' could not be read", "export it again", clip=path)


def test_clip_without_a_video_stream(refused, tmp_path):
    path = write_sound(tmp_path / "sound.mp4")
    refused(f"'{path}' has no video stream (it holds audio)", "Choose another file", clip=path)


def test_clip_that_is_cut(refused, tmp_path, inputs):
    path = tmp_path / "cut.mp4"
    path.write_bytes((inputs.folder / "clip.mp4").read_bytes()[:-400])
    refused(str(path), "again", clip=path)


def test_clip_too_small_to_read(refused, tmp_path):
    path = write_clip(tmp_path / "small.mp4", 2, (60, 64))
    refused(str(path), "64x60", "at least 64", clip=path)


def test_clip_folder_without_images(refused, tmp_path):
    (tmp_path / "frames").mkdir()
    refused("holds no images", "Choose the folder", clip=tmp_path / "frames")


# ------------------------------------------------------------------------------------------------------- missing files


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("clip", "Check the path"),
        ("picture", "Check the path"),
        ("prompt_file", "name a text file"),
        ("text_encoder", "Check the path"),
        ("model", "Check the path"),
        ("encoder", "Check the path"),
        ("decoder", "Check the path"),
        ("palette", "give the full path of a palette file"),
    ],
)
def test_a_file_that_is_not_there(refused, tmp_path, name, remedy):
    path = tmp_path / "absent.safetensors"
    refused(str(path), remedy, **{name: path})


@pytest.mark.parametrize("name", ["picture", "prompt_file", "text_encoder", "model", "encoder", "decoder", "palette"])
def test_a_folder_where_a_file_is_needed(refused, tmp_path, name):
    (tmp_path / "folder").mkdir()
    refused(str(tmp_path / "folder"), **{name: tmp_path / "folder"})


# ----------------------------------------------------------------------------------------- picture, prompt and palette


def test_picture_that_is_no_picture(refused, tmp_path):
    path = tmp_path / "picture.png"
    path.write_text("no picture")
    refused(f"{path} could not be read", "Save it again as PNG", picture=path)


def test_a_picture_of_wrong_aspect_is_stretched_and_that_is_said(command, tmp_path):
    code, error = command.run(picture=write_picture(tmp_path / "square.png", (64, 64)))
    assert code == 0, error
    assert "picture stretched from 64x64 to 96x64 (LANCZOS, nothing cropped)" in command.printed
    assert "50 % too wide. Crop it to 96:64 first" in command.printed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ("is empty", "write the prompt into it")),
        (b" \n\t\n", ("is empty", "write the prompt into it")),
        ("caf\u00e9".encode("latin-1"), ("is not UTF-8", "byte 4", "save it again as UTF-8")),
    ],
)
def test_prompt_file_without_text(refused, tmp_path, content, words):
    path = tmp_path / "prompt.txt"
    path.write_bytes(content)
    refused(str(path), *words, prompt_file=path)


def test_palette_that_is_unknown(refused):
    refused("Palette 'rallye' was not found", "racing", "Choose a built-in name", palette="rallye")


@pytest.mark.parametrize(
    "content", ["junk", "[1, 2]", '{"road": [300, 0, 0], "sky": [0, 0, 0]}', '{"road": [9, 9, 9]}']
)
def test_palette_file_that_is_wrong(refused, tmp_path, content):
    path = tmp_path / "palette.json"
    path.write_text(content)
    refused(str(path), palette=path)


# --------------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(("which", "kind"), [("codec", "TAE"), ("text_encoder", "Qwen3-VL")])
def test_model_that_is_something_else(refused, inputs, which, kind):
    path = getattr(inputs.weights, which)
    refused(str(path), f"it is a {kind} file", "pick the H3 transformer", model=path)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_codec_that_is_something_else(refused, inputs, name):
    refused(inputs.weights.model.name, "no video codec of MiniMax-H3", "Use taeh3", **{name: inputs.weights.model})


def test_text_encoder_that_is_something_else(refused, tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    refused(str(folder), "'llama'", "Choose the text_encoder folder", text_encoder=folder)


@pytest.mark.parametrize("damage", ["cut", "corrupt"])
@pytest.mark.parametrize("name", ["model", "encoder", "decoder"])
def test_damaged_safetensors(refused, tmp_path, inputs, name, damage):
    raw = (inputs.weights.model if name == "model" else inputs.weights.codec).read_bytes()
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(raw[:-10] if damage == "cut" else raw[:9] + b"!" + raw[10:])
    refused(path.name, "ownload", "again", **{name: path})


def test_damaged_text_encoder(refused, tmp_path, inputs):
    folder = tmp_path / "qwen"
    folder.mkdir()
    for file in inputs.weights.text_encoder.iterdir():
        raw = file.read_bytes()
        (folder / file.name).write_bytes(raw[:-10] if file.suffix == ".safetensors" else raw)
    refused(str(folder), "could not be read", "Copy it again", text_encoder=folder)


def test_model_with_a_block_too_few_in_the_middle(refused, tmp_path, inputs):
    def drop(state: dict[str, torch.Tensor]) -> None:
        for name in [name for name in state if name.startswith("dit.blocks.1.")]:
            del state[name]

    path = rewritten(inputs.weights.model, tmp_path / "m.safetensors", drop)
    refused(str(path), "no number 1", model=path)


def test_model_with_a_missing_tensor(refused, tmp_path, inputs):
    name = "dit.blocks.1.mlp.fc2.weight"
    path = rewritten(inputs.weights.model, tmp_path / "m.safetensors", lambda state: state.pop(name))
    refused(str(path), name, model=path)


def test_model_of_another_text_width(refused, tmp_path):
    """The text encoder has to run to know its width here; the transformer does not."""
    other = write_weights(tmp_path / "other", 1, replace(TINY, text_dim=80)).model
    refused("96 wide", "text_dim 80", "Encode the prompt", ran=("text encoder",), model=other)
