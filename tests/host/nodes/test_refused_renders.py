"""The sampler node with bad settings: refused before any forward."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from node_calls import (
    FRAMES,
    LOOK,
    conditioning,
    refused,
)
from streamrender_h3.nodes.preview import playable_frames
from streamrender_h3.workflows.nano.weights import TINY


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preset": "fast"}, ("preset 'fast'", "choose one of")),
        ({"chunk": 0}, ("chunk is 0", "at least 1", "Set chunk to 2")),
        ({"sink": -1}, ("sink is -1", "at least 0")),
        ({"bootstrap": 0}, ("bootstrap is 0", "Set bootstrap to 7")),
    ],
)
def test_a_schedule_out_of_range_is_refused(host, changes, words):
    values = {"preset": "custom", "sink": 2, "window": 2, "chunk": 2, "bootstrap": 7}
    refused(host, "StreamSchedule", *words, **{**values, **changes})


def test_the_good_inputs_are_good(host, inputs, forwards):
    video, latent, metrics, report = host.run("StreamSampler", **inputs)
    assert playable_frames(Path(video.get_stream_source())) == FRAMES
    assert len(forwards) == 2 + 2 * (2 + 2) - 2  # bootstrap, then two chunks of two steps and two prefills
    assert host.partials == [] and '"frames": 46' in metrics and "samples" in latent
    assert report.shape[0] == 1 and report.shape[3] == 3 and not list(host.journals.iterdir())


def test_the_sparse_window_is_an_experiment_to_be_chosen(host, inputs, caplog):
    """Its share counts only then; another share is another video."""
    experiment = {**inputs, "attention": "sparse window (experimental)"}
    reports = [
        json.loads(host.run("StreamSampler", **{**given, "window_keep_percent": keep})[2])
        for given, keep in ((inputs, 30.0), (experiment, 100.0), (experiment, 30.0))
    ]
    assert [report.get("window_attention", {}).get("keep_percent") for report in reports] == [None, 100.0, 30.0]
    assert "was not trained with it" in reports[2]["window_attention"]["warning"]
    assert caplog.text.count("sparse window attention is an experiment") == 2
    assert reports[2]["latents_sha256"] != reports[0]["latents_sha256"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": "sparse"}, ("attention 'sparse'", "choose one of")),
        ({"guidance": "magic"}, ("guidance 'magic'", "choose one of")),
        ({"guidance": "chain (three calls)", "text_scale": 21.0}, ("text scale is 21.0", "from 0 to 20")),
        ({"guidance": "chain (three calls)", "structure_scale": -1.0}, ("structure scale is -1.0", "from 0 to 20")),
        (
            {"attention": "sparse window (experimental)", "window_keep_percent": 101.0},
            ("keep 101 %", "more than 0 and at most 100"),
        ),
        ({"steps": 0}, ("steps is 0", "from 1 to 200")),
        ({"seed": -1}, ("seed is -1", "from 0 to 18446744073709551615")),
        ({"seed": 2**64}, ("seed is 18446744073709551616", "from 0 to 18446744073709551615")),
    ],
)
def test_settings_out_of_range_are_refused_before_any_forward(host, inputs, forwards, changes, words):
    refused(host, "StreamSampler", *words, **{**inputs, **changes})
    assert not forwards and not host.temporary


def test_a_sink_larger_than_the_bootstrap_is_refused_with_the_bank(host, inputs, forwards):
    schedule = host.run("StreamSchedule", preset="custom", sink=4, window=2, chunk=2, bootstrap=3)[0]
    words = ("sink is 4 units but the bootstrap makes only 3", "dense windows")
    refused(host, "StreamSampler", *words, **{**inputs, "schedule": schedule})
    assert not forwards and not host.temporary


def test_text_of_another_width_is_refused_before_any_forward(host, inputs, forwards):
    look = host.run("Look", **LOOK, positive=conditioning(width=80))[0]
    refused(host, "StreamSampler", "80 wide", f"text_dim {TINY.text_dim}", **{**inputs, "look": look})
    assert not forwards and not host.temporary


def test_sizes_that_hide_a_remainder_are_refused_before_any_forward(host, inputs, forwards):
    odd = replace(inputs["look"], rgb=torch.zeros(70, 96, 3, dtype=torch.uint8))
    refused(host, "StreamSampler", "96x70", "multiples of 32", **{**inputs, "look": odd})
    assert not forwards and not host.temporary


@pytest.mark.parametrize("tags", [[0] * 9, [1] * 9], ids=["picture rows only", "no picture rows"])
def test_chain_guidance_works_without_caption_or_picture_rows(host, inputs, tags):
    positive = conditioning(minimax_token_tags=torch.tensor(tags))
    look = host.run("Look", **LOOK, positive=positive)[0]
    video, *_ = host.run("StreamSampler", **{**inputs, "look": look, "guidance": "chain (three calls)"})
    assert playable_frames(Path(video.get_stream_source())) == FRAMES
