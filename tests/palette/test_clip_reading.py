"""Reading clips: lossless files bit for bit, lossy files as labels, exact lengths, named errors, constant memory."""

from __future__ import annotations

import gc
import io
import weakref
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from PIL import Image
from streamrender_h3.nodes.palette import RACING, ClipError, clip_from_frames, clip_from_video, read_legend

SMALL = (96, 160)


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt"),
    [
        ("a.mp4", "libx264rgb", "rgb24"),
        ("a.mkv", "ffv1", "bgr0"),
        ("b.avi", "huffyuv", "rgb24"),
        ("a.mov", "qtrle", "rgb24"),
        ("b.mov", "png", "rgb24"),
        ("a.avi", "utvideo", "gbrp"),
    ],
)
def test_lossless_rgb_video_is_bit_exact(tmp_path, small, write_video, name, codec, pix_fmt):
    ids, colours = small
    clip = clip_from_video(write_video(tmp_path / name, colours, codec, pix_fmt), reference_size=SMALL)
    assert (clip.frames, clip.size) == (8, (192, 320))
    assert np.array_equal(np.stack(list(clip.open())), ids)
    assert not any(frame.doubtful.any() for frame in clip.label_frames())
    assert read_legend(clip).exact == 1


def test_h264_420_snaps_with_few_wrong_labels(tmp_path, scene, write_video):
    ids = [scene(t) for t in (0, 1)]
    path = write_video(
        tmp_path / "lossy.mp4", [RACING.colours[i] for i in ids], "libx264", "yuv420p", options={"crf": "18"}
    )
    clip = clip_from_video(path)
    wrong = [(seen != true).mean() for seen, true in zip(clip.open(), ids, strict=True)]
    assert max(wrong) < 0.005
    legend = read_legend(clip)
    assert 0 < legend.doubtful < 0.04
    assert legend.shares["sky"] == pytest.approx((np.stack(ids) == 11).mean(), abs=0.002)


@pytest.mark.parametrize("matrix", [1, 5, 9])
@pytest.mark.parametrize("colour_range", [1, 2])
def test_tagged_matrix_and_range_are_honoured(tmp_path, small, write_video, matrix, colour_range):
    ids, colours = small
    path = write_video(tmp_path / "a.mkv", colours, "libx264", "yuv444p", colour=(matrix, colour_range))
    clip = clip_from_video(path, reference_size=SMALL)
    for raw, true in zip(clip.source.open(), colours, strict=True):
        assert np.abs(raw.values.astype(int) - true).max() <= 3
    assert np.array_equal(np.stack(list(clip.open())), ids)


def test_reference_frames_are_exact_palette_colours_by_the_floor_rule(small):
    colours = small[1]
    clip = clip_from_frames(colours, reference_size=SMALL)
    for frame, true in zip(clip.reference_frames(), colours, strict=True):
        assert frame.shape == (3, *SMALL)
        assert frame.dtype == torch.float32
        source = torch.from_numpy(true).permute(2, 0, 1)[None].float() / 255
        assert torch.equal(frame, torch.nn.functional.interpolate(source, size=SMALL, mode="nearest")[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_image_batches_of_any_dtype_agree(small, dtype):
    ids, colours = small
    batch = torch.from_numpy(colours)
    batch = batch if dtype == torch.uint8 else (batch.float() / 255).to(dtype)
    clip = clip_from_frames(batch, reference_size=SMALL)
    assert np.array_equal(np.stack(list(clip.open())), ids)


def test_png_folder_reads_in_natural_order(tmp_path, small):
    ids, colours = small
    for k in range(12):
        Image.fromarray(colours[k % 8]).save(tmp_path / f"frame_{k}.png")
    clip = clip_from_video(tmp_path, reference_size=SMALL)
    assert clip.frames == 12
    assert all(np.array_equal(seen, ids[k % 8]) for k, seen in enumerate(clip.open()))
    assert clip_from_video(tmp_path, reference_size=SMALL, fps=12).frames == 24


def test_a_clip_opens_again_and_twice_at_once(tmp_path, small, write_video):
    ids, colours = small
    data = io.BytesIO(write_video(tmp_path / "a.mkv", colours, "ffv1", "bgr0").read_bytes())
    clip = clip_from_video(data, reference_size=SMALL)
    pairs = list(zip(clip.open(), clip.open(), strict=True))
    assert all(np.array_equal(a, b) and np.array_equal(a, true) for (a, b), true in zip(pairs, ids, strict=True))


@pytest.mark.parametrize("frames", [1, 4, 5, 6, 22, 30, 31, 124])
@pytest.mark.parametrize(("name", "codec", "pix_fmt"), [("a.mp4", "libx264", "yuv420p"), ("a.mkv", "ffv1", "bgr0")])
def test_length_is_known_exactly_before_decoding(tmp_path, write_video, frames, name, codec, pix_fmt):
    picture = np.zeros((64, 64, 3), dtype=np.uint8)
    clip = clip_from_video(write_video(tmp_path / name, [picture] * frames, codec, pix_fmt), reference_size=(64, 64))
    assert clip.frames == frames
    assert sum(1 for _ in clip.open()) == frames
    assert clip.source.timeline.indices == tuple(range(frames))


def grey_levels(count: int) -> list[np.ndarray]:
    """Frames that carry their own number as a grey level."""
    return [np.full((64, 64, 3), 4 * (i % 60), dtype=np.uint8) for i in range(count)]


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4", "a.nut"])
def test_variable_rate_goes_by_time_stamps(tmp_path, write_video, name):
    stamps = [17 * i if i < 31 else 510 + 50 * (i - 30) for i in range(60)]
    path = write_video(tmp_path / name, grey_levels(60), "libx264rgb", stamps=stamps, rate=1000)
    clip = clip_from_video(path, reference_size=(64, 64))
    assert clip.frames == 48
    first = [0, 2, 4, 7, 9, 12, 14, 17, 19, 22, 24, 26, 29, 30, 31, 32, 33, 33, 34, 35]
    assert list(clip.source.timeline.indices[:20]) == first
    shown = [int(raw.values[0, 0, 0]) // 4 for raw in clip.source.open()]
    assert shown == list(clip.source.timeline.indices)


def test_ntsc_rate_with_a_late_start_loses_no_lead(tmp_path, write_video):
    stamps = [31980 + 1001 * i for i in range(60)]  # from 0.533 s
    path = write_video(
        tmp_path / "a.mp4",
        grey_levels(60),
        "libx264rgb",
        stamps=stamps,
        tick=Fraction(1, 60000),
        rate=Fraction(60000, 1001),
    )
    clip = clip_from_video(path, reference_size=(64, 64))
    assert clip.frames == 24
    assert clip.source.timeline.indices == tuple(int(k * Fraction(60000, 1001) / 24) for k in range(24))
    shown = [int(raw.values[0, 0, 0]) // 4 for raw in clip.source.open()]
    assert shown == list(clip.source.timeline.indices)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi"])
def test_constant_30_fps_drops_every_fifth_frame(tmp_path, write_video, name):
    path = write_video(tmp_path / name, grey_levels(90), "libx264rgb", rate=30)
    clip = clip_from_video(path, reference_size=(64, 64))
    assert clip.frames == 72
    assert clip.source.timeline.indices[:6] == (0, 1, 2, 3, 5, 6)
    batch = clip_from_frames(grey_levels(90), reference_size=(64, 64), fps=30)
    assert batch.source.timeline.indices == clip.source.timeline.indices


@pytest.mark.parametrize(("angle", "turns"), [(90, 1), (180, 2), (270, 3)])
def test_rotation_flag_is_applied(tmp_path, small, write_video, angle, turns):
    ids, colours = small
    path = write_video(tmp_path / "a.mp4", colours)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40  # the 3x3 display matrix of the track header, 16.16 fixed point
    one = 1 << 16
    a, b = {90: (0, one), 180: (-one, 0), 270: (0, -one)}[angle]
    for offset, value in zip((0, 4, 12, 16), (a, b, -b, a), strict=True):
        data[at + offset : at + offset + 4] = value.to_bytes(4, "big", signed=True)
    path.write_bytes(bytes(data))
    clip = clip_from_video(path, reference_size=SMALL)
    # The matrix says: turn clockwise by `angle` to show.
    expected = np.rot90(ids[0], -turns)
    assert clip.size == expected.shape
    assert np.array_equal(next(clip.open()), expected)


def test_2400_generated_frames_are_never_held():
    alive = most = 0

    class Frame(np.ndarray):
        """An array that can be watched while it lives."""

    def gone():
        nonlocal alive
        alive -= 1

    def start():
        nonlocal alive, most
        for k in range(2400):
            frame = np.full((64, 64, 3), RACING.colours[k % 14], dtype=np.uint8).view(Frame)
            weakref.finalize(frame, gone)
            alive += 1
            most = max(most, alive)
            yield frame

    clip = clip_from_frames(start, reference_size=(64, 64), count=2400)
    assert clip.frames == 2400
    gc.collect()
    seen = 0
    for k, frame in enumerate(clip.reference_frames()):
        seen += 1
        if k % 500 == 0:
            assert torch.equal(frame[:, 0, 0] * 255, torch.from_numpy(RACING.colours[k % 14]).float())
    assert seen == 2400
    assert most <= 4


def test_decoding_stops_when_the_reader_stops(tmp_path, small, write_video):
    clip = clip_from_video(write_video(tmp_path / "a.mp4", small[1]), reference_size=SMALL)
    frames = clip.open()
    next(frames)
    frames.close()
    (tmp_path / "a.mp4").unlink()


def test_bad_files_are_named_with_a_remedy(tmp_path, small, write_video):
    text = tmp_path / "notes.mp4"
    text.write_text("not a video")
    with pytest.raises(ClipError, match=r"notes\.mp4.*could not be read.*export"):
        clip_from_video(text)
    with pytest.raises(ClipError, match=r"missing\.mp4.*does not exist.*Check the path"):
        clip_from_video(tmp_path / "missing.mp4")
    sound = tmp_path / "sound.wav"
    with av.open(str(sound), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), dtype=np.int16), layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(ClipError, match=r"sound\.wav.*no video stream.*audio.*Choose another file"):
        clip_from_video(sound)
    with pytest.raises(ClipError, match=r"holds no images"):
        (tmp_path / "empty").mkdir()
        clip_from_video(tmp_path / "empty")
    with pytest.raises(ClipError, match=r"no frames"):
        clip_from_frames(torch.zeros(0, 64, 64, 3))
    with pytest.raises(ClipError, match=r"32x64.*at least 64"):
        clip_from_frames(torch.zeros(1, 64, 32, 3))
    cut = write_video(tmp_path / "cut.mkv", list(small[1]) * 4, "ffv1", "bgr0")
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    clip = clip_from_video(cut, reference_size=SMALL)
    assert 0 < clip.frames < 32


def test_a_video_without_frames_is_an_error(tmp_path):
    path = tmp_path / "none.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=24)
        stream.width = stream.height = 64
        container.start_encoding()
    with pytest.raises(ClipError, match=r"none\.mkv"):
        clip_from_video(path)


def test_legend_text_and_picture_tell_shares(small):
    ids, colours = small
    legend = read_legend(clip_from_frames(colours, reference_size=SMALL))
    assert legend.exact == 1
    assert legend.doubtful == 0
    assert legend.shares["road"] == pytest.approx((ids == 1).mean())
    assert sum(legend.classes) == pytest.approx(1)
    assert f"{(ids == 1).mean():.3%}" in legend.as_text()
    picture = np.asarray(legend.picture())
    for entry in RACING.entries:
        assert (picture == entry.rgb).all(-1).any(), entry.name
