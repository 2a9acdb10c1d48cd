"""Files that a render writes: formats, names, files taken instead of rendering again, temporary ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from node_calls import (
    FRAMES,
    at_forward,
    refused,
    resumed,
    stopped,
)
from streamrender_h3.nodes.preview import VideoFileError, playable_frames
from streamrender_h3.nodes.sampler import RenderError


def test_a_video_encoder_that_is_missing_is_named_before_any_forward(host, inputs, monkeypatch, forwards):
    import av

    real = av.codec.Codec

    def missing(name: str, mode: str) -> Any:
        if name == "libx265":
            raise ValueError(name)
        return real(name, mode)

    monkeypatch.setattr(av.codec, "Codec", missing)
    words = r"H.265 \(MP4\) cannot be written: this PyAV has no encoder libx265. Choose another video format"
    stopped(host, {**inputs, "video_format": "H.265 (MP4)"}, VideoFileError, words)
    assert not forwards and not host.partials
    monkeypatch.undo()
    video, *_ = host.run("StreamSampler", **{**inputs, "video_format": "H.265 (MP4)"})
    assert playable_frames(Path(video.get_stream_source())) == FRAMES


def test_a_video_encoder_that_goes_missing_on_the_way_costs_nothing_of_what_is_done(host, inputs, monkeypatch):
    import av

    h265 = {**inputs, "video_format": "H.265 (MP4)"}
    with monkeypatch.context() as patch:
        at_forward(patch, 7, lambda: (_ for _ in ()).throw(RenderError("stop")))
        stopped(host, h265, RenderError, "stop")
    with monkeypatch.context() as patch:
        patch.setattr(av.codec, "Codec", lambda name, mode: (_ for _ in ()).throw(ValueError(name)))
        stopped(host, h265, VideoFileError, "has no encoder libx265")
    assert [playable_frames(path) for path in host.partials] == [39]
    assert resumed(host, h265) == [2]


def test_an_unknown_video_format_is_named(host, inputs, forwards):
    refused(host, "StreamSampler", "'GIF'", "choose one of", kind=VideoFileError, **{**inputs, "video_format": "GIF"})
    assert not forwards and not host.temporary


@pytest.mark.parametrize("name", ["ProRes 4444 (MOV)", "FFV1 lossless (MKV)", "PNG images"])
def test_other_formats_are_written_beside_the_video(host, inputs, name):
    host.run("StreamSampler", **inputs, video_format=name)
    (made,) = (host.base / "output" / "streamrender_h3").iterdir()
    assert made.stem == "render_00001"
    assert (len(list(made.iterdir())) if made.is_dir() else playable_frames(made)) == FRAMES
    shutil.rmtree(made) if made.is_dir() else made.unlink()


def test_a_saved_video_of_the_very_same_render_is_taken_and_any_other_is_not(host, inputs, forwards):
    from comfy_execution.graph import ExecutionBlocker

    named = {**inputs, "name": "night/bend_noon", "save": True, "video_format": "FFV1 lossless (MKV)"}
    first = Path(host.run("StreamSampler", **named)[0].get_stream_source())
    folder = host.base / "output" / "streamrender_h3" / "night"
    assert first == folder / "bend_noon_00001.mp4" and playable_frames(first) == FRAMES
    spent = len(forwards)
    video, latent, metrics, _ = host.run("StreamSampler", **named)
    assert len(forwards) == spent and Path(video.get_stream_source()) == first
    assert isinstance(latent, ExecutionBlocker) and json.loads(metrics)["complete"]
    (folder / "bend_noon_00001.mkv").unlink()  # not all of its formats are there any more
    host.run("StreamSampler", **named)
    host.run("StreamSampler", **{**named, "seed": 2})
    assert len(forwards) == 3 * spent
    numbers = {1: [".mp4"], 2: [".mkv", ".mp4"], 3: [".mkv", ".mp4"]}
    left = [f"bend_noon_{number:05}{suffix}" for number, suffixes in numbers.items() for suffix in suffixes]
    assert sorted(path.name for path in folder.iterdir()) == left
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a/", "a:b"])
def test_a_name_that_leaves_the_output_folder_is_refused_before_any_forward(host, inputs, forwards, name):
    refused(host, "StreamSampler", repr(name), "a file name is needed", **{**inputs, "name": name})
    assert not forwards and not host.temporary


def test_temporary_files_go_when_the_host_lets_go_of_the_outputs(host, inputs):
    import gc

    outputs = host.run("StreamSampler", **inputs)
    assert sorted(path.suffix for path in host.temporary) == [".f32", ".f32", ".mp4"]
    del outputs
    gc.collect()
    assert host.temporary == []
