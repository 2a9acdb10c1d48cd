"""How a rendered clip is judged: seams of chunks against those of the codec, pictures to look at."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from streamrender_h3.workflows.nano.evaluate import STRIP_SECONDS, totals, write_strip
from streamrender_h3.workflows.nano.measures import seam_ratio

CHUNKS, LATENTS = [0, 9, 17], [0, 1, 5, 9, 13, 17, 18]


def brightening(steps: list[float]) -> torch.Tensor:
    """Grey frames [n, 3, 2, 2] whose brightness grows by the given steps."""
    levels = torch.tensor([0.0, *steps]).cumsum(0)
    return levels.view(-1, 1, 1, 1).expand(-1, 3, 2, 2)


def test_even_motion_has_no_seams() -> None:
    frames = brightening([0.01] * 21)
    assert seam_ratio(frames, CHUNKS) == pytest.approx(1, abs=1e-3)
    assert seam_ratio(frames, CHUNKS, LATENTS) == pytest.approx(1, abs=1e-3)


def test_news_of_every_latent_is_a_seam_of_the_codec_but_not_of_chunks() -> None:
    steps = [0.03 if frame in LATENTS else 0.01 for frame in range(1, 22)]
    assert seam_ratio(brightening(steps), CHUNKS) > 1.9
    assert seam_ratio(brightening(steps), CHUNKS, LATENTS) == pytest.approx(1, abs=1e-3)


def test_a_jump_where_a_chunk_begins_is_a_seam_in_both() -> None:
    steps = [0.03 if frame in CHUNKS else 0.01 for frame in range(1, 22)]
    assert seam_ratio(brightening(steps), CHUNKS) == pytest.approx(3, abs=0.01)
    assert seam_ratio(brightening(steps), CHUNKS, LATENTS) == pytest.approx(3, abs=0.01)


def test_a_strip_shows_the_truth_above_the_render(tmp_path) -> None:
    true, output = torch.zeros(120, 3, 4, 6), torch.ones(120, 3, 4, 6)
    write_strip(tmp_path / "looks" / "noon_1.png", true, output)
    pixels = np.asarray(Image.open(tmp_path / "looks" / "noon_1.png"))
    moments = sum(second <= 5 for second in STRIP_SECONDS)
    assert pixels.shape == (8, 6 * moments, 3) and pixels[:4].max() == 0 and pixels[4:].min() == 255


def test_totals_are_means_over_the_clips_that_have_a_figure() -> None:
    assert totals([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == {"a": 2.0, "b": 2.0}
