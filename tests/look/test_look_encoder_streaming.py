"""A text encoder larger than the device: its layers streamed one by one, its size and a prompt's rows known before."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from streamrender_h3.nodes.look import EXAMPLE, EXAMPLE_CLASSES, EncoderError, build_prompt, encode_text, load_encoder
from streamrender_h3.nodes.look.encoder_size import encoder_size, text_rows

PROMPT = build_prompt(EXAMPLE, EXAMPLE_CLASSES)


def test_streamed_layers_give_the_states_of_resident_ones(qwen_folder, picture):
    encoder = load_encoder(qwen_folder, dtype=torch.float32, stream=True)
    assert encoder.streamer is not None and encoder.streamer.streamed == (0, 1, 2, 3)
    resident = encode_text(qwen_folder, PROMPT, picture, dtype=torch.float32)
    for _ in range(2):  # the second run begins where the first left its staging areas
        streamed = encoder.encode(PROMPT, picture)
        assert torch.equal(streamed.text, resident.text)
        assert torch.equal(streamed.tags, resident.tags)
    again = encode_text(qwen_folder, PROMPT, picture, dtype=torch.float32, stream=True)
    assert torch.equal(again.text, resident.text)


def test_only_two_layers_are_on_the_device_at_a_time(qwen_folder, picture):
    encoder = load_encoder(qwen_folder, dtype=torch.float32, stream=True)
    size = encoder_size(qwen_folder, torch.float32)
    assert encoder.streamer.area_bytes == pytest.approx(2 * size.largest_layer, rel=0.02)
    assert encoder.streamer.nbytes == pytest.approx(size.layers, rel=0.02)
    assert size.streamed == size.rest + 2 * size.largest_layer


def test_the_size_is_that_of_the_tensors_that_are_used(qwen_folder):
    size = encoder_size(qwen_folder, torch.bfloat16)
    with safe_open(qwen_folder / "model.safetensors", "pt") as file:
        counts = {name: 2 * file.get_tensor(name).numel() for name in file.keys()}  # noqa: SIM118
    layers = sum(count for name, count in counts.items() if "language_model.layers." in name)
    unused = sum(count for name, count in counts.items() if name.startswith("lm_head") or "language_model.norm" in name)
    assert (size.layers, size.rest) == (layers, sum(counts.values()) - layers - unused)
    assert size.largest_layer == layers // 4


def test_rows_are_counted_without_the_encoder(qwen_folder, picture):
    states = encode_text(qwen_folder, PROMPT, picture, dtype=torch.float32)
    assert text_rows(qwen_folder, PROMPT, picture.shape[:2]) == len(states.text)


def test_the_deployed_picture_takes_1008_rows(qwen_folder):
    """Label, start, 48 x 84 / 4 image rows and end: what precedes the prompt at 1344x768."""
    with_prompt, longer = (text_rows(qwen_folder, prompt, (768, 1344)) for prompt in ("a", "a a a"))
    small = text_rows(qwen_folder, "a", (256, 320))
    assert with_prompt - small == 1008 - 80
    assert longer > with_prompt


def test_a_broken_header_is_named(qwen_folder, tmp_path):
    import shutil

    folder = tmp_path / "broken"
    shutil.copytree(qwen_folder, folder)
    (folder / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00not json")
    with pytest.raises(EncoderError, match=r"model\.safetensors could not be read"):
        encoder_size(folder, torch.float32)
