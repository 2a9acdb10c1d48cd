"""Clips of any length: exact chunks, as many frames out as in, memory that does not grow."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from streamrender_h3.nodes.codec import load_decoder, load_encoder
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.look import make_look
from streamrender_h3.nodes.look.look import TextStates
from streamrender_h3.nodes.palette import RACING, ClipError, chunk_lines, chunk_report, clip_from_frames
from streamrender_h3.nodes.sampler import Settings, TimeGrid, render
from streamrender_h3.nodes.schedule import RELEASE
from streamrender_h3.workflows.nano.weights import write_weights

LENGTHS = (1, 4, 5, 6, 22, 29, 30, 31, 38, 39, 40, 47, 48, 124, 361, 362, 2400)
# SRH3_LONG=1 also renders the longest.
RENDERED = LENGTHS if os.environ.get("SRH3_LONG") == "1" else (1, 6, 31, 124)


def numbered_clip(count):
    """A clip made on demand whose frames tell their number by two classes."""

    def start():
        for k in range(count):
            frame = np.full((64, 64, 3), RACING.colours[1 + k % 13], np.uint8)
            frame[:32] = RACING.colours[1 + k // 13 % 13]
            yield frame

    return clip_from_frames(start, reference_size=(64, 64), count=count)


def number_of(map_frame):
    lower, upper = (
        int((np.abs(RACING.colours / 255 - map_frame[:, y, 0].numpy()).sum(1)).argmin()) - 1 for y in (60, 4)
    )
    return lower + 13 * upper


def test_no_frames_is_an_error():
    with pytest.raises(ClipError, match="0 frames"):
        numbered_clip(0)
    with pytest.raises(ClipError, match="no frames"):
        clip_from_frames(np.zeros((0, 64, 64, 3), np.uint8), reference_size=(64, 64))


@pytest.mark.parametrize("frames", LENGTHS)
def test_chunks_read_on_where_the_one_before_ended(frames):
    table = chunk_report(frames)
    spans = table["frames"]
    assert (table["chunks"], spans[0]) == (RELEASE.chunks_for(frames), [0, 30])
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert spans[-1][0] < frames <= spans[-1][1] == frames + table["padding"]
    assert table["seconds"] == pytest.approx(frames / 24)
    assert [list(window.frames)[:: len(window.frames) - 1] for window in RELEASE.windows(frames)] == [
        [first, end - 1] for first, end in spans
    ]
    lines = chunk_lines(frames)
    assert f"{frames} frames, {table['chunks']} chunks, padding {table['padding']}" in lines[0]
    assert len(lines) <= 8


@pytest.mark.parametrize("frames", LENGTHS)
def test_every_length_is_read_whole_and_in_order(frames):
    clip = numbered_clip(frames)
    assert clip.frames == frames
    seen = 0
    for k, map_frame in enumerate(clip.reference_frames()):
        seen += 1
        assert number_of(map_frame) == k % 169
    assert seen == frames


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The tiny random model, its codecs and a look."""
    files = write_weights(tmp_path_factory.mktemp("weights"), seed=4)
    model = load_h3(files.model, dtype=torch.float32, device="cpu")
    codecs = [load(files.codec, device="cpu", dtype=torch.float32) for load in (load_encoder, load_decoder)]
    states = TextStates(torch.randn(9, model.config.text_dim), torch.tensor([1, 0, 0, 0, 1, 1, 1, 1, 1]), 4)
    return model, codecs, make_look(states, rgb=torch.zeros(64, 64, 3, dtype=torch.uint8))


@pytest.mark.parametrize("frames", RENDERED)
def test_n_frames_in_render_n_frames_and_each_chunk_reads_its_own(parts, frames):
    model, (encoder, decoder), look = parts
    done, chunks = 0, 0
    for chunk, (first, end) in zip(
        render(numbered_clip(frames), look, model, encoder, decoder, Settings(RELEASE, TimeGrid.trailing(1))),
        chunk_report(frames)["frames"],
        strict=True,
    ):
        read = [number_of(one.float() / 255) for one in chunk.maps]
        assert read == [min(k, frames - 1) % 169 for k in range(first, end)]
        done, chunks = done + len(chunk.frames), chunks + 1
    assert (done, chunks) == (frames, RELEASE.chunks_for(frames))


PEAK = """
import sys
from pathlib import Path
from streamrender_h3.nodes.palette import audit, clip_from_video
clip = clip_from_video(sys.argv[1])
found = audit(clip)
assert found.verdict == "good", found.as_text()
count = sum(1 for ids in clip.open())
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(count, peak.split()[1])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak memory of a process from /proc")
def test_2400_frames_need_no_more_memory_than_124(tmp_path, scene, write_video):
    """Audit and reading of a file; keeping the ids alone would add 65 MB, the colours 195 MB."""
    frames = [RACING.colours[scene(t, 224, 128)] for t in range(24)]
    peaks = {}
    for count in (124, 2400):
        path = write_video(tmp_path / f"{count}.mkv", [frames[k % 24] for k in range(count)])
        run = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        seen, peaks[count] = map(int, run.stdout.split())
        assert seen == count
    assert peaks[2400] < 1.2 * peaks[124], peaks
