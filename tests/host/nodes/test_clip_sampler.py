"""H3 Clip Sampler and H3 Text as ComfyUI calls them: what they make, warn of and refuse."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from node_calls import FRAMES, class_frames, conditioning, refused
from streamrender_h3.nodes.look import LookError
from streamrender_h3.nodes.preview import playable_frames
from streamrender_h3.nodes.sampler import RenderError
from streamrender_h3.workflows.nano.weights import TINY

SETTINGS = {
    "frames": 22,
    "recipe": "turbo LoRA (4 steps)",
    "seed": 1,
    "guidance": "single (one call)",
    "text_scale": 1.5,
    "structure_scale": 3.0,
    "attention_mode": "auto",
    "vsa_keep_percent": 0.0,
    "vsa_dense_first_steps": 0,
    "vsa_dense_layers": "",
    "vsa_min_rows": 0,
}
TEXT = {"prompt": "a road", "width": 96, "height": 64, "text_encoder": "none"}


def words_alone(rows: int = 9) -> list[list[Any]]:
    """CONDITIONING without a picture."""
    text = torch.randn(1, rows, TINY.text_dim, generator=torch.Generator().manual_seed(1))
    return [[text, {"minimax_token_tags": torch.ones(rows, dtype=torch.int64)}]]


@pytest.fixture(scope="session")
def text(host):
    return host.run("Text", **TEXT, positive=words_alone())[0]


@pytest.fixture
def from_text(inputs, text):
    return {"model": inputs["model"], "decoder": inputs["decoder"], "look": text, **SETTINGS}


@pytest.fixture
def from_clip(inputs):
    return {**{name: inputs[name] for name in ("model", "decoder", "look", "clip", "encoder")}, **SETTINGS}


def test_a_video_from_text_has_the_frames_asked_for(host, from_text, forwards):
    video, latent, metrics, report = host.run("ClipSampler", **{**from_text, "frames": 20})
    assert playable_frames(Path(video.get_stream_source())) == 20
    assert len(forwards) == 4 and report.shape[0] == 1
    told = json.loads(metrics)
    assert told["complete"] and told["frames"] == 20 and told["recipe"] == "turbo LoRA (4 steps)"
    assert told["attention"] == "dense" and told["segments"] == [{"frames": [0, 20], "made": 22}]
    pair = latent["samples"]
    assert (pair.unbind()[0] if getattr(pair, "is_nested", False) else pair).shape == (1, 24, 7, 4, 6)
    assert not host.partials and not list(host.journals.glob("*"))


def test_a_semantic_clip_gives_its_length_and_the_text_does_not(host, from_clip, forwards):
    video, _, metrics, _ = host.run("ClipSampler", **from_clip)
    assert playable_frames(Path(video.get_stream_source())) == FRAMES
    assert len(forwards) == 4 and json.loads(metrics)["segments"] == [{"frames": [0, FRAMES], "made": 56}]


def test_a_long_clip_is_made_in_segments_and_has_no_latent(host, from_clip, forwards):
    from comfy_execution.graph import ExecutionBlocker

    video, latent, metrics, _ = host.run("ClipSampler", **{**from_clip, "segment_frames": 22})
    assert playable_frames(Path(video.get_stream_source())) == FRAMES
    assert [segment["frames"] for segment in json.loads(metrics)["segments"]] == [[0, 22], [22, 43], [43, 46]]
    assert len(forwards) == 3 * 4 and isinstance(latent, ExecutionBlocker)


def test_the_same_seed_gives_the_same_latents_and_a_saved_video_is_taken(host, from_text, forwards):
    named = {**from_text, "name": "words/road", "save": True}
    first = json.loads(host.run("ClipSampler", **named)[2])
    spent = len(forwards)
    again = json.loads(host.run("ClipSampler", **named)[2])
    assert len(forwards) == spent and again == first
    other = json.loads(host.run("ClipSampler", **{**from_text, "seed": 2})[2])
    assert other["latents_sha256"] != first["latents_sha256"]
    assert json.loads(host.run("ClipSampler", **from_text)[2])["latents_sha256"] == first["latents_sha256"]
    shutil.rmtree(host.base / "output" / "streamrender_h3" / "words")


def test_the_chain_makes_three_calls_a_step(host, from_clip, forwards):
    host.run("ClipSampler", **{**from_clip, "guidance": "chain (three calls)"})
    assert len(forwards) == 3 * 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": "FastH3 V9"}, ("recipe is 'FastH3 V9'", "choose auto")),
        ({"guidance": "magic"}, ("guidance 'magic'", "choose one of")),
        ({"attention_mode": "magic"}, ("attention_mode is 'magic'", "choose one of auto, dense, vsa")),
        ({"vsa_keep_percent": 120.0}, ("vsa_keep_percent is 120.0", "from 0 to 100")),
        ({"attention_mode": "vsa"}, ("was not trained for it", "set vsa_keep_percent")),
        ({"vsa_dense_layers": "0, 9"}, ("vsa_dense_layers holds '9'", "from 0 to 2")),
        ({"segment_frames": 600}, ("600 frames", "at most 345", "Set 345")),
        ({"seed": -1}, ("seed is -1",)),
    ],
)
def test_settings_out_of_range_are_refused_before_any_forward(host, from_clip, forwards, changes, words):
    refused(host, "ClipSampler", *words, **{**from_clip, **changes})
    assert not forwards and not host.temporary


def test_what_does_not_belong_together_is_refused_before_any_forward(
    host, from_text, from_clip, text, inputs, forwards
):
    without = {name: value for name, value in from_clip.items() if name != "clip"}
    refused(host, "ClipSampler", "no semantic clip is connected", "H3 Text", kind=RenderError, **without)
    refused(host, "ClipSampler", "the text has no picture", "H3 Look", kind=RenderError, **{**from_clip, "look": text})
    without = {name: value for name, value in from_clip.items() if name != "encoder"}
    refused(host, "ClipSampler", "connect Load H3 Encoder", kind=RenderError, **without)
    chain = {**from_text, "guidance": "chain (three calls)"}
    refused(host, "ClipSampler", "none is connected", kind=RenderError, **chain)
    refused(host, "ClipSampler", "frames were asked for", "at most 345", **{**from_text, "frames": 400})
    refused(host, "StreamSampler", "connect H3 Look, not H3 Text", kind=RenderError, **{**inputs, "look": text})
    refused(host, "LookChange", "without a picture", kind=RenderError, look=text, previous=inputs["look"], start=2.0)
    assert not forwards and not host.temporary


def test_a_text_of_the_wrong_width_is_refused(host, from_text, forwards):
    narrow = [[torch.randn(1, 5, 40), {}]]
    look = host.run("Text", **TEXT, positive=narrow)[0]
    refused(host, "ClipSampler", "40 wide", str(TINY.text_dim), kind=LookError, **{**from_text, "look": look})
    assert not forwards


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 100}, ("100x64", "multiples of 32")),
        ({"positive": conditioning()}, ("show a picture", "use H3 Look")),
        ({"positive": None}, ("H3 Text: no text source", "Qwen3-VL folder")),
    ],
)
def test_the_text_node_refuses_what_is_no_text_alone(host, changes, words):
    refused(host, "Text", *words, **{**TEXT, "positive": words_alone(), **changes})


def test_a_prompt_is_encoded_from_a_folder_without_a_picture(host):
    folder = host.weights.text_encoder.name
    look = host.run("Text", **{**TEXT, "text_encoder": folder})[0]
    longer = host.run("Text", **{**TEXT, "text_encoder": folder, "prompt": "a road by the sea"})[0]
    assert look.media_rows == 0 and set(look.tags.tolist()) == {1} and look.size == (64, 96)
    assert len(longer.text) > len(look.text)
    torch.testing.assert_close(longer.text[: len(look.text)], look.text, rtol=0, atol=1e-4)  # Qwen is causal
    assert torch.equal(host.run("Text", **{**TEXT, "text_encoder": folder})[0].text, look.text)


def test_warnings_say_what_is_unusual(host, from_text, caplog):
    with caplog.at_level(logging.INFO):
        host.run(
            "ClipSampler",
            **{**from_text, "recipe": "auto", "vsa_min_rows": 16384, "frames": 5, "attention_mode": "vsa"},
        )
    assert "base (50 steps)" in caplog.text and "no mark of a distilled checkpoint" in caplog.text
    assert "fewer than vsa_min_rows" in caplog.text and "5 frames are fewer than the 124" in caplog.text


def test_a_stopped_render_leaves_what_is_decoded(host, from_clip, monkeypatch):
    from streamrender_h3.nodes.sampler import clip_render

    original, calls = clip_render.decode_chunk, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RenderError("stop")
        return original(*args, **kwargs)

    monkeypatch.setattr(clip_render, "decode_chunk", failing)
    refused(host, "ClipSampler", "stop", kind=RenderError, **from_clip)
    assert [playable_frames(path) for path in host.partials] == [34] and not host.temporary


def test_cancel_is_heard_after_every_step(host, from_text, monkeypatch):
    from comfy import model_management
    from streamrender_h3.nodes.sampler import clip_network

    original, calls = clip_network.ClipNetwork.__call__, []

    def pressed(self: Any, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            model_management.interrupt_current_processing()
        return original(self, *args)

    monkeypatch.setattr(clip_network.ClipNetwork, "__call__", pressed)
    with pytest.raises(model_management.InterruptProcessingException):
        host.run("ClipSampler", **from_text)
    assert len(calls) == 2 and not host.temporary and not host.partials


def test_frames_of_a_clip_that_needs_padding_show_its_last_map(host, from_clip):
    clip = host.run(
        "SemanticPaletteEncode",
        palette="racing",
        reference_width=64,
        reference_height=64,
        fps=24.0,
        images=class_frames(3),
    )[0]
    video, *_ = host.run("ClipSampler", **{**from_clip, "clip": clip})
    assert playable_frames(Path(video.get_stream_source())) == 3


@pytest.fixture(scope="session")
def gated(host):
    """A FastH3-like model: the tiny one with gates."""
    from safetensors.torch import load_file, save_file

    state = load_file(host.weights.model)
    generator = torch.Generator().manual_seed(2)
    for layer in range(TINY.layers):
        gate = torch.randn(TINY.heads * TINY.head_dim, TINY.hidden, generator=generator)
        state[f"dit.blocks.{layer}.attn.to_gate_compress.weight"] = 0.3 * gate
    path = host.weights.model.with_name("fasth3_v1.safetensors")
    save_file(state, path, {"qkv_layout": "stacked", "streamrender_h3.example": "random"})
    return host.run("LoadModel", model_name=path.name, dtype="fp32", qkv_order="auto")[0]


def test_a_checkpoint_with_gates_is_sampled_sparsely_without_being_asked(host, from_text, gated, caplog):
    sparse = {**from_text, "model": gated, "recipe": "auto"}
    with caplog.at_level(logging.INFO):
        told = json.loads(host.run("ClipSampler", **sparse)[2])
    assert told["recipe"] == "FastH3 V1 (4 steps)" and told["recipe_reason"] == "gates, and its name"
    assert told["attention"]["name"] == "vsa" and told["attention"]["keep"] == 10.0
    assert "video tiles" not in caplog.text and "sparse attention, working" in caplog.text
    hashes = {told["latents_sha256"]}
    for changes, words in (
        ({"attention_mode": "dense"}, "rendered with dense attention"),
        ({"vsa_keep_percent": 60.0}, "trained to attend to 10 % of the video tiles and is rendered with 60 %"),
        ({"vsa_dense_first_steps": 2, "vsa_dense_layers": "0-1"}, "sparse attention, working"),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            told = json.loads(host.run("ClipSampler", **{**sparse, **changes})[2])
        assert words in caplog.text
        hashes.add(told["latents_sha256"])
    assert len(hashes) >= 2  # one tile of video: sparse and its variants are the same, dense leaves the gates out


def test_the_reference_in_tiles_and_the_probe_are_experiments_that_the_report_tells_of(host, from_clip, caplog):
    asked = {**from_clip, "attention_mode": "vsa_target_ref", "vsa_keep_percent": 20.0}
    with caplog.at_level(logging.INFO):
        told = json.loads(host.run("ClipSampler", **asked)[2])
    assert told["attention"]["name"] == "vsa_target_ref" and "attention_recall" not in told
    assert (
        "no checkpoint was trained" in told["attention"]["experimental"] and "no checkpoint was trained" in caplog.text
    )
    with caplog.at_level(logging.INFO):
        probed = json.loads(host.run("ClipSampler", **asked, vsa_auto_dense=True)[2])
    assert caplog.text.count("sparse attention: the tiles chosen in step 0") == 1
    (found,) = probed["attention_recall"]
    assert [layer["layer"] for layer in found["layers"]] == list(range(TINY.layers)) and found["step"] == 0
    for layer in found["layers"]:
        assert 0 < layer["worst_recall"] <= layer["recall"] <= layer["ceiling"] <= 1
        assert (layer["layer"] in found["dense_layers"]) == (layer["recall"] < 0.8)


def test_what_the_experiments_need_is_said(host, from_text, caplog, forwards):
    words = "no reference video to tile"
    refused(host, "ClipSampler", words, kind=RenderError, **{**from_text, "attention_mode": "vsa_target_ref"})
    assert not forwards
    host.run("ClipSampler", **{**from_text, "frames": 5}, vsa_auto_dense=True)
    assert "vsa_auto_dense has nothing to probe" in caplog.text


def test_an_adapter_that_brings_gates_makes_the_model_sparse(host, inputs, from_text):
    from safetensors.torch import save_file

    folder = host.base / "models" / "loras"
    folder.mkdir(exist_ok=True)
    gate = torch.randn(TINY.heads * TINY.head_dim, TINY.hidden, generator=torch.Generator().manual_seed(3))
    names = [f"transformer_blocks.{layer}.attn.to_gate_compress.set_weight" for layer in range(TINY.layers)]
    save_file({name: gate.clone() for name in names}, folder / "fasth3_preview_gates.safetensors")
    model, summary = host.run("LoRA", model=inputs["model"], lora_name="fasth3_preview_gates.safetensors", strength=1.0)
    assert "bound 3 of 3" in summary
    sparse = json.loads(host.run("ClipSampler", **{**from_text, "model": model, "recipe": "auto"})[2])
    assert sparse["recipe"] == "FastH3 V1 (4 steps)" and sparse["attention"]["name"] == "vsa"
    dense = json.loads(host.run("ClipSampler", **{**from_text, "recipe": "FastH3 V1 (4 steps)"})[2])
    assert dense["attention"] == "dense" and dense["latents_sha256"] != sparse["latents_sha256"]
