"""The bundled clip: what a user's file looks like, and the same frames without loss."""

from __future__ import annotations

import av
import numpy as np
import pytest
from streamrender_h3.workflows.nano.make_clip import ASSETS, FRAMES, SIZE
from streamrender_h3.workflows.nano.world import COLORS

FILES = ("semantic_clip.mp4", "semantic_clip_lossless.mp4", "picture.jpg", "picture_blue_hour.jpg", "prompt.txt")


def test_the_assets_together_are_under_two_megabytes() -> None:
    assert sum((ASSETS / name).stat().st_size for name in FILES) < 2_000_000


@pytest.mark.parametrize("name", FILES[:2])
def test_the_clips_have_124_frames_at_24_a_second(name: str) -> None:
    with av.open(str(ASSETS / name)) as source:
        stream = source.streams.video[0]
        assert stream.average_rate == 24
        assert (stream.codec_context.height, stream.codec_context.width) == SIZE
        assert sum(1 for _ in source.decode(stream)) == FRAMES


def test_the_lossy_clip_says_bt709_limited() -> None:
    with av.open(str(ASSETS / FILES[0])) as source:
        context = source.streams.video[0].codec_context
        assert (context.pix_fmt, context.colorspace, context.color_range) == ("yuv420p", 1, 1)
        assert (context.color_primaries, context.color_trc) == (1, 1)


def test_the_lossless_clip_holds_palette_colours_only_and_the_lossy_one_is_near() -> None:
    palette = np.array(COLORS, dtype=np.int32)
    with av.open(str(ASSETS / FILES[1])) as source:
        exact = next(source.decode(video=0)).to_ndarray(format="rgb24").astype(np.int32)
    with av.open(str(ASSETS / FILES[0])) as source:
        lossy = (
            next(source.decode(video=0)).reformat(format="rgb24", src_colorspace="ITU709").to_ndarray().astype(np.int32)
        )
    distance = ((exact[:, :, None] - palette) ** 2).sum(-1)
    assert (distance.min(-1) == 0).all()
    nearest = ((lossy[:, :, None] - palette) ** 2).sum(-1).argmin(-1)
    assert (nearest == distance.argmin(-1)).mean() > 0.98


def test_the_prompt_ends_without_a_line_feed_and_opens_with_the_subjects() -> None:
    text = (ASSETS / "prompt.txt").read_text(encoding="utf-8")
    assert text.startswith("subject_definitions:\n<Picture 1> ") and text.endswith("non_diegetic_music:\nN/A")
