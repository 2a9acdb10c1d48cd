"""Clean-neighbour repair: what real encoders and resamplers do to thin lines and small cars, and how much comes back."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from streamrender_h3.nodes.palette import RACING, ClipError, clip_from_frames, clip_from_video, clip_report

THIN = ("road_edge", "barrier")


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


def both(path, frames):
    """(repaired, nearest) ids of one frame of a file."""
    out = []
    for repair in ("auto", "off"):
        clip = clip_from_video(path, repair=repair)
        out.append(next(ids for k, ids in enumerate(clip.open()) if k == frames - 1))
    return out


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "crf", "most_wrong"),
    [("libx264", "yuv420p", 0, 0.002), ("libx264", "yuv420p", 23, 0.004), ("mjpeg", "yuvj420p", None, 0.004)],
)
def test_lossy_clips_come_back_with_few_wrong_labels_and_specks(
    tmp_path, scene, write_video, codec, pix_fmt, crf, most_wrong
):
    ids = [scene(t) for t in range(3)]
    options = {} if crf is None else {"crf": str(crf)}
    path = write_video(tmp_path / "a.mkv", [RACING.colours[i] for i in ids], codec, pix_fmt, options=options)
    repaired, nearest = both(path, 3)
    assert (nearest != ids[2]).mean() > 0.006  # what a plain nearest colour gives
    assert (repaired != ids[2]).mean() < most_wrong
    assert specks(repaired) <= 150


@pytest.mark.parametrize("crf", [35, 45])
def test_thin_and_small_classes_survive_heavy_compression(tmp_path, scene, write_video, crf):
    ids = [scene(t) for t in range(3)]
    path = write_video(
        tmp_path / "a.mp4", [RACING.colours[i] for i in ids], "libx264", "yuv420p", options={"crf": str(crf)}
    )
    repaired, nearest = both(path, 3)
    for name in (*THIN, "opponent_car", "rock"):
        assert recall(repaired, ids[2], name) >= recall(nearest, ids[2], name), name
    assert (repaired != ids[2]).mean() < (nearest != ids[2]).mean()


@pytest.mark.parametrize("crf", [0, 23])
def test_full_chroma_is_not_made_worse(tmp_path, scene, write_video, crf):
    ids = [scene(t) for t in range(3)]
    path = write_video(
        tmp_path / "a.mp4", [RACING.colours[i] for i in ids], "libx264", "yuv444p", options={"crf": str(crf)}
    )
    repaired, nearest = both(path, 3)
    assert (repaired != ids[2]).sum() <= (nearest != ids[2]).sum()


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
