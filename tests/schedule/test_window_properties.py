"""What must hold for any schedule: windows tile the stream, history suffices, equal layouts are really equal."""

from __future__ import annotations

import itertools
import time

import pytest
from streamrender_h3.nodes.schedule import (
    LATENT_SPANS,
    RELEASE,
    RELEASE_GEOMETRY,
    TEACHER,
    Geometry,
    Schedule,
    frame_times,
    layout_key,
    pair_decoder_frames,
    positions,
    row_plan,
    tags,
)

TINY = Geometry(target=(4, 6), reference=(4, 4), picture=(4, 6))
CHUNKS = 14


def many_schedules():
    """Sizes around and beyond the useful ones, with and without merging, look-ahead and a shrinking sink."""
    sizes = itertools.product((0, 1, 2, 4, 8), (0, 1, 2, 5), (1, 2, 3), (None, 1, 7, 11), (True, False), (0, 17))
    for sink, window, chunk, bootstrap, merged, ahead in sizes:
        yield Schedule(sink, window, chunk, bootstrap, merged, audio_right=ahead)
    for after, switch in itertools.product((0, 1, 3), (1, 2, 5)):
        yield Schedule(3, 2, 2, 7, sink_switch_at=switch, sink_after_switch=after)


SCHEDULES = tuple(many_schedules())


def streams():
    for schedule in SCHEDULES:
        yield schedule, [schedule.window_at(index) for index in range(CHUNKS)]


def frames_by_counting(units, merged):
    """RGB frames of the first `units` units, counted latent by latent from the definition."""
    latents = 0
    for unit in range(units):
        latents += 2 if merged and unit % 4 == 0 else 1
    return sum(LATENT_SPANS[i % 5] for i in range(latents))


def test_windows_tile_the_stream_without_gap_or_overlap():
    for schedule, windows in streams():
        assert windows[0].units == range(schedule.bootstrap_units)
        for name in ("units", "latents", "frames", "audio_new", "audio_commit"):
            spans = [getattr(window, name) for window in windows]
            assert spans[0].start == 0
            assert all(a.stop == b.start for a, b in itertools.pairwise(spans)), name
        assert all(len(window.units) == schedule.chunk for window in windows[1:])
        published = [pair_decoder_frames(window) for window in windows]
        assert all(a.stop == b.start for a, b in itertools.pairwise(published))


def test_frames_follow_the_codec_cycle():
    for schedule, windows in streams():
        for window in windows:
            assert window.frames.stop == frames_by_counting(window.units.stop, schedule.merged)
            assert len(window.frames) == sum(LATENT_SPANS[i % 5] for i in window.latents)


def test_window_is_the_sorted_union_of_sink_recent_and_new():
    for _, windows in streams():
        for window in windows:
            sink = set() if window.is_bootstrap else set(range(min(window.sink_stop, window.latents.start)))
            recent = set() if window.is_bootstrap else set(range(window.recent_start, window.latents.start))
            assert window.sink_latents == tuple(sorted(sink))
            assert window.recent_latents == tuple(sorted(recent - sink))
            assert window.window_latents == tuple(sorted(sink | recent | set(window.latents)))


def test_kept_history_is_exactly_what_the_next_chunk_sees():
    for _, windows in streams():
        for window, following in itertools.pairwise(windows):
            assert window.kept_latents == following.history_latents
            assert window.kept_audio == tuple(j for j in following.audio_window if j not in following.audio_new)


def test_audio_ahead_of_the_video_is_committed_later():
    for schedule, windows in streams():
        for window in windows:
            assert len(window.audio_lookahead) == schedule.audio_right
            assert window.audio_lookahead.start == window.audio_commit.stop
            assert window.audio_new.stop == window.audio_lookahead.stop
            assert set(window.audio_commit) <= set(window.audio_window)
            assert window.audio_window[len(window.audio_window) - len(window.audio_new) :] == tuple(window.audio_new)


def test_prefix_and_moving_rows_partition_the_packed_rows():
    for (_, windows), reference in itertools.product(streams(), (True, False)):
        for window in windows[:4]:
            plan = row_plan(window, TINY, 5, reference=reference)
            assert sorted(row for span in plan.prefix + plan.moving for row in span) == list(range(plan.total))
            moving = {row for span in plan.moving for row in span}
            noisy = [row for span in plan.noisy_video + plan.noisy_audio for row in span]
            assert moving.issuperset(noisy)
            assert len(noisy) == len(window.latents) * 6 + 2 * len(window.audio_new)


def test_prefix_rows_are_those_of_text_picture_and_sink():
    for schedule in (RELEASE, TEACHER, Schedule(0, 6, 1), Schedule(8, 1, 2, 2)):
        for index in (1, 2, 5):
            window = schedule.window_at(index)
            plan = row_plan(window, TINY, 5)
            labels = ["keep"] * (5 + 6)
            labels += [i in window.sink_latents and "keep" for i in window.reference_latents for _ in range(4)]
            labels += [j < window.audio_sink and "keep" for _ in range(2) for j in window.audio_window]
            labels += [i in window.sink_latents and "keep" for i in window.window_latents for _ in range(6)]
            expected = [row for row, label in enumerate(labels) if label]
            assert [row for span in plan.prefix for row in span] == expected


def test_release_continuations_follow_the_closed_form():
    for k in range(1, 60):
        window = RELEASE.window_at(k)
        if k % 2:
            assert window.next_counts == (3, 9)
            assert window.latents.start == 9 + 5 * (k - 1) // 2
        else:
            assert window.next_counts == (2, 8)
        assert len(window.window_latents) == 8
        assert len(window.audio_new) == (15, 14, 15, 13, 15, 13)[(k - 1) % 6]


@pytest.mark.parametrize(
    ("schedule", "target", "chunk", "prefix", "moving"),
    [
        (RELEASE, (768, 1344), 1, 5232, 7046),
        (RELEASE, (768, 1344), 2, 5232, 7048),
        (RELEASE, (704, 1280), 1, 4720, 6406),
        (RELEASE, (704, 1280), 2, 4720, 6408),
        (RELEASE, (480, 832), 2, 2760, 3958),
        (TEACHER, (768, 1344), 1, 8056, 9858),
        (TEACHER, (768, 1344), 2, 8056, 12682),
    ],
)
def test_row_counts_at_real_sizes(schedule, target, chunk, prefix, moving):
    geometry = Geometry.from_sizes(target, (480, 832), target)
    plan = row_plan(schedule.window_at(chunk), geometry, 1000)
    assert (plan.prefix_count, plan.moving_count) == (1000 + prefix, moving)


def test_release_has_six_layouts_after_the_bootstrap():
    keys = [layout_key(RELEASE.window_at(index)) for index in range(50)]
    assert len(set(keys)) == 7
    assert keys[0] not in keys[1:]
    assert all(keys[k] == keys[k + 6] for k in range(1, 44))
    assert len(set(keys[1:7])) == 6


def test_equal_layout_keys_mean_equal_rows_and_bit_equal_positions():
    repeated = 0
    for schedule in (*SCHEDULES[::7], RELEASE, TEACHER):
        seen: dict = {}
        for index in range(30):
            window = schedule.window_at(index)
            plans = [
                (row_plan(window, TINY, 3, reference=reference), positions(window, TINY, 3, reference=reference))
                for reference in (True, False)
            ]
            first = seen.setdefault(layout_key(window), plans)
            assert first == plans
            repeated += first is not plans
    assert repeated > 1000  # the claim was put to the test, not vacuous


def test_different_layouts_have_different_keys():
    by_layout: dict = {}
    for schedule in SCHEDULES[::5]:
        for index in range(8):
            window = schedule.window_at(index)
            plan, rows = row_plan(window, TINY, 0), tuple(positions(window, TINY, 0))
            by_layout.setdefault((plan.prefix, plan.noisy_video, plan.noisy_audio, rows), set()).add(layout_key(window))
    assert sum(map(len, by_layout.values())) == len(set().union(*by_layout.values()))


def test_continuation_times_do_not_grow_with_the_stream():
    early, late = (frame_times(RELEASE.window_at(k), RELEASE_GEOMETRY, 64) for k in (1, 1 + 6 * 10_000))
    assert early == late


def test_sink_keeps_its_place_and_the_rest_follows_it():
    times = frame_times(RELEASE.window_at(41), RELEASE_GEOMETRY, 0)
    local = [t - times.video[0] for t in times.video]
    assert local == pytest.approx([0, 5 / 3, 25 / 3, 15, 65 / 3, 85 / 3, 35, 110 / 3])
    overlapping = TEACHER.window_at(1)
    assert frame_times(overlapping, TINY, 0).video == tuple(
        (t + 235) / 3 for t in (3 * 1 + 5 * f for f in (0, 1, 5, 9, 13, 17, 18, 22, 26, 30, 34, 35))
    )


def test_without_a_picture_there_are_no_picture_rows_nor_their_tick_of_time():
    bare = Geometry(target=(4, 6), reference=(4, 4), picture=None)
    window = RELEASE.window_at(1)
    plan = row_plan(window, bare, 5)
    assert not plan.segments["picture"]
    assert plan.total == row_plan(window, TINY, 5).total - 6
    rows = positions(window, bare, 5)
    assert len(rows) == plan.total
    assert rows[5][0] == 5.0  # the first reference row follows the text at once


def test_tags_keep_the_text_encoder_s_vision_rows():
    window = RELEASE.window_at(1)
    plan = row_plan(window, TINY, 4)
    per_row = tags(plan, [1, 0, 0, 1])
    assert per_row[:4] == [1, 0, 0, 1]
    assert [per_row.count(tag) for tag in (0, 1, 2)] == [2 + 6 + 8 * 4 + 8 * 6, 2, 2 * 43]
    assert all(per_row[row] == 2 for row in plan.segments["audio"])


def test_rows_can_be_told_within_their_segment():
    plan = row_plan(RELEASE.window_at(1), TINY, 5)
    assert plan.within("audio", plan.prefix) == (range(15), range(43, 58))
    assert plan.within("audio", plan.noisy_audio) == (range(28, 43), range(71, 86))
    assert plan.within("video", plan.prefix) == (range(18),)
    assert plan.within("video", plan.noisy_video) == (range(30, 48),)
    assert plan.within("text", plan.moving) == ()


def test_a_clip_is_covered_by_the_fewest_full_chunks():
    for schedule in SCHEDULES[::3]:
        for frames in (1, 2, 9, 26, 30, 31, 39, 40, 120, 121):
            chunks = schedule.chunks_for(frames)
            assert schedule.frames_through(chunks - 1) >= frames
            assert chunks == 1 or schedule.frames_through(chunks - 2) < frames
            windows = list(schedule.windows(frames))
            assert [window.index for window in windows] == list(range(chunks))
            assert windows[-1].frames.stop == schedule.frames_through(chunks - 1)


def test_coverage_of_a_five_second_clip():
    coverage = RELEASE.coverage(120)
    assert (coverage.chunks, coverage.padded_frames, coverage.padding, coverage.seconds) == (12, 124, 4, 5.0)
    shortest = RELEASE.coverage(1)
    assert (shortest.chunks, shortest.padded_frames, shortest.padding) == (1, 30, 29)
    assert RELEASE.coverage(10**9).chunks == 1 + -(-(4 * (10**9 // 17) + 3 - 7) // 2)


def test_positions_of_a_full_window_come_quickly():
    def once():
        start = time.perf_counter()
        positions(RELEASE.window_at(0), RELEASE_GEOMETRY, 2000)
        return time.perf_counter() - start

    assert min(once() for _ in range(5)) < 0.05
