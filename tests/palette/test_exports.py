"""What Blender, Unity, Unreal, CARLA and segmentation models write: read right, or refused by name."""

from __future__ import annotations

import av
import numpy as np
import pytest
from PIL import Image
from streamrender_h3.nodes.palette import (
    RACING,
    ClipError,
    audit,
    clip_from_frames,
    clip_from_video,
    clip_report,
    load_palette,
)

SIZE = (64, 64)
INDICES = "class indices instead of colours"


@pytest.fixture(scope="module")
def drawn(scene):
    """Ids uint8 [3, 160, 280] of a scene with every class."""
    ids = np.stack([scene(t, 280, 160) for t in range(3)])
    assert set(np.unique(ids)) == set(range(14))
    return ids


def ids_of(clip):
    return np.stack(list(clip.open()))


def judged(frames, palette=RACING, **kwargs):
    clip = clip_from_frames(frames, palette, SIZE, **kwargs)
    return audit(clip), ids_of(clip)


def to_light(colours):
    unit = colours / 255
    return np.where(unit <= 0.04045, unit / 12.92, ((unit + 0.055) / 1.055) ** 2.4).astype(np.float32)


def write_picture(path, values, pix_fmt, codec):
    """One picture through FFmpeg, its values in the layout of `pix_fmt`."""
    with av.open(str(path), "w", format="image2", options={"update": "1"}) as container:
        stream = container.add_stream(codec, rate=24)
        stream.height, stream.width = values.shape[:2]
        stream.pix_fmt = pix_fmt
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(values), format=pix_fmt)))
        container.mux(stream.encode(None))


# --- Blender ---------------------------------------------------------------------------------------------------------


def test_exr_in_linear_light_is_read_as_colours(tmp_path, drawn):
    for k, ids in enumerate(drawn):
        write_picture(tmp_path / f"{k:04}.exr", to_light(RACING.colours[ids]), "gbrpf32le", "exr")
    clip = clip_from_video(tmp_path, reference_size=SIZE)
    assert clip_report(clip)["verdict"] == "good"
    assert np.array_equal(ids_of(clip), drawn)


def test_exr_that_holds_display_colours_is_named_and_undone(tmp_path, drawn):
    write_picture(tmp_path / "a.exr", (RACING.colours[drawn[0]] / 255).astype(np.float32), "gbrpf32le", "exr")
    clip = clip_from_video(tmp_path / "a.exr", reference_size=SIZE)
    assert audit(clip).causes == ("gamma",)
    assert np.array_equal(ids_of(clip)[0], drawn[0])


@pytest.mark.parametrize("channels", [1, 3])
def test_an_object_index_pass_in_exr_is_read_as_numbers(tmp_path, drawn, channels):
    numbers = drawn[0].astype(np.float32)
    values = numbers if channels == 1 else np.repeat(numbers[..., None], 3, axis=-1)
    write_picture(tmp_path / "0.exr", values, "grayf32le" if channels == 1 else "gbrpf32le", "exr")
    clip = clip_from_video(tmp_path / "0.exr", reference_size=SIZE)
    assert audit(clip).causes == (INDICES,)
    assert np.array_equal(ids_of(clip)[0], drawn[0])


def test_an_exr_that_cannot_be_read_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "0001.exr").write_bytes(b"\x76\x2f\x31\x01" + bytes(200))
    with pytest.raises(ClipError, match=r"0001\.exr.*Export PNG.*one layer"):
        clip_from_video(tmp_path)


def test_dithered_pngs_are_good_and_exact_labels(drawn):
    """Blender's dither adds a step of noise to every channel."""
    noise = np.random.default_rng(0).integers(-1, 2, (*drawn.shape, 3))
    found, ids = judged(np.clip(RACING.colours[drawn] + noise, 0, 255).astype(np.uint8))
    assert (found.verdict, found.causes) == ("good", ())
    assert np.array_equal(ids, drawn)


def test_dithered_antialiased_edges_are_called_resampled_and_not_lossy(drawn):
    large = np.repeat(np.repeat(drawn, 2, axis=1), 2, axis=2)
    soft = np.stack(
        [np.asarray(Image.fromarray(RACING.colours[i]).resize((420, 240), Image.Resampling.BOX)) for i in large]
    )
    noise = np.random.default_rng(0).integers(-1, 2, soft.shape)
    assert "resampled before" in judged(np.clip(soft + noise, 0, 255).astype(np.uint8))[0].causes


def test_tone_mapped_colours_are_stopped_with_the_view_transform_named(drawn):
    unit = to_light(RACING.colours[drawn])
    filmic = np.rint(255 * (unit / (unit + 0.155) * 1.019)).astype(np.uint8)
    found, _ = judged(filmic)
    assert found.verdict == "stop"
    assert "view transform" in found.advice


def test_cryptomatte_like_random_colours_are_stopped(drawn):
    colours = np.random.default_rng(4).integers(0, 256, (14, 3), dtype=np.uint8)
    assert judged(colours[drawn])[0].verdict == "stop"


# --- Unity, Unreal ---------------------------------------------------------------------------------------------------


def test_alpha_that_is_zero_everywhere_says_nothing(drawn):
    rgba = np.concatenate([RACING.colours[drawn], np.zeros((*drawn.shape, 1), np.uint8)], axis=-1)
    found, ids = judged(rgba)
    assert (found.verdict, found.causes) == ("good", ())
    assert np.array_equal(ids, drawn)


def test_transparent_pixels_are_unlabeled_and_named_when_they_carry_classes(drawn):
    alpha = np.where(drawn == RACING.index("sky"), 0, 255).astype(np.uint8)[..., None]
    found, ids = judged(np.concatenate([RACING.colours[drawn], alpha], axis=-1))
    assert "transparent areas" in found.causes
    assert (ids[drawn == RACING.index("sky")] == 0).all()
    empty = np.concatenate([RACING.colours[drawn] * (alpha > 0), alpha], axis=-1)
    assert "transparent areas" not in judged(empty)[0].causes


@pytest.mark.parametrize("swap", [False, True])
def test_linear_colours_are_undone_in_lossy_files_and_swapped_channels_too(tmp_path, drawn, write_video, swap):
    """A project in linear colour space, recorded to H.264."""
    linear = np.rint(255 * to_light(RACING.colours)).astype(np.uint8)
    colours = linear[:, ::-1] if swap else linear
    path = write_video(tmp_path / "a.mp4", list(colours[drawn]), "libx264", "yuv444p", options={"crf": "12"})
    clip = clip_from_video(path, reference_size=SIZE)
    assert "gamma" in audit(clip).causes
    assert (ids_of(clip) != drawn).mean() < 0.01


def test_stencil_greys_count_as_numbers_and_spread_greys_are_stopped_with_a_hint(drawn):
    grey = np.repeat(drawn[..., None], 3, axis=-1)
    found, ids = judged(grey)
    assert found.causes == (INDICES,)
    assert np.array_equal(ids, drawn)
    for frames in (grey * 19, drawn * 19):
        found, _ = judged(frames)
        assert (found.verdict, found.causes) == ("stop", (INDICES,))
        assert "times 19" in found.reading


# --- CARLA and segmentation models ------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", [0, 2])
def test_carla_tags_are_read_from_red_and_from_blue(drawn, channel):
    """The raw image is BGRA; people save it as it is."""
    carla = load_palette("carla")
    tags = np.array([1, 2, 3, 5, 9, 10, 11, 14, 15, 20, 24, 28, 8, 0], dtype=np.uint8)[drawn]
    raw = np.zeros((*drawn.shape, 4), np.uint8)
    raw[..., channel], raw[..., 3] = tags, 255
    found, ids = judged(raw, carla)
    assert found.causes[0] == INDICES
    expected = np.array([RACING.index(entry.maps_to) for entry in carla.entries], dtype=np.uint8)
    assert np.array_equal(ids, expected[tags])
    found, _ = judged(raw)
    assert found.verdict == "stop"
    assert "carla" in found.reading


def test_old_and_new_carla_tags_are_two_palettes():
    old, new = load_palette("carla_0.9.13"), load_palette("carla")
    number = {name: {e.name: e.numbers for e in palette.entries} for name, palette in (("old", old), ("new", new))}
    assert (number["old"]["road"], number["new"]["road"]) == ((7,), (1,))
    assert (number["old"]["guard_rail"], number["new"]["guard_rail"]) == ((17,), (28,))


def class_of(palette):
    """Number -> class of racing."""
    return {number: RACING.index(entry.maps_to) for entry in palette.entries for number in entry.numbers}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("cityscapes", [0, 7, 8, 11, 12, 17, 19, 20, 21, 22, 23, 24, 26, 33]),
        ("cityscapes_trainids", [255, 0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 18]),
        ("ade20k", [0, 1, 2, 3, 5, 7, 10, 12, 13, 17, 21, 49, 94, 150]),
        ("ade20k_model", [255, 0, 1, 2, 4, 6, 9, 11, 12, 16, 20, 48, 93, 149]),
    ],
)
@pytest.mark.parametrize("form", ["grey", "batch", "sixteen"])
def test_numbers_of_data_sets_and_models_are_translated(drawn, name, numbers, form):
    palette = load_palette(name)
    values = np.array(numbers, dtype=np.uint8)[drawn]
    frames = {
        "grey": values,
        "sixteen": values.astype(np.uint16),
        "batch": np.repeat(values[..., None], 3, -1) / 255.0,
    }[form]
    found, ids = judged(frames, palette)
    assert found.causes[0] == INDICES
    assert found.verdict == "usable"
    table = class_of(palette)
    assert np.array_equal(ids, np.array([table[number] for number in numbers], dtype=np.uint8)[drawn])


def test_a_model_counts_from_wall_where_annotations_count_from_other():
    model, annotation = class_of(load_palette("ade20k_model")), class_of(load_palette("ade20k"))
    assert all(model[number - 1] == annotation[number] for number in range(1, 151))


def test_cityscapes_instance_numbers_and_void_are_read(drawn):
    numbers = np.array([0, 7, 8, 11, 12, 17, 19, 20, 21, 22, 23, 24, 26, 33], dtype=np.uint16)[drawn]
    with_instances = np.where(np.isin(numbers, (24, 26, 33)), numbers * 1000 + 5, numbers).astype(np.uint16)
    void = with_instances.copy()
    void[:, :20, :20] = 255
    city = load_palette("cityscapes")
    table = np.zeros(256, dtype=np.uint8)
    for number, class_id in class_of(city).items():
        table[number] = class_id
    found, ids = judged(void, city)
    assert found.verdict == "usable"
    expected = table[numbers]
    expected[:, :20, :20] = 0
    assert np.array_equal(ids, expected)


@pytest.mark.parametrize("lossy", [False, True])
def test_cityscapes_is_noticed_though_only_one_of_its_colours_is_not_ours(tmp_path, drawn, write_video, lossy):
    """Road, sidewalk, building, vegetation, sky, light, sign and rider have our colours; the car has not."""
    city = load_palette("cityscapes")
    names = ["road", "sidewalk", "building", "vegetation", "sky", "car", "traffic_light", "traffic_sign", "rider"]
    colours = city.colours[[city.index(names[i % len(names)]) for i in range(14)]]
    frames = colours[drawn]
    if lossy:
        path = write_video(tmp_path / "a.mp4", list(frames), "libx264", "yuv420p", options={"crf": "20"})
        found = audit(clip_from_video(path, reference_size=SIZE))
    else:
        found = judged(frames)[0]
    assert found.verdict == "stop"
    assert found.causes[0] == "another data set's palette"
    assert "cityscapes" in found.reading or "carla" in found.reading


def test_saved_arrays_are_read(tmp_path, drawn):
    np.save(tmp_path / "clip.npy", drawn)
    clip = clip_from_video(tmp_path / "clip.npy", reference_size=SIZE)
    assert audit(clip).causes == (INDICES,)
    assert np.array_equal(ids_of(clip), drawn)
    folder = tmp_path / "frames"
    folder.mkdir()
    for k, ids in enumerate(drawn):
        np.save(folder / f"{k}.npy", RACING.colours[ids])
    assert np.array_equal(ids_of(clip_from_video(folder, reference_size=SIZE)), drawn)
    np.save(tmp_path / "bad.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ClipError, match=r"bad\.npy.*numpy\.save"):
        clip_from_video(tmp_path / "bad.npy")


# --- containers, stills, odd files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt", "options", "most_wrong"),
    [
        ("a.mov", "prores_ks", "yuv444p10le", {"profile": "4"}, 0.001),
        ("b.mov", "prores_ks", "yuva444p10le", {"profile": "4"}, 0.001),
        ("c.mov", "prores_ks", "yuv422p10le", {"profile": "3"}, 0.01),
        ("a.webm", "libvpx-vp9", "yuv420p", {"crf": "20", "b": "0", "cpu-used": "8"}, 0.015),
        ("b.webm", "libvpx-vp9", "gbrp", {"lossless": "1", "cpu-used": "8"}, 0),
        ("a.mkv", "libx265", "yuv444p", {"crf": "18", "x265-params": "log-level=0"}, 0.002),
        ("a.avi", "mpeg4", "yuv420p", {"q": "3"}, 0.02),
        ("b.mkv", "ffv1", "yuv444p10le", {}, 0),
        ("c.mkv", "ffv1", "gray", {}, 0),
        ("d.mkv", "ffv1", "gray16le", {}, 0),
        ("e.mkv", "ffv1", "rgb48le", {}, 0),
    ],
)
def test_containers_and_codecs_people_use(tmp_path, drawn, write_video, name, codec, pix_fmt, options, most_wrong):
    frames, form = RACING.colours[drawn], "rgb24"
    if pix_fmt.startswith("gray"):
        frames, form = drawn.astype(np.uint16 if "16" in pix_fmt else np.uint8), pix_fmt
    elif pix_fmt == "rgb48le":
        frames, form = frames.astype(np.uint16) * 257, pix_fmt
    path = write_video(tmp_path / name, list(frames), codec, pix_fmt, options=options, source_format=form)
    clip = clip_from_video(path, reference_size=SIZE)
    found = audit(clip)
    assert found.verdict in ("good", "usable")
    assert clip.frames == 3
    assert (ids_of(clip) != drawn).mean() <= most_wrong


@pytest.mark.parametrize("size", [(97, 131), (65, 64), (64, 333)])
def test_odd_sizes_are_read(tmp_path, scene, write_video, size):
    ids = scene(1, size[1], size[0])
    path = write_video(tmp_path / "a.mkv", [RACING.colours[ids]] * 2, "ffv1", "yuv420p")
    clip = clip_from_video(path, reference_size=SIZE)
    assert clip.size == size
    assert (next(clip.open()) != ids).mean() < 0.12
    path = write_video(tmp_path / "b.mkv", [RACING.colours[ids]] * 2, "ffv1", "bgr0")
    assert np.array_equal(next(clip_from_video(path, reference_size=SIZE).open()), ids)


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.tif"])
def test_animated_pictures_go_by_their_durations(tmp_path, drawn, name):
    pictures = [Image.fromarray(RACING.colours[ids]) for ids in drawn]
    if name == "a.gif":
        pictures = [Image.fromarray(ids, "P") for ids in drawn]
        for picture in pictures:
            picture.putpalette(RACING.colours.tobytes())
    options = {"lossless": True} if name.endswith("webp") else {}
    pictures[0].save(tmp_path / name, save_all=True, append_images=pictures[1:], duration=[80, 170, 250], **options)
    clip = clip_from_video(tmp_path / name, reference_size=SIZE)
    # A last frame is held no longer than the longest before it: what files say of it is often a guess.
    expected = (0, 1, 2) if name.endswith("tif") else (0, 0, 1, 1, 1, 1, 2, 2, 2, 2)
    assert clip.source.timeline.indices == expected
    assert audit(clip).verdict == "good"
    assert all(np.array_equal(ids, drawn[at]) for ids, at in zip(clip.open(), expected, strict=True))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "I;16", "bmp", "tga", "webp", "ppm"])
def test_a_single_still_picture_is_a_clip_of_one_frame(tmp_path, drawn, mode):
    ids, suffix = drawn[0], mode if mode.islower() else "png"
    picture = Image.fromarray(RACING.colours[ids])
    if mode == "P":
        picture = Image.fromarray(ids, "P")
        picture.putpalette(RACING.colours.tobytes())
    elif mode in ("L", "I;16"):
        picture = Image.fromarray(ids.astype(np.uint16) if mode == "I;16" else ids)
    elif mode == "RGBA":
        picture = picture.convert("RGBA")
    path = tmp_path / f"a.{suffix}"
    picture.save(path, **({"lossless": True} if mode == "webp" else {}))
    clip = clip_from_video(path, reference_size=SIZE)
    assert clip.frames == 1
    assert audit(clip).causes == ((INDICES,) if mode in ("L", "I;16") else ())
    assert np.array_equal(next(clip.open()), ids)


def test_sixteen_bit_colour_tiff_is_read(tmp_path, drawn):
    write_picture(tmp_path / "a.tif", RACING.colours[drawn[0]].astype(np.uint16) * 257, "rgb48le", "tiff")
    clip = clip_from_video(tmp_path / "a.tif", reference_size=SIZE)
    assert np.array_equal(next(clip.open()), drawn[0])


def test_class_numbers_in_jpeg_are_stopped(tmp_path, drawn):
    Image.fromarray(drawn[0]).save(tmp_path / "0.jpg", quality=90)
    found = audit(clip_from_video(tmp_path, reference_size=SIZE))
    assert (found.verdict, found.causes[0]) == ("stop", INDICES)


def test_an_interlaced_flag_is_named(tmp_path, drawn, write_video):
    options = {"flags": "+ilme+ildct", "x264-params": "interlaced=1:tff=1", "crf": "10"}
    even = drawn[:, :160]
    path = write_video(tmp_path / "a.mp4", list(RACING.colours[even]), "libx264", "yuv444p", options=options)
    found = audit(clip_from_video(path, reference_size=SIZE))
    assert "interlaced" in found.causes
    assert "progressive" in found.advice


def test_bad_frames_are_counted_and_named(drawn):
    frames = RACING.colours[drawn[np.arange(60) % 3]]
    frames[20:24] = frames[20:24] // 3 + 50  # a flash of something else
    found, _ = judged(frames)
    assert found.bad_frames == (20, 21, 22, 23)
    assert "bad frames" in found.causes
    assert found.verdict == "usable"
    assert "20-23" in found.as_text()
    frames[24:40] = frames[20]
    assert judged(frames)[0].verdict == "stop"


def test_a_black_lead_in_does_not_hide_what_the_clip_is(drawn):
    frames = np.concatenate(
        [np.zeros((30, *drawn.shape[1:], 3), np.uint8), RACING.colours[:, ::-1][drawn[np.arange(370) % 3]]]
    )
    found, ids = judged(frames)
    assert "channel swap" in found.causes
    assert "bad frames" in found.causes
    assert np.array_equal(ids[30], drawn[0])
