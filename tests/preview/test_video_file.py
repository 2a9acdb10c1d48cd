"""The video file: exact frame counts, honest colours, and a playable file whatever happens while it is written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from streamrender_h3.nodes.preview import VideoFile, VideoFileError, playable_frames, to_pixels

SIZE = (64, 96)


def decoded(path: Path) -> list[np.ndarray]:
    """Every frame of the file as RGB, by the file's own tags."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def grey(count: int, level: float = 0.5) -> torch.Tensor:
    return torch.full((count, 3, *SIZE), level)


def noise(count: int, seed: int = 0) -> torch.Tensor:
    """Frames that do not compress: about 4 kB each."""
    return torch.rand(count, 3, *SIZE, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------------------ the file


@pytest.mark.parametrize("chunks", [[1], [30, 9, 8, 9], [0, 5, 0, 1], [8] * 5])
def test_every_frame_added_is_in_the_file_at_24_fps(tmp_path, chunks):
    path = tmp_path / "v.mp4"
    with VideoFile(path, SIZE) as video:
        for count in chunks:
            video.add(grey(count))
        assert video.frames == sum(chunks)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stamps = [frame.pts * stream.time_base for frame in container.decode(stream)]
        assert stream.average_rate == 24 and (stream.height, stream.width) == SIZE
    assert stamps == [Fraction(number, 24) for number in range(sum(chunks))]
    assert playable_frames(path) == sum(chunks)


def test_another_rate_and_metadata_are_written(tmp_path):
    path = tmp_path / "v.mp4"
    with VideoFile(path, SIZE, Fraction(30000, 1001), metadata={"comment": "a note"}) as video:
        video.add(grey(4))
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate == Fraction(30000, 1001)
        assert container.metadata["comment"] == "a note"


def test_the_file_is_h264_tagged_bt709_limited_range(tmp_path):
    path = tmp_path / "v.mp4"
    with VideoFile(path, SIZE) as video:
        video.add(grey(2))
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        assert (context.name, context.pix_fmt) == ("h264", "yuv420p")
        assert (context.color_primaries, context.color_trc, context.colorspace) == (1, 1, 1)
        assert context.color_range == 1
        frame = next(container.decode(video=0))
        assert (frame.colorspace, frame.color_range) == (1, 1)


@pytest.mark.parametrize("rgb", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (200, 120, 40)])
def test_colours_survive_the_round_trip(tmp_path, rgb):
    path = tmp_path / "v.mp4"
    with VideoFile(path, SIZE) as video:
        video.add((torch.tensor(rgb) / 255).reshape(1, 3, 1, 1).expand(3, 3, *SIZE))
    middle = decoded(path)[1][8:-8, 8:-8].reshape(-1, 3).astype(int)
    assert np.abs(middle - rgb).max() <= 3


def test_colours_are_coded_by_the_matrix_of_the_tags(tmp_path):
    """Pure green is Y 173 in BT.709 and 145 in BT.601: a file converted by one and tagged as the other shifts colours."""
    path = tmp_path / "v.mp4"
    with VideoFile(path, SIZE) as video:
        video.add(torch.tensor([0.0, 1.0, 0.0]).reshape(1, 3, 1, 1).expand(1, 3, *SIZE))
    with av.open(str(path)) as container:
        luma = next(container.decode(video=0)).to_ndarray()[: SIZE[0]]
    assert abs(int(np.median(luma)) - 173) <= 1


def test_pixels_are_rounded_and_clipped():
    frame = torch.tensor([-0.5, 0.0, 0.499 / 255, 0.501 / 255, 254.6 / 255, 1.0, 7.0]).reshape(1, 1, 1, 7)
    assert to_pixels(frame.expand(1, 3, 1, 7))[0, 0, :, 0].tolist() == [0, 0, 0, 1, 255, 255, 255]


def test_frames_come_back_in_order(tmp_path):
    path = tmp_path / "v.mp4"
    with VideoFile(path, SIZE) as video:
        for start in (0, 8, 16):
            video.add(torch.cat([grey(1, (start + k) / 24) for k in range(8)]))
    levels = [frame.mean() for frame in decoded(path)]
    assert np.allclose(levels, [255 * k / 24 for k in range(24)], atol=3)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("size", [(63, 96), (64, 97), (63, 97)])
def test_odd_sizes_are_refused(tmp_path, size):
    with pytest.raises(VideoFileError, match=rf"{size[1]}x{size[0]} .* must be even"):
        VideoFile(tmp_path / "v.mp4", size)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "absent" / "v.mp4", tmp_path / "file" / "v.mp4", tmp_path):
        with pytest.raises(VideoFileError) as caught:
            VideoFile(path, SIZE)
        assert str(path) in str(caught.value) and "may write to" in str(caught.value)


def test_closing_twice_is_harmless(tmp_path):
    video = VideoFile(tmp_path / "v.mp4", SIZE)
    video.add(grey(3))
    video.close()
    video.close()
    assert len(decoded(tmp_path / "v.mp4")) == 3


# ------------------------------------------------------------------------------------------------- when something stops


def test_an_exception_leaves_a_playable_file(tmp_path):
    path = tmp_path / "v.mp4"
    with pytest.raises(KeyboardInterrupt), VideoFile(path, SIZE) as video:
        video.add(grey(30))
        video.add(grey(5))
        raise KeyboardInterrupt
    assert len(decoded(path)) == playable_frames(path) == 35


@pytest.mark.parametrize("stop", [False, True])
def test_a_file_without_frames_is_removed(tmp_path, stop):
    path = tmp_path / "v.mp4"
    try:
        with VideoFile(path, SIZE):
            if stop:
                raise RuntimeError
    except RuntimeError:
        assert stop
    assert not path.exists()


def run(code: str, *arguments: object, **options: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True, **options
    )


WRITE = """
import sys, torch
from pathlib import Path
from streamrender_h3.nodes.preview import VideoFile
video = VideoFile(Path(sys.argv[1]), (64, 96))
for k in range(4):
    video.add(torch.full((9, 3, 64, 96), k / 4))
    print(video.frames, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name == "nt", reason="needs kill -9")
def test_a_killed_render_leaves_every_chunk_that_was_added(tmp_path):
    path = tmp_path / "v.mp4"
    writer = run(WRITE, path, stdin=subprocess.PIPE)
    try:
        assert [int(writer.stdout.readline()) for _ in range(4)] == [9, 18, 27, 36]
        writer.send_signal(signal.SIGKILL)
    finally:
        writer.kill()
        writer.communicate()
    assert len(decoded(path)) == playable_frames(path) == 36


FILL = """
import resource, signal, sys, torch
from pathlib import Path
from streamrender_h3.nodes.preview import VideoFile, VideoFileError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
generator = torch.Generator().manual_seed(0)
try:
    with VideoFile(Path(sys.argv[1]), (64, 96)) as video:
        for k in range(int(sys.argv[3])):
            video.add(torch.rand(8, 3, 64, 96, generator=generator))
except VideoFileError as error:
    message = str(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(message)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit on the size of files")
@pytest.mark.parametrize(
    ("limit", "chunks", "whole"),
    [
        (200, 3, 0),  # not even the header
        (20_000, 3, 0),  # the header and a part of the first chunk
        (100_000, 6, 16),  # two chunks of about 34 kB and a part of the third
        (100_000, 3, 16),  # the same, noticed when the file is closed
    ],
)
def test_a_full_disk_is_told_and_what_was_whole_stays_playable(tmp_path, limit, chunks, whole):
    path = tmp_path / "v.mp4"
    writer = run(FILL, path, limit, chunks)
    message = writer.communicate(timeout=120)[0].strip()
    assert writer.returncode == 0
    assert str(path) in message and "Free disk space" in message and "\n" not in message
    assert path.exists() == (whole > 0)
    if whole:
        assert len(decoded(path)) == playable_frames(path) == whole


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_always_full_is_told_before_the_first_frame_and_left_alone():
    with pytest.raises(VideoFileError, match=r"cannot write the video /dev/full: No space left on device"):
        VideoFile(Path("/dev/full"), SIZE)
    assert Path("/dev/full").exists()


def test_what_stopped_the_render_is_not_hidden_by_a_failure_to_close(tmp_path, monkeypatch):
    def fail(self):
        raise VideoFileError("the disk is full")

    with pytest.raises(KeyboardInterrupt), VideoFile(tmp_path / "v.mp4", SIZE) as video:
        video.add(grey(1))
        close = video.close
        monkeypatch.setattr(VideoFile, "close", fail)
        raise KeyboardInterrupt
    close()


def test_a_chunk_is_on_disk_as_soon_as_it_is_added(tmp_path):
    path = tmp_path / "v.mp4"
    with VideoFile(path, SIZE) as video:
        seen = []
        for k in range(5):
            video.add(noise(8, k))
            seen.append(playable_frames(path))
    assert seen == [8, 16, 24, 32, 40]


def test_unreadable_files_have_no_playable_frames(tmp_path):
    for name, content in (("empty.mp4", b""), ("junk.mp4", b"\1\2\3" * 500)):
        (tmp_path / name).write_bytes(content)
        assert playable_frames(tmp_path / name) == 0
