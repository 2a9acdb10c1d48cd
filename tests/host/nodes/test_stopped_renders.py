"""Renders that stop half-way: what is done stays, nothing is left behind, and the next try goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from node_calls import (
    FRAMES,
    at_forward,
    resumed,
    stopped,
)
from streamrender_h3.nodes.codec.tae_stream import TAEDecoderStream
from streamrender_h3.nodes.preview import playable_frames
from streamrender_h3.nodes.sampler import RenderError


def test_cancel_keeps_what_is_done_as_a_playable_file(host, inputs, monkeypatch, caplog):
    from comfy import model_management

    at_forward(monkeypatch, 7, model_management.interrupt_current_processing)  # first step of the third chunk
    stopped(host, inputs, model_management.InterruptProcessingException)
    (partial,) = host.partials
    assert partial.parent.name == "streamrender_h3" and partial.name == "partial_00001.mp4"
    assert playable_frames(partial) == 39
    assert str(partial) in caplog.text

    monkeypatch.undo()
    video, *_ = host.run("StreamSampler", **inputs)  # the same again is not disturbed
    assert playable_frames(Path(video.get_stream_source())) == FRAMES


def test_cancel_before_the_first_chunk_leaves_nothing(host, inputs, monkeypatch):
    from comfy import model_management

    at_forward(monkeypatch, 1, model_management.interrupt_current_processing)
    stopped(host, inputs, model_management.InterruptProcessingException)
    assert host.partials == []


def test_partial_files_get_numbers_of_their_own(host, inputs, monkeypatch):
    from comfy import model_management

    for _ in range(2):
        at_forward(monkeypatch, 4, model_management.interrupt_current_processing)
        stopped(host, inputs, model_management.InterruptProcessingException)
        monkeypatch.undo()
    assert [path.name for path in host.partials] == ["partial_00001.mp4", "partial_00002.mp4"]


def test_a_decoder_that_raises_keeps_what_is_done(host, inputs, monkeypatch):
    push, calls = TAEDecoderStream.push, []

    def failing(self: TAEDecoderStream, latents: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the decoder is out of memory")
        return push(self, latents)

    monkeypatch.setattr(TAEDecoderStream, "push", failing)
    stopped(host, inputs, RuntimeError, "the decoder is out of memory")
    assert [playable_frames(path) for path in host.partials] == [30]
    monkeypatch.undo()
    assert resumed(host, inputs) == [1]


def test_a_model_that_does_not_fit_into_memory_leaves_no_files(host, inputs, monkeypatch):
    from comfy import model_management

    def no_memory(*args: Any, **options: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model_management, "load_models_gpu", no_memory)
    stopped(host, inputs, RuntimeError, "out of memory")
    assert host.partials == []


@pytest.mark.parametrize("part", ["progress", "preview"])
def test_a_display_that_fails_does_not_stop_the_render(host, inputs, monkeypatch, caplog, part):
    from streamrender_h3.nodes import host as pack_host
    from streamrender_h3.nodes.preview.live import Preview

    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("no display")

    if part == "progress":
        monkeypatch.setattr(pack_host, "progress", lambda total, node: broken)
    else:
        monkeypatch.setattr(Preview, "_take", broken)
    video, *_ = host.run("StreamSampler", **inputs)
    assert playable_frames(Path(video.get_stream_source())) == FRAMES
    assert caplog.text.count("no display") == (part == "progress")


def test_without_resume_nothing_is_kept_but_the_frames(host, inputs, monkeypatch):
    at_forward(monkeypatch, 7, lambda: (_ for _ in ()).throw(RenderError("stop")))
    stopped(host, {**inputs, "resume": False}, RenderError, "stop")
    assert [playable_frames(path) for path in host.partials] == [39] and not host.journals.exists()


def test_after_a_failure_the_prefix_bank_is_let_go_although_the_error_is_kept(host, inputs, monkeypatch):
    """ComfyUI holds the error of the last prompt, and an error holds the variables of every function on its way."""
    import gc
    import weakref

    from streamrender_h3.nodes.sampler.bank import PrefixBank

    banks = []
    store = PrefixBank.store

    def watched(self: PrefixBank, *args: Any) -> Any:
        bank = store(self, *args)
        banks.append(weakref.ref(bank))
        return bank

    monkeypatch.setattr(PrefixBank, "store", watched)
    at_forward(monkeypatch, 7, lambda: (_ for _ in ()).throw(RenderError("stop")))
    with pytest.raises(RenderError, match="stop") as kept:
        host.run("StreamSampler", **inputs)
    gc.collect()
    assert kept.value.__traceback__ is not None
    assert len(banks) == 2 and all(bank() is None for bank in banks)
