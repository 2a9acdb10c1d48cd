"""Qwen states: the layer wanted, causal, the same by three routes, from a folder and never from the network."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from streamrender_h3.nodes.look import (
    EXAMPLE,
    EXAMPLE_CLASSES,
    EncoderError,
    QwenEncoder,
    TextStates,
    build_prompt,
    encode_text,
    encoder_identity,
    image_rows,
    load_encoder,
    present,
    qwen,
)
from streamrender_h3.workflows.nano.qwen import write_qwen

PROMPT = build_prompt(EXAMPLE, EXAMPLE_CLASSES)
LAYERS = 4


@pytest.fixture(scope="module")
def encoder(qwen_folder: Path) -> QwenEncoder:
    return load_encoder(qwen_folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def states(encoder: QwenEncoder, picture: np.ndarray) -> TextStates:
    return encoder.encode(PROMPT, picture)


def rms(rows: torch.Tensor) -> float:
    return float(rows.pow(2).mean().sqrt())


def full_model(folder: Path) -> Any:
    """The same weights in the library's own class, untruncated, with the final norm."""
    from transformers import AutoConfig, Qwen3VLModel

    model = Qwen3VLModel(AutoConfig.from_pretrained(folder)).eval()
    weights = load_file(folder / "model.safetensors")
    state = {name.removeprefix("model."): tensor.float() for name, tensor in weights.items()}
    assert not model.load_state_dict(state, strict=False).missing_keys
    return model


def inputs_for(encoder: QwenEncoder, model: Any, prompt: str, picture: np.ndarray) -> dict[str, Any]:
    image = image_rows(picture, encoder.rules)
    shown = present(encoder.tokenize, prompt, image.tokens, encoder.special)
    inputs = {
        "input_ids": shown.ids[None],
        "attention_mask": torch.ones(1, len(shown.ids), dtype=torch.int64),
        "pixel_values": image.rows,
        "image_grid_thw": torch.tensor([image.grid]),
    }
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        inputs["mm_token_type_ids"] = shown.token_types[None]
    return inputs


def test_rows_tags_and_prefix(states: TextStates, encoder: QwenEncoder) -> None:
    words = len(encoder.tokenize(PROMPT))
    assert states.text.shape == (6 + 82 + words, 64) and states.text.dtype == torch.float32
    assert states.tags.tolist() == [1] * 6 + [0] * 82 + [1] * words
    assert states.media_rows == 88
    assert not states.text.requires_grad and not states.text.is_inference()


@pytest.mark.parametrize("kept", [3, 4])
@torch.no_grad()
def test_truncation_hook_and_hidden_states_agree(
    kept: int, qwen_folder: Path, encoder: QwenEncoder, picture: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = full_model(qwen_folder)
    inputs = inputs_for(encoder, model, PROMPT, picture)
    caught: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        caught.append(output[0] if isinstance(output, tuple) else output)

    model.language_model.layers[kept - 1].register_forward_hook(keep)
    output = model(**inputs, use_cache=False, output_hidden_states=True)
    monkeypatch.setattr(qwen, "DECODER_LAYERS", kept)
    truncated = load_encoder(qwen_folder, dtype=torch.float32)
    assert len(truncated.model.language_model.layers) == kept
    ours = truncated.encode(PROMPT, picture).text
    assert torch.equal(ours, caught[0][0])
    if kept < LAYERS:
        assert torch.equal(ours, output.hidden_states[kept][0])
    else:  # the library's last entry is normalised, which is the trap
        assert not torch.allclose(ours, output.last_hidden_state[0], atol=1e-2)


def test_rotary_positions_of_text_image_and_text(encoder: QwenEncoder) -> None:
    model = encoder.model
    inputs = inputs_for(encoder, model, PROMPT, np.zeros((768, 1344, 3), np.uint8))
    known = inspect.signature(model.get_rope_index).parameters
    positions, _ = model.get_rope_index(**{name: value for name, value in inputs.items() if name in known})
    positions = positions[:, 0].T  # [L, 3]
    assert positions[:7].tolist() == [[i, i, i] for i in range(7)]
    assert positions[7].tolist() == [7, 7, 7]
    assert positions[7 + 1007].tolist() == [7, 30, 48]
    assert positions[7 + 1008].tolist() == [49, 49, 49]
    assert positions[-1].tolist() == [49 + len(positions) - 1016] * 3


def test_media_rows_do_not_depend_on_the_prompt(states: TextStates, encoder: QwenEncoder, picture: np.ndarray) -> None:
    other = encoder.encode("snow", picture)
    assert other.media_rows == states.media_rows
    torch.testing.assert_close(other.text[: other.media_rows], states.text[: states.media_rows], rtol=0, atol=1e-5)


def test_random_weights_give_useful_states(
    states: TextStates, encoder: QwenEncoder, picture: np.ndarray, other_picture: np.ndarray
) -> None:
    media = states.media_rows
    per_row = states.text.pow(2).mean(1).sqrt()
    assert per_row.min() > 0.5 and per_row.max() < 2.5
    elsewhere = encoder.encode(PROMPT, other_picture)
    assert rms(elsewhere.text[7:media] - states.text[7:media]) > 0.5
    assert rms(elsewhere.text[media:] - states.text[media:]) > 0.1  # prompt rows have seen the picture
    snowy = encoder.encode(PROMPT.replace("asphalt", "snow"), picture)
    assert rms(snowy.text[-40:] - states.text[-40:]) > 0.01  # the soundscape has read the subjects
    spectrum = torch.linalg.svdvals(states.text[media:] - states.text[media:].mean(0))
    assert spectrum[0] / spectrum[-1] < 30


def test_bfloat16_is_close_to_float32(states: TextStates, qwen_folder: Path, picture: np.ndarray) -> None:
    half = encode_text(qwen_folder, PROMPT, picture, "cpu", torch.bfloat16)
    assert half.text.dtype == torch.bfloat16
    assert (half.text.float() - states.text).norm() / states.text.norm() < 0.03


def test_long_texts_are_warned_about(
    encoder: QwenEncoder, picture: np.ndarray, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qwen, "MANY_ROWS", 90)
    with caplog.at_level(logging.WARNING):
        encoder.encode("a", picture)
        assert not caplog.records
        encoder.encode("a wet road at dusk", picture)
    assert "text rows" in caplog.text


def test_no_connection_is_opened(qwen_folder: Path, picture: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert encode_text(qwen_folder, "a road", picture).media_rows == 88


def test_the_same_seed_writes_the_same_bytes(qwen_folder: Path, tmp_path: Path) -> None:
    again = write_qwen(tmp_path / "again", 7, hidden_text=64, layers=LAYERS)
    other = write_qwen(tmp_path / "other", 8, hidden_text=64, layers=LAYERS)

    def content(folder: Path) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}

    assert content(again) == content(qwen_folder)
    changed = {name for name, value in content(other).items() if value != content(again)[name]}
    assert changed == {"model.safetensors"}
    assert encoder_identity(again) == encoder_identity(qwen_folder) != encoder_identity(other)
    assert sum(path.stat().st_size for path in again.iterdir()) < 4_000_000


def copy_of(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def test_shards_prefixes_and_unused_layers_load_alike(
    states: TextStates, qwen_folder: Path, picture: np.ndarray, tmp_path: Path
) -> None:
    weights = load_file(qwen_folder / "model.safetensors")
    folder = copy_of(qwen_folder, tmp_path / "sharded")
    (folder / "model.safetensors").unlink()
    extra = {
        "lm_head.weight": torch.zeros(8, 64),
        "model.language_model.layers.63.mlp.up_proj.weight": torch.zeros(2, 2),
    }
    names = sorted(weights)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part} | (extra if file[0] == "a" else {}), folder / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(encode_text(folder, PROMPT, picture, dtype=torch.float32).text, states.text)

    repack = copy_of(qwen_folder, tmp_path / "repack")
    renamed = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): tensor
        for name, tensor in weights.items()
    }
    save_file(renamed, repack / "model.safetensors")
    assert torch.equal(encode_text(repack, PROMPT, picture, dtype=torch.float32).text, states.text)

    (folder / "b.safetensors").unlink()
    with pytest.raises(EncoderError, match=r"b\.safetensors is missing"):
        load_encoder(folder)


def test_tokenizer_and_rules_may_lie_in_neighbouring_folders(
    states: TextStates, qwen_folder: Path, picture: np.ndarray, tmp_path: Path
) -> None:
    folder = copy_of(qwen_folder, tmp_path / "text_encoder")
    for place, names in {
        "tokenizer": ("tokenizer.json", "tokenizer_config.json"),
        "processor": ("preprocessor_config.json",),
    }.items():
        (tmp_path / place).mkdir()
        for name in names:
            (folder / name).rename(tmp_path / place / name)
    assert torch.equal(encode_text(folder, PROMPT, picture, dtype=torch.float32).text, states.text)


def test_missing_and_broken_files_are_named_with_a_remedy(qwen_folder: Path, tmp_path: Path) -> None:
    def broken(name: str, change: Any) -> Path:
        folder = copy_of(qwen_folder, tmp_path / name)
        change(folder)
        return folder

    def cut(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1000])

    def lose(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        del weights["model.language_model.layers.1.mlp.up_proj.weight"]
        save_file(weights, folder / "model.safetensors")

    def quantise(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        name = "model.language_model.layers.1.mlp.up_proj.weight"
        save_file(weights | {name: weights[name].to(torch.int8)}, folder / "model.safetensors")

    def pickle_only(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    cases = {
        tmp_path / "nowhere": "is not there",
        qwen_folder / "model.safetensors": "is a file",
        broken("config", lambda folder: (folder / "config.json").unlink()): "has no config.json",
        broken("json", lambda folder: (folder / "config.json").write_text("{")): "not readable JSON",
        broken("kind", lambda folder: (folder / "config.json").write_text('{"model_type": "llama"}')): "'qwen3_vl'",
        broken("words", lambda folder: (folder / "tokenizer.json").unlink()): "no tokenizer.json",
        broken("bin", pickle_only): "pickle file",
        broken("cut", cut): "could not be read",
        broken("lost", lose): r"lack 1 of \d+ tensors, the first is language_model.layers.1.mlp.up_proj.weight",
        broken("int8", quantise): "unquantised",
    }
    for folder, says in cases.items():
        with pytest.raises(EncoderError, match=says):
            load_encoder(folder)
