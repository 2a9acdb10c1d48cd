"""Disks that are full and folders that cannot be written: named, and nothing rendered is lost."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from node_calls import (
    FRAMES,
    at_forward,
    resumed,
    stopped,
)
from streamrender_h3.nodes.preview import VideoFile, VideoFileError, playable_frames
from streamrender_h3.nodes.sampler import RenderError
from streamrender_h3.nodes.sampler.latent_file import LatentFile


def test_a_full_disk_keeps_what_is_done(host, inputs, monkeypatch):
    add, calls = VideoFile.add, []

    def full(self: VideoFile, frames: torch.Tensor) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise VideoFileError("cannot write the video: No space left on device")
        add(self, frames)

    monkeypatch.setattr(VideoFile, "add", full)
    stopped(host, inputs, VideoFileError, "No space left on device")
    assert [playable_frames(path) for path in host.partials] == [39]
    monkeypatch.undo()
    assert resumed(host, inputs) == [2]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 90 MB, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=90m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all room left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\1" * 2**16):
            pass
    return filler


def test_a_disk_that_really_runs_full_costs_one_chunk_and_a_try_before_it_is_freed_costs_nothing(
    host, inputs, monkeypatch, small_disk
):
    import folder_paths

    with monkeypatch.context() as patch:
        patch.setattr(folder_paths, "get_user_directory", lambda: str(small_disk / "user"))
        with patch.context() as later:
            at_forward(later, 7, lambda: fill(small_disk))  # first step of the third chunk
            stopped(host, inputs, VideoFileError, "has 0 MB free and the next chunk of .* Free disk space")
        assert [playable_frames(path) for path in host.partials] == [39]
        stopped(host, inputs, VideoFileError, r"has 0 MB free and a render of 46 frames needs about")
        (small_disk / "filler").unlink()
        metrics = json.loads(host.run("StreamSampler", **inputs)[2])
        assert metrics["resumed_at_chunks"] == [2] and metrics["complete"]
    assert (
        metrics["latents_sha256"] == json.loads(host.run("StreamSampler", **inputs, resume=False)[2])["latents_sha256"]
    )


def test_a_disk_too_full_for_latents_is_told_with_the_folder(host, inputs, monkeypatch):
    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    opened = LatentFile.__init__

    def full(self: LatentFile, video: Path, audio: Path) -> None:
        opened(self, video, audio)
        for file in self._files:
            file.close()
        self._files = (Full(), Full())

    monkeypatch.setattr(LatentFile, "__init__", full)
    stopped(
        host, inputs, OSError, rf"cannot write the latents to {host.base}.*No space left on device; free disk space"
    )


def test_an_output_folder_that_cannot_be_written_does_not_hide_the_error(host, inputs, monkeypatch, caplog):
    import folder_paths

    (host.base / "file").write_text("x")
    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(host.base / "file" / "output"))
    at_forward(monkeypatch, 4, lambda: (_ for _ in ()).throw(RenderError("stop")))
    with pytest.raises(RenderError, match="stop"):
        host.run("StreamSampler", **inputs)
    (left,) = host.journals.rglob("*.mp4")
    assert playable_frames(left) == 30 and str(left) in caplog.text and not host.temporary
    monkeypatch.undo()
    assert resumed(host, inputs) == [1]


def test_a_user_folder_that_cannot_be_written_costs_only_the_journal(host, inputs, monkeypatch, caplog):
    import folder_paths

    (host.base / "file").write_text("x")
    monkeypatch.setattr(folder_paths, "get_user_directory", lambda: str(host.base / "file" / "user"))
    video, *_ = host.run("StreamSampler", **inputs)
    assert playable_frames(Path(video.get_stream_source())) == FRAMES and "keeps no journal" in caplog.text
    at_forward(monkeypatch, 7, lambda: (_ for _ in ()).throw(RenderError("stop")))
    for path in host.temporary:
        path.unlink()
    stopped(host, inputs, RenderError, "stop")
    assert [playable_frames(path) for path in host.partials] == [39]


def test_an_output_folder_deleted_on_the_way_is_made_again(host, inputs, monkeypatch):
    def stop() -> None:
        shutil.rmtree(host.base / "output")
        raise RenderError("stop")

    at_forward(monkeypatch, 7, stop)
    stopped(host, inputs, RenderError, "stop")
    assert [playable_frames(path) for path in host.partials] == [39]
    monkeypatch.undo()
    assert resumed(host, inputs) == [2]


def test_a_journal_deleted_on_the_way_is_told_and_the_next_try_starts_afresh(host, inputs, monkeypatch):
    at_forward(monkeypatch, 7, lambda: shutil.rmtree(host.journals))
    stopped(host, inputs, VideoFileError, "the file was deleted or replaced while it was written")
    monkeypatch.undo()
    assert resumed(host, inputs) == []
