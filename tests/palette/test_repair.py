"""Clean-neighbour repair: what real encoders and resamplers do to thin lines and small cars, and how much comes back."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image
from streamrender_h3.nodes.palette import RACING, ClipError, audit, clip_from_frames, clip_from_video, clip_report

THIN = ("road_edge", "barrier")
# SRH3_LONG=1 looks at a clip of the length that a first chunk has without padding.
FRAMES = 22 if os.environ.get("SRH3_LONG") == "1" else 2


def specks(ids: np.ndarray, limit: int = 8) -> int:
    """How many 4-connected patches of one class have fewer than `limit` pixels."""
    ndimage = pytest.importorskip("scipy.ndimage")
    count = 0
    for class_id in np.unique(ids):
        patches, _ = ndimage.label(ids == class_id)
        count += int((np.bincount(patches.ravel())[1:] < limit).sum())
    return count


def recall(ids: np.ndarray, true: np.ndarray, name: str) -> float:
    mask = true == RACING.index(name)
    return float((ids[mask] == RACING.index(name)).mean())


def encoded(path, scene, write_video, codec, pix_fmt, options):
    """Ids of the scene's frames, written at 1344x768 with a real encoder."""
    ids = [scene(t) for t in range(FRAMES)]
    write_video(path, [RACING.colours[i] for i in ids], codec, pix_fmt, options=options)
    return ids


def compared(path, ids):
    """(true, repaired, nearest) ids of each frame of a file."""
    clips = [clip_from_video(path, repair=repair) for repair in ("auto", "off")]
    return zip(ids, *(clip.open() for clip in clips), strict=True)


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt", "options"),
    [
        ("a.mp4", "libx264rgb", "rgb24", {"crf": "0"}),
        ("a.mkv", "ffv1", "bgr0", {}),
        ("b.mkv", "libx264", "yuv444p", {"qp": "0"}),
    ],
)
def test_lossless_clips_are_read_bit_for_bit(tmp_path, scene, write_video, name, codec, pix_fmt, options):
    """Lossless 4:4:4 is rounded to YCbCr, so its colours are near and its labels exact."""
    ids = encoded(tmp_path / name, scene, write_video, codec, pix_fmt, options)
    for repair in ("auto", "on"):
        clip = clip_from_video(tmp_path / name, repair=repair)
        assert all(np.array_equal(seen, true) for seen, true in zip(clip.open(), ids, strict=True))
    found = audit(clip)
    assert (found.verdict, found.causes) == ("good", ())
    assert found.legend.exact == 1 or pix_fmt == "yuv444p"


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "crf", "most_wrong"),
    [
        ("libx264", "yuv420p", 0, 0.002),
        ("libx264", "yuv420p", 10, 0.003),
        ("libx264", "yuv420p", 23, 0.004),
        ("mjpeg", "yuvj420p", None, 0.004),
    ],
)
def test_lossy_clips_come_back_with_few_wrong_labels_and_specks(
    tmp_path, scene, write_video, codec, pix_fmt, crf, most_wrong
):
    options = {} if crf is None else {"crf": str(crf)}
    ids = encoded(tmp_path / "a.mkv", scene, write_video, codec, pix_fmt, options)
    for true, repaired, nearest in compared(tmp_path / "a.mkv", ids):
        assert (nearest != true).mean() > 0.006  # what a plain nearest colour gives
        assert (repaired != true).mean() < most_wrong
        assert specks(repaired) <= 150
    found = audit(clip_from_video(tmp_path / "a.mkv"))
    assert (found.verdict, found.causes) == ("usable", ("lossy chroma",))
    assert "lossless" in found.advice and "4:4:4" in found.advice


@pytest.mark.parametrize("crf", [35, 45])
def test_thin_and_small_classes_survive_heavy_compression(tmp_path, scene, write_video, crf):
    ids = encoded(tmp_path / "a.mp4", scene, write_video, "libx264", "yuv420p", {"crf": str(crf)})
    for true, repaired, nearest in compared(tmp_path / "a.mp4", ids):
        for name in (*THIN, "opponent_car"):
            assert recall(repaired, true, name) >= recall(nearest, true, name), name
        assert (repaired != true).mean() < (nearest != true).mean()
    found = audit(clip_from_video(tmp_path / "a.mp4"))
    assert found.causes == ("lossy chroma",)
    assert "lossless" in found.advice and "4:4:4" in found.advice
    assert set(found.damaged) & set(THIN)


@pytest.mark.parametrize("crf", [0, 23])
def test_full_chroma_is_not_made_worse(tmp_path, scene, write_video, crf):
    ids = encoded(tmp_path / "a.mp4", scene, write_video, "libx264", "yuv444p", {"crf": str(crf)})
    for true, repaired, nearest in compared(tmp_path / "a.mp4", ids):
        assert (repaired != true).sum() <= (nearest != true).sum()


def test_resampled_frames_come_back_better_than_by_nearest_colour(scene):
    ids = scene(4)
    rows, columns = ((np.arange(n) + 0.5) * m / n for n, m in ((480, 768), (832, 1344)))
    true = ids[rows.astype(int)][:, columns.astype(int)]
    for kernel in (Image.Resampling.BILINEAR, Image.Resampling.LANCZOS, Image.Resampling.BOX):
        frame = np.asarray(Image.fromarray(RACING.colours[ids]).resize((832, 480), kernel))[None]
        repaired, nearest = (next(clip_from_frames(frame, repair=r).open()) for r in ("auto", "off"))
        assert (repaired != true).sum() < 0.9 * (nearest != true).sum()


def test_exact_colours_are_never_changed_even_between_blends():
    rng = np.random.default_rng(5)
    frame = RACING.colours[rng.integers(0, 14, (96, 96))]
    blend = rng.random((96, 96)) < 0.3
    frame[blend] = rng.integers(0, 256, (int(blend.sum()), 3), dtype=np.uint8)
    exact = (frame[..., None, :] == RACING.colours).all(-1)
    ids = next(clip_from_frames(frame[None], reference_size=(64, 64), repair="on").open())
    kept = exact.any(-1)
    assert np.array_equal(ids[kept], exact.argmax(-1)[kept])


def test_unknown_repair_setting_is_refused(small):
    with pytest.raises(ClipError, match=r"'maybe'.*auto, on, off"):
        clip_from_frames(small[1], reference_size=(64, 64), repair="maybe")


def test_report_says_lossless_or_444_for_a_lossy_clip(tmp_path, small, write_video):
    ids, colours = small
    path = write_video(tmp_path / "a.mp4", colours, "libx264", "yuv420p", options={"crf": "23"})
    report = clip_report(clip_from_video(path))
    assert report["verdict"] == "usable"
    assert report["causes"] == ["lossy chroma"]
    assert "lossless" in report["advice"]
    assert "4:4:4" in report["advice"]
    assert sum(report["classes"].values()) == pytest.approx(1)
    assert report["classes"]["sky"] == pytest.approx((ids == RACING.index("sky")).mean(), abs=0.01)
