"""A whole clip in numbers: lengths, segments, decoded chunks and rows."""

import pytest
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import (
    align_num_frames,
    audio_latent_num_frames,
    video_latent_num_frames,
)
from streamrender_h3.nodes.sampler import RenderError
from streamrender_h3.nodes.sampler.clip_attention import RowSegments
from streamrender_h3.nodes.sampler.clip_plan import ClipPlan, ClipShape, fitting_frames, latents_of, sound_of
from streamrender_h3.nodes.schedule import ScheduleError, frame_of_latent

RELEASED = (768, 1344), (480, 832)


def test_lengths_are_those_of_diffusers():
    for frames in range(5, 400):
        fitting = fitting_frames(frames)
        assert fitting == align_num_frames(frames, 17, 5)
        assert latents_of(fitting) == video_latent_num_frames(fitting, 17, 5)
        assert sound_of(fitting) == audio_latent_num_frames(fitting)
        assert frame_of_latent(latents_of(fitting)) == fitting
    assert fitting_frames(1) == 5


@pytest.mark.parametrize(
    ("frames", "mode", "text", "rows"),
    [
        (124, "T2VA", 1000, 38_710),
        (243, "T2VA", 1000, 74_386),
        (345, "T2VA", 1000, 104_966),
        (124, "Ref2VA", 1500, 54_648),
    ],
)
def test_rows_are_those_of_the_specification(frames, mode, text, rows):
    shape = ClipShape.of(frames, RELEASED[0], RELEASED[1] if mode == "Ref2VA" else None)
    assert shape.rows(text) == rows
    assert len(shape.positions(text)) == len(shape.tags([1] * text)) == rows


def test_segments_of_the_packed_rows_are_told_without_empty_ones():
    shape = ClipShape.of(124, *RELEASED)
    assert RowSegments.of(shape, 1500) == RowSegments((1500, 1008, 37 * 390, 2 * 207), (37, 24, 42), (2, (37, 15, 26)))
    assert RowSegments.of(shape.without_reference(), 1016).runs == (1016, 1008, 414)
    alone = RowSegments.of(ClipShape.of(345, RELEASED[0]), 1000)
    assert alone == RowSegments((1000, 2 * 575), (102, 24, 42)) and alone.rows == 104_966


@pytest.mark.parametrize("frames", [*range(1, 40), 123, 124, 125, 247, 248, 345, 720, 3600])
@pytest.mark.parametrize("limit", [22, 124])
def test_segments_cover_a_clip_evenly_and_each_begins_on_a_frame_of_the_one_before(frames, limit):
    plan = ClipPlan.of(frames, limit)
    shown = [frame for segment in plan.segments for frame in segment.shown]
    assert shown == list(range(frames))
    assert len({segment.frames for segment in plan.segments}) == 1
    assert plan.segments[0].frames <= fitting_frames(limit)
    for before, after in zip(plan.segments, plan.segments[1:], strict=False):
        assert after.start == before.stop - 1 == before.start + before.frames - 1
    assert len(plan.segments) == max(1, -(-(frames - 1) // (fitting_frames(limit) - 1)))


def test_a_minute_is_twelve_segments_of_five_seconds():
    plan = ClipPlan.of(1440)
    assert [segment.frames for segment in plan.segments] == [124] * 12
    assert plan.segments[1].shown == range(124, 247)
    assert ClipPlan.of(150).segments[0].frames == 90  # two of 90 rather than 124 and 27


@pytest.mark.parametrize("frames", [5, 20, 46, 124, 300])
def test_chunks_hold_every_latent_and_every_frame_once(frames):
    plan = ClipPlan.of(frames)
    for segment in plan.segments:
        own = [chunk for chunk in plan.chunks if chunk.segment == segment]
        assert [latent for chunk in own for latent in chunk.latents] == list(range(segment.latents))
        assert [chunk.last for chunk in own] == [False] * (len(own) - 1) + [True]
    assert [frame for chunk in plan.chunks for frame in chunk.frames] == list(range(frames))
    assert [chunk.index for chunk in plan.windows(frames)] == list(range(len(plan.chunks)))


def test_what_cannot_be_made_is_refused():
    with pytest.raises(RenderError, match="346 frames were asked for at a time; the model makes at most 345"):
        ClipPlan.of(346, 346)
    with pytest.raises(RenderError, match="0 frames"):
        ClipPlan.of(0)
    with pytest.raises(ScheduleError, match="100x64"):
        ClipShape.of(124, (64, 100))
