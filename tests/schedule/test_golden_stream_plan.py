"""Every planning entry of the golden file, compared field by field; an entry nobody compares fails too."""

from __future__ import annotations

import pytest
from streamrender_h3.nodes.schedule import (
    AUDIO_HZ,
    FPS,
    LATENT_SPANS,
    RELEASE,
    RELEASE_GEOMETRY,
    TEACHER,
    Geometry,
    audio_of_latent,
    format_table,
    frame_of_latent,
    frame_times,
    latent_of_unit,
    origins,
    pair_decoder_frames,
    plan_table,
    position_of_latent,
    position_thirds,
    positions,
    row_plan,
    spatial_axes,
    tags,
)
from streamrender_h3.nodes.schedule.clock import FRAMES_PER_CYCLE, LATENTS_PER_CYCLE, MERGED_UNIT_SPANS
from streamrender_h3.nodes.schedule.rope import ROPE_SPAN
from streamrender_h3.nodes.schedule.rows import PATCH

CONFIGS = (
    "release_s2w2c2b7",
    "teacher_s4w5c2_default_bootstrap",
    "s4w5c2_bootstrap11",
    "s1w3c2b7",
    "s2w2c1_unmerged",
    "s0w6c1_merged",
    "s2w2c2b7_right17",
    "s2w2c2b7_sink_shrink_to_1_at_3",
)
TINY = Geometry(target=(4, 6), reference=(4, 4), picture=(4, 6))
ROPE_ATOL = 1e-6


def bounds(span):
    return [span.start, span.stop]


def bounds_of_all(spans):
    return [bounds(span) for span in spans if span]


def runs(numbers):
    """A sorted tuple of ints as the golden file writes a set: half-open runs."""
    result = []
    for n in numbers:
        if result and result[-1][1] == n:
            result[-1][1] += 1
        else:
            result.append([n, n + 1])
    return result


def rows_as_golden(plan, text_rows):
    return {
        "text_len": text_rows,
        "segments": {name: bounds(span) for name, span in plan.segments.items()},
        "total": plan.total,
        "prefix": bounds_of_all(plan.prefix),
        "moving": bounds_of_all(plan.moving),
        "prefix_count": plan.prefix_count,
        "moving_count": plan.moving_count,
        "noisy_video": bounds_of_all(plan.noisy_video),
        "noisy_audio": bounds_of_all(plan.noisy_audio),
    }


def window_as_golden(window, geometry, text_rows):
    return {
        "chunk": window.index,
        "units": bounds(window.units),
        "latents": bounds(window.latents),
        "frames": bounds(window.frames),
        "next_counts": list(window.next_counts),
        "sink_latents": runs(window.sink_latents),
        "recent_latents": runs(window.recent_latents),
        "window_latents": runs(window.window_latents),
        "reference_latents": runs(window.reference_latents),
        "audio_window": runs(window.audio_window),
        "audio_new": bounds_of_all([window.audio_new]),
        "audio_commit": bounds(window.audio_commit),
        "audio_lookahead": bounds(window.audio_lookahead),
        "effective_sink_units": window.sink_units,
        "sink_stop": window.sink_stop,
        "recent_start": window.recent_start,
        "rope_window_stop": window.rope_stop,
        "keep_after": {"sink_stop": window.keep_sink_stop, "recent_start": window.keep_recent_start},
        "rows": rows_as_golden(row_plan(window, geometry, text_rows), text_rows),
        "decoder_pair_frames": bounds(pair_decoder_frames(window)),
    }


def thirds(golden_time):
    return round(golden_time * 3)


def test_constants_are_the_codec_s(golden):
    constants = golden["constants"]
    assert constants["fps"] == FPS
    assert constants["audio_latent_hz"] == AUDIO_HZ
    assert constants["frames_per_cycle"] == FRAMES_PER_CYCLE
    assert constants["latents_per_cycle"] == LATENTS_PER_CYCLE
    assert tuple(constants["latent_frame_spans"]) == LATENT_SPANS
    assert tuple(constants["unit_latent_spans_merged"]) == MERGED_UNIT_SPANS
    assert constants["rope_interp"] == ROPE_SPAN
    assert tuple(constants["patch"]) == PATCH


def test_clock_matches_every_entry(golden):
    clock = golden["clock"]
    for name, function in (
        ("latent_to_first_frame", frame_of_latent),
        ("latent_to_audio_start", audio_of_latent),
        ("latent_position_thirds", position_thirds),
        ("merged_unit_to_first_latent", latent_of_unit),
    ):
        assert clock.pop(name) == [function(i) for i in range(61 if name.startswith("latent") else 49)], name
    assert not clock
    assert [position_of_latent(i) for i in (0, 1, 5, 15)] == [0, 5 / 3, 85 / 3, 85]


def test_golden_holds_the_policies_under_test(golden):
    assert tuple(config["name"] for config in golden["configs"]) == CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_forty_chunks_match_in_every_field(golden, golden_schedules, name):
    config = next(c for c in golden["configs"] if c["name"] == name)
    schedule = golden_schedules[name]
    geometry = Geometry(**{key.removesuffix("_latent"): tuple(grid) for key, grid in config["geometry"].items()})
    # These three describe the only regime that is built: a fixed template, two origins, the sink's reference kept.
    assert config["fixed_window_rope"] and config["separate_reference_rope"] and config["keep_sink_reference"]
    assert schedule.prefix_bank_allowed is config["prefix_cache_allowed"]
    assert len(config["chunks"]) == 40
    for index, expected in enumerate(config["chunks"]):
        assert window_as_golden(schedule.window_at(index), geometry, expected["rows"]["text_len"]) == expected


def test_presets_are_the_golden_policies(golden_schedules):
    assert golden_schedules["release_s2w2c2b7"] == RELEASE
    assert golden_schedules["teacher_s4w5c2_default_bootstrap"] == TEACHER


def test_spatial_axes_match(golden):
    axes = golden["rope"]["spatial_axes"]
    assert len(axes) == 6
    for name, expected in axes.items():
        height, width = map(int, name.split("x"))
        h_axis, w_axis = spatial_axes((height, width))
        assert list(h_axis) == pytest.approx(expected["h"], abs=ROPE_ATOL)
        assert list(w_axis) == pytest.approx(expected["w"], abs=ROPE_ATOL)


def test_tiny_positions_match_row_by_row(golden, golden_schedules):
    entries = golden["rope"]["tiny"]
    assert [entry["chunk"] for entry in entries] == [0, 1, 2, 3, 7]
    for entry in entries:
        geometry = Geometry(*(tuple(entry[f"{name}_latent"]) for name in ("target", "reference", "picture")))
        assert geometry == TINY
        text_rows = entry["text_len"]
        window = golden_schedules[entry["config"]].window_at(entry["chunk"])
        plan = row_plan(window, geometry, text_rows)
        assert {name: bounds(span) for name, span in plan.segments.items()} == entry["segments"]
        assert bounds_of_all(plan.prefix) == entry["prefix"]
        assert [row for span in plan.noisy_video for row in span] == entry["noisy_video_rows"]
        assert [row for span in plan.noisy_audio for row in span] == entry["noisy_audio_rows"]
        assert tags(plan, [1] * text_rows) == entry["tags"]

        at = origins(window, geometry, text_rows)
        assert at.reference_thirds == thirds(entry["origins"]["reference_origin"])
        assert at.target_thirds == thirds(entry["origins"]["target_origin"])
        computed = positions(window, geometry, text_rows)
        assert len(computed) == len(entry["positions"]) == plan.total
        for row, expected in zip(computed, entry["positions"], strict=True):
            assert row == pytest.approx(expected, abs=ROPE_ATOL)


def test_full_size_times_match(golden, golden_schedules):
    entries = golden["rope"]["full_1344x768"]
    assert len(entries) == 10
    for entry in entries:
        text_rows = entry["text_len"]
        window = golden_schedules[entry["config"]].window_at(entry["chunk"])
        plan = row_plan(window, RELEASE_GEOMETRY, text_rows)
        assert {name: bounds(span) for name, span in plan.segments.items()} == entry["segments"]
        at = origins(window, RELEASE_GEOMETRY, text_rows)
        assert at.reference_thirds == thirds(entry["origins"]["reference_origin"])
        assert at.target_thirds == thirds(entry["origins"]["target_origin"])
        assert list(window.reference_latents) == entry["reference_latents"]
        assert list(window.window_latents) == entry["video_latents"]
        assert runs(window.audio_window) == entry["audio_indices"]

        times = frame_times(window, RELEASE_GEOMETRY, text_rows)
        assert times.picture == entry["picture_time"]
        assert list(times.reference) == pytest.approx(entry["reference_frame_time"], abs=ROPE_ATOL)
        assert list(times.video) == pytest.approx(entry["video_frame_time"], abs=ROPE_ATOL)
        assert list(times.audio) == pytest.approx(entry["audio_time"], abs=ROPE_ATOL)

        # The rows themselves: each segment starts on its first frame's time and its grid's first patch.
        rows = positions(window, RELEASE_GEOMETRY, text_rows)
        assert len(rows) == plan.total
        assert [row[0] for row in rows[:text_rows]] == list(range(*entry["text_time"]))
        for segment, grid, frame_time in (
            ("picture", RELEASE_GEOMETRY.picture, [times.picture]),
            ("reference", RELEASE_GEOMETRY.reference, times.reference),
            ("video", RELEASE_GEOMETRY.target, times.video),
        ):
            h_axis, w_axis = spatial_axes(grid)
            expected = [(t, h, w) for t in frame_time for h in h_axis for w in w_axis]
            assert rows[plan.segments[segment].start : plan.segments[segment].stop] == expected


def test_branch_without_reference_has_no_template(golden):
    entries = golden["rope"]["branch_without_reference_tiny"]
    assert len(entries) == 3
    for entry in entries:
        window = RELEASE.window_at(entry["chunk"])
        plan = row_plan(window, TINY, 5, reference=False)
        assert {name: bounds(span) for name, span in plan.segments.items()} == entry["segments"]
        at = origins(window, TINY, 5, reference=False)
        assert at.reference_thirds == thirds(entry["origins"]["reference_origin"])
        assert at.target_thirds == thirds(entry["origins"]["target_origin"])
        times = frame_times(window, TINY, 5, reference=False)
        assert times.reference == ()
        assert list(times.video) == pytest.approx(entry["video_frame_time"], abs=ROPE_ATOL)
        rows = positions(window, TINY, 5, reference=False)
        assert len(rows) == plan.total
        assert rows[plan.segments["video"].start][0] == times.video[0]


def test_plan_table_has_golden_names_and_values(golden, golden_schedules):
    for config in golden["configs"]:
        table = plan_table(golden_schedules[config["name"]], RELEASE_GEOMETRY, 64, 40)
        for row, chunk in zip(table, config["chunks"], strict=True):
            expected = {**chunk, **chunk["rows"]}
            assert row == {name: expected[name] for name in row}
            assert list(row) == [
                "chunk",
                "units",
                "latents",
                "frames",
                "next_counts",
                "prefix_count",
                "moving_count",
                "decoder_pair_frames",
            ]


def test_plan_table_prints_in_straight_columns(golden_schedules):
    text = format_table(plan_table(golden_schedules["s2w2c1_unmerged"], RELEASE_GEOMETRY, 64, 12))
    lines = text.splitlines()
    assert len(lines) == 13
    assert len({len(line) for line in lines}) == 1
    assert " ".join(lines[1].split()) == "0 0-2 ( 3) 0-2 ( 3) 0-8 ( 9) 0 5,296 0-4 ( 5)"
    assert lines[3].endswith("- ( 0)")  # the pair decoder waits for latent 5


def test_lag_of_the_pair_decoder_follows_from_the_windows(golden):
    lag = golden["lag_model"]

    def worst_ms(published, chunks):
        """Longest wait of a frame: until the last frame of its chunk exists, then one render."""
        waits = []
        for window in map(RELEASE.window_at, chunks):
            frames = published(window)
            if frames:
                waits.append((window.frames.stop - 1 - frames.start) / FPS + lag["render_cost_s"])
        return 1000 * max(waits)

    assert worst_ms(pair_decoder_frames, range(1)) == pytest.approx(lag["as_shipped_ms"][0], abs=0.05)
    with_hold, without_hold = (worst_ms(f, range(1, 40)) for f in (pair_decoder_frames, lambda window: window.frames))
    assert with_hold == pytest.approx(lag["worst_ready_lag_after_bootstrap_with_pair_hold_ms"], abs=0.05)
    assert without_hold == pytest.approx(lag["worst_ready_lag_after_bootstrap_no_hold_ms"], abs=0.05)
