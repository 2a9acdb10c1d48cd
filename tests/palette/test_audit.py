"""The audit: what people bring instead of a clean clip is recognised, read right or refused, and named."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest
from PIL import Image
from streamrender_h3.nodes.palette import (
    RACING,
    ClipError,
    PaletteError,
    clip_from_frames,
    clip_from_video,
    clip_report,
    load_palette,
    palette_report,
    write_labels,
)

SIZE = (64, 64)
INDICES = "class indices instead of colours"


@pytest.fixture(scope="module")
def drawn(scene):
    """Ids uint8 [3, 256, 448] of a scene with every class."""
    ids = np.stack([scene(t, 448, 256) for t in range(3)])
    assert set(np.unique(ids)) == set(range(14))
    return ids


def report_and_ids(frames, palette=RACING, **kwargs):
    clip = clip_from_frames(frames, palette, SIZE, **kwargs)
    return clip_report(clip), np.stack(list(clip.open()))


def srgb_to_linear(colours):
    unit = colours / 255
    return np.rint(255 * np.where(unit <= 0.04045, unit / 12.92, ((unit + 0.055) / 1.055) ** 2.4)).astype(np.uint8)


def test_a_clean_clip_is_good_and_silent(drawn):
    report, ids = report_and_ids(RACING.colours[drawn])
    assert (report["verdict"], report["causes"], report["advice"]) == ("good", [], "")
    assert (report["exact_share"], report["doubtful_share"]) == (1, 0)
    assert np.array_equal(ids, drawn)
    assert json.dumps(report)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("kernel", ["NEAREST", "BILINEAR", "LANCZOS", "BOX"])
def test_blending_resizes_raise_one_warning_and_nearest_none(drawn, kernel, dtype):
    frames = [
        np.asarray(Image.fromarray(RACING.colours[i]).resize((277, 160), Image.Resampling[kernel])) for i in drawn
    ]
    batch = np.stack(frames)
    report, ids = report_and_ids(batch if dtype == "uint8" else (batch / 255).astype(dtype))
    assert report["causes"] == ([] if kernel == "NEAREST" else ["resampled before"])
    assert report["verdict"] == ("good" if kernel == "NEAREST" else "usable")
    assert np.array_equal(ids, report_and_ids(batch)[1])


@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("channel swap", lambda colours: colours[:, ::-1]),
        ("channel swap", lambda colours: colours[:, [1, 2, 0]]),
        ("gamma", srgb_to_linear),
        ("gamma", lambda colours: np.rint(255 * (colours / 255) ** (1 / 2.2)).astype(np.uint8)),
        ("wrong matrix or range", lambda colours: np.rint(16 + colours * (219 / 255)).astype(np.uint8)),
        (
            "wrong matrix or range",
            lambda c: np.clip(np.rint((c.astype(float) - 16) * 255 / 219), 0, 255).astype(np.uint8),
        ),
    ],
)
def test_changed_colours_are_named_and_read_right(drawn, cause, change):
    frames = change(RACING.colours)[drawn]
    report, ids = report_and_ids(frames)
    assert (report["verdict"], report["causes"]) == ("usable", [cause])
    assert np.array_equal(ids, drawn)
    assert report_and_ids(frames, repair="off")[0]["verdict"] == "stop"


@pytest.mark.parametrize(("tagged", "shown"), [(1, 6), (6, 1)])
def test_a_wrong_matrix_tag_is_named_and_undone(tmp_path, drawn, write_video, tagged, shown):
    """Encoded by one matrix, tagged as the other."""
    matrix = {1: 1, 6: 5}[shown]
    path = write_video(tmp_path / "a.mkv", RACING.colours[drawn], "libx264", "yuv444p", colour=(matrix, 1), tag=tagged)
    clip = clip_from_video(path, reference_size=SIZE)
    report = clip_report(clip)
    assert report["causes"] == ["wrong matrix or range"]
    assert np.array_equal(np.stack(list(clip.open())), drawn)


def red_only(ids):
    frames = np.zeros((*ids.shape, 3), dtype=np.uint8)
    frames[..., 0] = ids
    return frames


@pytest.mark.parametrize(
    "as_numbers",
    [
        lambda ids: ids,
        lambda ids: ids.astype(np.uint16),
        lambda ids: ids.astype(np.uint16) * 257,
        lambda ids: ids.astype(np.uint16) * 256,
        lambda ids: ids.astype(np.int64),
        red_only,
        lambda ids: np.repeat(ids[..., None], 3, axis=-1),
        lambda ids: np.repeat(ids[..., None], 3, axis=-1).astype(np.float32) / 255,
    ],
)
def test_class_indices_are_recognised_and_read(drawn, as_numbers):
    report, ids = report_and_ids(as_numbers(drawn))
    assert (report["verdict"], report["causes"]) == ("usable", [INDICES])
    assert np.array_equal(ids, drawn)


@pytest.mark.parametrize("scale", [1, 256, 257])
def test_48_bit_colours_are_read_right(drawn, scale):
    report, ids = report_and_ids(RACING.colours[drawn].astype(np.uint16) * scale)
    assert report["verdict"] == "good"
    assert np.array_equal(ids, drawn)


def save_pngs(folder, ids, kind):
    for k, frame in enumerate(ids):
        if kind == "palette of colours":
            image = Image.fromarray(frame, "P")
            image.putpalette(RACING.colours.tobytes())
        elif kind == "palette of other colours":
            image = Image.fromarray(frame, "P")
            image.putpalette(np.random.default_rng(1).integers(0, 256, 42, dtype=np.uint8).tobytes())
        elif kind == "grey 16":
            image = Image.fromarray(frame.astype(np.uint16))
        elif kind == "grey 8":
            image = Image.fromarray(frame)
        elif kind == "rgba":
            image = Image.fromarray(np.dstack([RACING.colours[frame], np.full(frame.shape, 255, np.uint8)]))
        else:
            image = Image.fromarray(RACING.colours[frame])
        image.save(folder / f"{k}.png")


@pytest.mark.parametrize(
    ("kind", "causes"),
    [
        ("rgb", []),
        ("rgba", []),
        ("palette of colours", []),
        ("palette of other colours", [INDICES]),
        ("grey 8", [INDICES]),
        ("grey 16", [INDICES]),
    ],
)
def test_png_modes_are_read_right(tmp_path, drawn, kind, causes):
    save_pngs(tmp_path, drawn, kind)
    clip = clip_from_video(tmp_path, reference_size=SIZE)
    assert clip_report(clip)["causes"] == causes
    assert np.array_equal(np.stack(list(clip.open())), drawn)


@pytest.mark.parametrize("scale", [1, 257])
def test_48_bit_png_is_read_right(tmp_path, drawn, scale):
    import av

    for k, frame in enumerate(drawn):
        with av.open(str(tmp_path / f"{k}.png"), "w", format="image2", options={"update": "1"}) as container:
            stream = container.add_stream("png", rate=24)
            stream.height, stream.width = frame.shape
            stream.pix_fmt = "rgb48be"
            picture = av.VideoFrame.from_ndarray(RACING.colours[frame].astype(np.uint16) * scale, format="rgb48le")
            container.mux(stream.encode(picture.reformat(format="rgb48be")))
            container.mux(stream.encode(None))
    clip = clip_from_video(tmp_path, reference_size=SIZE)
    assert clip_report(clip)["verdict"] == "good"
    assert np.array_equal(np.stack(list(clip.open())), drawn)


def test_premultiplied_alpha_is_named_and_undone(drawn):
    alpha = np.full(drawn.shape, 255, dtype=np.uint8)
    alpha[:, 100:200, 100:300] = 160
    colours = np.rint(RACING.colours[drawn] * (alpha[..., None] / 255)).astype(np.uint8)
    report, ids = report_and_ids(np.concatenate([colours, alpha[..., None]], axis=-1))
    assert report["causes"] == ["premultiplied alpha"]
    assert (ids == drawn).mean() > 0.999
    straight = np.concatenate([RACING.colours[drawn], alpha[..., None]], axis=-1)
    assert report_and_ids(straight)[0]["verdict"] == "good"


def test_another_palette_is_noticed_though_many_colours_are_ours(drawn):
    city = load_palette("cityscapes")
    names = ["road", "sidewalk", "building", "vegetation", "terrain", "sky", "car", "person", "traffic_sign", "fence"]
    numbers = np.array([city.index(names[i % len(names)]) for i in range(14)])
    frames = city.colours[numbers[drawn]]
    report, _ = report_and_ids(frames)
    assert report["verdict"] == "stop"
    assert report["causes"] == ["another data set's palette"]
    assert "cityscapes" in report["reading"] or "carla" in report["reading"]
    good, ids = report_and_ids(frames, city)
    assert good["verdict"] == "good"
    expected = np.array([RACING.index(city.entries[n].maps_to) for n in numbers], dtype=np.uint8)
    assert np.array_equal(ids, expected[drawn])
    assert set(good["classes"]) == set(RACING.names)


def test_raw_carla_tags_need_the_carla_palette(drawn):
    carla = load_palette("carla")
    tags = np.array([1, 2, 3, 5, 9, 10, 11, 14, 15, 20, 24, 28, 8, 0], dtype=np.uint8)[drawn]
    report, _ = report_and_ids(red_only(tags))
    assert (report["verdict"], report["causes"]) == ("stop", [INDICES])
    assert "28" in report["reading"]
    report, ids = report_and_ids(red_only(tags), carla)
    assert report["verdict"] == "usable"
    expected = np.array([RACING.index(entry.maps_to) for entry in carla.entries], dtype=np.uint8)
    assert np.array_equal(ids, expected[tags])


@pytest.mark.parametrize("name", ["ade20k", "carla", "cityscapes"])
def test_translators_have_words_and_targets_for_every_class(name):
    palette = load_palette(name)
    assert palette.target == "racing"
    assert all(entry.words and entry.maps_to in RACING.names for entry in palette.entries)
    assert (palette.radii <= 30).all()


def test_a_translator_to_an_unknown_class_is_refused(tmp_path, drawn):
    rows = [{"name": "a", "rgb": [0, 0, 0], "as": "moon"}, {"name": "b", "rgb": [255, 0, 0], "as": "sky"}]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"version": 1, "name": "mine", "target": "racing", "classes": rows}))
    with pytest.raises(PaletteError, match=r"'a'.*'moon'"):
        next(clip_from_frames(RACING.colours[drawn], load_palette(file), SIZE).open())


def test_black_and_noise_and_overlays_are_not_accepted_in_silence(drawn):
    assert report_and_ids(np.zeros((2, 96, 96, 3), dtype=np.uint8))[0]["verdict"] == "stop"
    noise = np.random.default_rng(0).integers(0, 256, (1, 96, 96, 3), dtype=np.uint8)
    assert report_and_ids(noise)[0]["verdict"] == "stop"
    overlay = RACING.colours[drawn]
    overlay[:, 10:30, 10:60] = (30, 200, 120)
    report, _ = report_and_ids(overlay)
    assert report["causes"] == ["unknown colours"]
    assert report["unknown_colours"][0]["rgb"] == [30, 200, 120]


def test_flicker_and_damaged_thin_classes_are_named(drawn):
    flicker = RACING.colours[np.stack([drawn[0], drawn[0], drawn[0], drawn[0]])]
    flicker[::2, 20:60, 20:90] = RACING.colours[RACING.index("billboard")]
    assert "billboard" in report_and_ids(flicker)[0]["flickering_classes"]
    assert report_and_ids(RACING.colours[drawn])[0]["flickering_classes"] == []


def test_report_of_a_file_and_its_label_pictures(tmp_path, drawn, write_video):
    path = write_video(tmp_path / "a.mkv", list(RACING.colours[drawn]) * 10, "ffv1", "bgr0", rate=30)
    report = palette_report(path)
    assert (report["frames_in"], report["frames"], report["seconds_in"]) == (30, 24, pytest.approx(1, abs=0.01))
    assert report["source_index"][:6] == [0, 1, 2, 3, 5, 6]
    clip = clip_from_video(path, reference_size=SIZE)
    assert write_labels(clip, tmp_path / "labels") == 24
    pictures = sorted((tmp_path / "labels").iterdir())
    assert len(pictures) == 24
    with Image.open(pictures[4]) as image:
        assert image.mode == "L"
        assert np.array_equal(np.asarray(image), drawn[5 % 3])


def test_fuzz_gives_named_errors_only(tmp_path, write_video):
    rng = np.random.default_rng(7)
    end = time.monotonic() + (60 if os.environ.get("SRH3_LONG") == "1" else 8)
    sound = write_video(
        tmp_path / "a.mkv", [RACING.colours[rng.integers(0, 14, (64, 80))]] * 4, "ffv1", "bgr0"
    ).read_bytes()
    while time.monotonic() < end:
        height, width = rng.integers(1, 140, 2)
        channels = [(), (1,), (2,), (3,), (4,), (5,)][rng.integers(6)]
        dtype = [np.uint8, np.uint16, np.int32, np.float16, np.float32, bool, np.complex64][rng.integers(7)]
        shape = (int(rng.integers(0, 4)), height, width, *channels)
        with np.errstate(over="ignore"):
            frames = (rng.random(shape) * rng.choice([1, 14, 255, 65535])).astype(dtype)
        try:
            clip_report(clip_from_frames(frames, reference_size=SIZE))
        except (ClipError, PaletteError) as error:
            assert len(str(error)) > 30
        broken = bytearray(sound[: rng.integers(1, len(sound))])
        for _ in range(rng.integers(0, 20)):
            broken[rng.integers(len(broken))] = rng.integers(256)
        (tmp_path / "b.mkv").write_bytes(bytes(broken))
        try:
            clip_report(clip_from_video(tmp_path / "b.mkv", reference_size=SIZE))
        except ClipError as error:
            assert "b.mkv" in str(error)
