"""What the report notices in frames, and what it lets pass; what it says when numbers are no numbers."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from streamrender_h3.nodes.sampler import figures, render
from streamrender_h3.nodes.sampler.report import RenderReport
from streamrender_h3.nodes.sampler.watch import TREND_CHUNKS, Watch
from streamrender_h3.nodes.schedule import RELEASE

sys.path.insert(0, str(Path(__file__).parent))
from small_render import BASE, look_of, moving_clip

SIZE = (96, 160)
FRAMES = 124


@pytest.fixture(scope="module")
def footage():
    """A drive over textured ground: drifting smooth noise in warm colours, [124, 3, 96, 160]."""
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(1, 3, 12, 40, generator=generator)
    fine = torch.rand(1, 1, 48, 240, generator=generator)
    wide = torch.nn.functional.interpolate(coarse, (SIZE[0], 420), mode="bilinear")
    wide = 0.25 + 0.4 * wide + 0.2 * (torch.nn.functional.interpolate(fine, (SIZE[0], 420), mode="bilinear") - 0.5)
    wide[:, 2] -= 0.1
    return torch.stack([wide[0, :, :, 2 * k : 2 * k + SIZE[1]] for k in range(FRAMES)]).clamp(0, 1)


def chunks_of(frames):
    """The frames of each chunk as a decoder that holds nothing back publishes them."""
    return [frames[w.frames.start : w.frames.stop] for w in RELEASE.windows(len(frames))]


def watched(frames):
    watch = Watch()
    return [watch.add(chunk) for chunk in chunks_of(frames)]


def reasons(frames):
    """(chunk, reason) of everything that is unusual."""
    return [(index, reason) for index, found in enumerate(watched(frames)) for reason in found.suspect]


def test_ordinary_footage_is_not_suspect(footage):
    assert reasons(footage) == []


def test_a_clip_darkened_every_17th_frame_is_flagged(footage):
    dark = footage.clone()
    dark[::17] *= 0.95
    found = reasons(dark)
    assert found and all("first frame of a block of 17" in reason for _, reason in found)
    starts = {index for index, w in enumerate(RELEASE.windows(FRAMES)) for k in w.frames if k and k % 17 == 0}
    assert starts - {11} <= {index for index, _ in found} | {index - 1 for index, _ in found}


def test_contrast_that_grows_by_5_percent_per_chunk_is_flagged(footage):
    loud = torch.cat([((chunk - 0.5) * 1.05**k + 0.5).clamp(0, 1) for k, chunk in enumerate(chunks_of(footage))])
    found = reasons(loud)
    assert "contrast grows by" in found[0][1] and found[0][0] <= TREND_CHUNKS
    assert {index for index, reason in found if "contrast" in reason} == set(range(found[0][0], 12))
    calm = torch.cat([((chunk - 0.5) * 1.005**k + 0.5).clamp(0, 1) for k, chunk in enumerate(chunks_of(footage))])
    assert reasons(calm) == []


@pytest.mark.parametrize("at", [40, 46, 47, 55, 123])
def test_one_white_flash_is_flagged_once_wherever_it_lies(footage, at):
    white = footage.clone()
    white[at] = 1.0
    flashes = [index for index, reason in reasons(white) if "flash" in reason]
    marked = {index for index, _ in reasons(white)}
    home = next(index for index, w in enumerate(RELEASE.windows(FRAMES)) if at in w.frames)
    if at == 123:  # whether the light goes out again is not known at the end
        assert home in marked
    else:
        assert flashes in ([home], [home + 1])


def test_drifting_colour_lost_colour_and_burnt_out_pictures_are_flagged(footage):
    amount = torch.linspace(0, 1, FRAMES).view(-1, 1, 1, 1)
    green = (footage + amount * torch.tensor([-0.1, 0.1, 0.0]).view(1, 3, 1, 1)).clamp(0, 1)
    grey = footage * (1 - amount) + amount * footage.mean(1, keepdim=True)
    burnt = (footage + amount * 0.8).clamp(0, 1)
    for frames, word in ((green, "colour"), (grey, "saturation"), (burnt, "pure black or white")):
        found = reasons(frames)
        assert any(word in reason for _, reason in found), word
        assert found[0][0] > 0  # the beginning is what the rest is measured against


def test_flicker_and_a_jump_at_a_border_are_flagged(footage):
    flicker = footage.clone()
    flicker[60:70:2] *= 0.9
    assert any("flickers" in reason for _, reason in reasons(flicker))
    jump = footage.clone()
    jump[47:] *= 0.3
    assert [(index, "border" in reason) for index, reason in reasons(jump) if "border" in reason] == [(3, True)]


def test_a_new_look_is_not_taken_for_drift(footage):
    other = 1 - footage
    watch = Watch()
    for index, (w, chunk) in enumerate(zip(RELEASE.windows(FRAMES), chunks_of(footage), strict=True)):
        new = other[w.frames.start : w.frames.stop]
        found = watch.add(chunk if index < 4 else new, new_look=index == 4)
        assert found.suspect == ()


def test_figures_go_on_after_an_interruption_as_if_there_had_been_none(footage):
    whole = watched(footage)
    watch = Watch()
    for index, chunk in enumerate(chunks_of(footage)):
        if index in (1, 5):
            values, tensors = watch.state()
            watch = Watch()
            watch.restore(values, tensors)
        assert watch.add(chunk) == whole[index]


def test_a_chunk_without_frames_has_no_figures(footage):
    watch = Watch()
    watch.add(footage[:30])
    assert watch.add(footage[:0]).suspect == () and watch.frames == 30


def darkened(frames):
    dark = frames.clone()
    dark[::17] *= 0.95
    return dark


def louder(frames):
    return torch.cat([((chunk - 0.5) * 1.05**k + 0.5).clamp(0, 1) for k, chunk in enumerate(chunks_of(frames))])


def flashed(frames):
    white = frames.clone()
    white[50] = 1.0
    return white


@pytest.mark.parametrize(
    ("damage", "words"),
    [(darkened, "first frame of a block of 17"), (louder, "contrast grows by 5 %"), (flashed, "flash of"), (None, "")],
)
def test_the_run_report_lists_what_was_damaged_and_nothing_of_ordinary_footage(tiny_parts, footage, damage, words):
    """NaN latents stop a render instead, and the report says where: tests/sampler/test_record.py."""
    template = next(render(moving_clip(30), look_of(0, tiny_parts[0].config.text_dim), *tiny_parts, BASE))
    report = RenderReport(BASE, FRAMES)
    for index, chunk in enumerate(chunks_of(damage(footage) if damage else footage)):
        report.add(replace(template, index=index, frames=chunk))
    suspects = report.as_dict("x")["suspects"]
    assert bool(suspects) == bool(damage)
    assert any(words in reason for suspect in suspects for reason in suspect["reasons"]) or not damage
    assert all(suspect["frames"][0] < suspect["frames"][1] <= FRAMES for suspect in suspects)


# ----------------------------------------------------------------------------------------------------- the pure functions


def test_levels_are_those_of_the_pixels():
    frames = torch.zeros(2, 3, 4, 4)
    frames[0], frames[1, 0] = 0.5, 1.0
    light = figures.luma(frames)
    assert figures.brightness(light).tolist() == pytest.approx([127.5, 0.2126 * 255])
    assert figures.contrast(light) == pytest.approx(0, abs=1e-4)
    assert figures.colour(frames[1:]) == pytest.approx((255, 0))
    assert figures.saturation(frames[1:]) == pytest.approx(255)
    assert figures.clipped(torch.tensor([0.0, 1.0, 0.5, 0.9]).expand(1, 3, 1, 4)) == 0.5


def test_a_small_copy_keeps_the_means():
    frames = torch.rand(2, 3, 192, 320, generator=torch.Generator().manual_seed(0))
    small = figures.small(frames)
    assert small.shape == (2, 3, 96, 160)
    assert torch.allclose(small.mean(dim=(2, 3)), frames.mean(dim=(2, 3)), atol=1e-5)


def test_block_starts_are_found_by_the_absolute_frame_number():
    levels = [100.0] * 40
    levels[34] = 90.0
    assert figures.block_starts(levels, 0) == [0.0, -10.0]
    assert figures.block_starts(levels[30:], 30) == [-10.0]
    assert figures.flicker(levels, 0) == 0.0  # neither the block start nor its neighbours count as flicker


def test_the_slope_of_a_growing_series_is_its_growth():
    growing = [math.log(50 * 1.05**k) for k in range(8)]
    assert figures.slope(growing) == pytest.approx((math.log(1.05), 1.0))
    assert figures.slope([1.0, 1.0, 1.0]) == (0.0, 0.0) and figures.slope([1.0]) == (0.0, 0.0)


def test_a_step_in_brightness_is_no_flash():
    assert figures.flash([100, 100, 200, 200, 200, 200]) == 0
    assert figures.flash([100, 100, 200, 200, 110, 110]) == 90


def test_reasons_are_words_and_numbers(footage):
    white = footage.clone()
    white[40] = 1.0
    found = [f for f in watched(white) if f.suspect]
    assert "flash of" in found[0].suspect[0]
    assert "suspect" not in found[0].as_dict() and replace(found[0], suspect=()).suspect == ()
