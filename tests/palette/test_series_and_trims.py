"""Frames of folders in the order of their numbers, trimmed videos, odd clocks: nothing is lost or guessed in silence."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
from PIL import Image
from streamrender_h3.nodes.palette import RACING, ClipError, Trim, audit, clip_from_frames, clip_from_video
from streamrender_h3.nodes.palette.series import series_of
from streamrender_h3.nodes.palette.video import _packet_stamps

SIZE = (64, 64)


def save(folder: Path, names: list[str], size: tuple[int, int] = (64, 64)) -> None:
    """Pictures that carry their place in `names` as a grey level."""
    folder.mkdir(exist_ok=True)
    for k, name in enumerate(names):
        Image.fromarray(np.full((*size, 3), 40 + 3 * k, np.uint8)).save(folder / name)


def shown(clip) -> list[int]:
    return [(int(raw.values[0, 0, 0]) - 40) // 3 for raw in clip.source.open()]


def series(*names: str):
    return series_of([Path(name) for name in names], "Folder 'x'")


def test_numbers_are_ordered_by_value_whatever_their_padding(tmp_path):
    save(tmp_path, [f"frame_{k}.png" for k in range(12)])
    assert shown(clip_from_video(tmp_path, reference_size=SIZE)) == list(range(12))
    assert [file.name for file in series("a10.png", "a009.png", "a11.png").files] == ["a009.png", "a10.png", "a11.png"]


def test_a_missing_number_is_held_by_the_frame_before_and_named(tmp_path):
    save(tmp_path, [f"f{k:04}.png" for k in (1, 2, 3, 4, 7, 8, 9, 10)])
    clip = clip_from_video(tmp_path, reference_size=SIZE)
    assert shown(clip) == [0, 1, 2, 3, 3, 3, 4, 5, 6, 7]
    assert (clip.frames, clip.source.timeline.source_frames) == (10, 8)
    found = audit(clip)
    assert "missing frames" in found.causes
    assert "5, 6" in found.reading


def test_every_second_number_is_no_gap():
    found = series("f2.png", "f4.png", "f6.png", "f8.png")
    assert (found.slots, found.troubles) == ((0, 1, 2, 3), ())
    found = series("f2.png", "f4.png", "f8.png", "f10.png", "f12.png", "f14.png", "f16.png")
    assert found.slots == (0, 1, 3, 4, 5, 6, 7)


def test_numbers_that_do_not_count_frames_are_named_and_not_followed():
    found = series("f1.png", "f2.png", "f3.png", "f9001.png")
    assert found.slots == (0, 1, 2, 3)
    assert [trouble.cause for trouble in found.troubles] == ["frame numbers"]
    assert "9001" in found.troubles[0].detail


def test_two_series_in_a_folder_and_a_number_twice_are_refused_by_name():
    with pytest.raises(ClipError, match=r"'mask_#' \(2\).*'rgb_#' \(2\).*another folder"):
        series("rgb_1.png", "rgb_2.png", "mask_1.png", "mask_2.png")
    with pytest.raises(ClipError, match=r"frame 1 2 times.*'f1\.png', 'f01\.png'.*Remove"):
        series("f1.png", "f01.png", "f2.png")
    assert len(series("sky.png", "road.png").files) == 2  # names without numbers: in the order of the names


def test_empty_folders_and_mixed_sizes_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("x")
    with pytest.raises(ClipError, match="holds no images"):
        clip_from_video(tmp_path / "empty")
    save(tmp_path / "mixed", ["0.png", "1.png"])
    Image.new("RGB", (80, 64)).save(tmp_path / "mixed" / "2.png")
    with pytest.raises(ClipError, match=r"2\.png' has 80x64 pixels.*64x64"):
        audit(clip_from_video(tmp_path / "mixed", reference_size=SIZE))
    (tmp_path / "mixed" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ClipError, match=r"2\.png.*Export this frame again"):
        audit(clip_from_video(tmp_path / "mixed", reference_size=SIZE))


@pytest.mark.parametrize("fps", [0, -1, float("nan"), 1e9])
def test_a_frame_rate_that_is_none_is_an_error(tmp_path, fps):
    save(tmp_path, ["0.png", "1.png"])
    with pytest.raises(ClipError, match="frame rate"):
        clip_from_video(tmp_path, reference_size=SIZE, fps=fps)
    with pytest.raises(ClipError, match="frame rate"):
        clip_from_frames(np.zeros((2, 64, 64, 3), np.uint8), reference_size=SIZE, fps=fps)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory, write_video):
    """60 frames at 30 fps with B frames, in which grey tells the number, from 0.5 s of the file's clock on."""
    path = tmp_path_factory.mktemp("trim") / "a.mp4"
    frames = [np.full((64, 64, 3), 40 + 3 * k, np.uint8) for k in range(60)]
    options = {"crf": "0", "preset": "medium", "g": "20"}
    stamps = [15 + k for k in range(60)]
    return write_video(path, frames, rate=30, stamps=stamps, tick=Fraction(1, 30), options=options)


@pytest.mark.parametrize(
    ("start", "duration", "first", "last", "frames"),
    [
        (0, 0, 0, 59, 48),
        (0.5, 0, 0, 59, 48),
        (1.5, 0, 30, 59, 24),
        (1.5, 0.5, 30, 44, 12),
        (0, 1.0, 0, 14, 12),
        (2.4, 5, 57, 59, 2),
    ],
)
def test_a_trimmed_video_is_its_part_by_its_own_clock(numbered, start, duration, first, last, frames):
    clip = clip_from_video(numbered, reference_size=SIZE, trim=Trim(start, duration))
    seen = shown(clip)
    assert (seen[0], len(seen), clip.frames) == (first, frames, frames)
    assert last - 1 <= seen[-1] <= last
    assert seen == sorted(seen)
    assert shown(clip) == seen  # again


def test_a_trim_behind_the_end_is_named(numbered):
    with pytest.raises(ClipError, match=r"trimmed to 1\.0 s from 9 s.*Change the trim"):
        clip_from_video(numbered, reference_size=SIZE, trim=Trim(9, 1.0))


@pytest.mark.parametrize(("width", "aspect"), [(96, Fraction(3, 2)), (64, Fraction(16, 9))])
def test_anamorphic_pixels_count_in_the_shape(tmp_path, width, aspect):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=24)
        stream.width, stream.height, stream.pix_fmt = width, 64, "rgb24"
        stream.codec_context.sample_aspect_ratio = aspect
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, width, 3), np.uint8), "rgb24")))
        container.mux(stream.encode(None))
    assert clip_from_video(path, reference_size=SIZE).shape == Fraction(width, 64) * aspect


def test_a_raw_stream_without_a_clock_goes_by_the_rate_given(tmp_path, write_video):
    frames = [RACING.colours[np.full((64, 64), k % 14)] for k in range(30)]
    path = write_video(tmp_path / "a.h264", frames, "libx264", "yuv444p", rate=30)
    clip = clip_from_video(path, reference_size=SIZE, fps=15)
    assert clip.frames == 48
    assert clip.source.timeline.indices[:4] == (0, 0, 1, 1)
    assert clip.source.without_stamps


class Packets:
    """A container and its stream as far as stamps go."""

    time_base, average_rate, guessed_rate = Fraction(1, 1000), Fraction(24), None

    def __init__(self, *rows):
        self.rows = rows

    def demux(self, stream):
        return [SimpleNamespace(pts=p, dts=d, duration=42, size=9, is_discard=False) for p, d in self.rows]


def test_stamps_are_followed_though_two_are_equal_or_some_are_missing():
    equal = Packets(*((t, t) for t in (0, 42, 83, 83, 167)))
    assert _packet_stamps(equal, equal, None) == ([0, 42, 83, 83, 167], Fraction(1, 1000), 42, False, False)
    fields = Packets((0, 0), (None, 0), (42, 42), (83, 83))  # the second field of a pair has none
    assert _packet_stamps(fields, fields, None).values == [0, 42, 83]
    decoding = Packets((None, 0), (None, 42), (None, 125))  # AVI: a dropped frame leaves a hole
    assert _packet_stamps(decoding, decoding, None) == ([0, 42, 125], Fraction(1, 1000), 42, True, False)
    nothing = Packets((None, None), (None, None))
    assert _packet_stamps(nothing, nothing, None).tick == Fraction(1, 24)
    assert _packet_stamps(nothing, nothing, Fraction(15)).tick == Fraction(1, 15)
