"""Row order and feature order, against literal loops."""

import pytest
import torch
from streamrender_h3.nodes.model import audio_from_rows, audio_rows, patchify, unpatchify


def test_patch_rows_run_time_height_width_and_features_channel_first():
    latent = torch.randn(24, 3, 6, 10)
    rows = patchify(latent)
    assert rows.shape == (3 * 3 * 5, 96)
    for t, y, x in ((0, 0, 0), (1, 2, 4), (2, 0, 3)):
        row = rows[(t * 3 + y) * 5 + x]
        for c, ph, pw in ((0, 0, 1), (7, 1, 0), (23, 1, 1)):
            assert row[c * 4 + ph * 2 + pw] == latent[c, t, 2 * y + ph, 2 * x + pw]


def test_unpatchify_inverts_patchify_with_and_without_a_batch():
    latent = torch.randn(2, 24, 3, 6, 10)
    assert torch.equal(unpatchify(patchify(latent), 3, 6, 10), latent)
    assert torch.equal(unpatchify(patchify(latent[0]), 3, 6, 10), latent[0])


def test_odd_latents_and_foreign_rows_are_refused():
    with pytest.raises(ValueError, match="5x10"):
        patchify(torch.zeros(24, 1, 5, 10))
    with pytest.raises(ValueError, match="14 rows arrived"):
        unpatchify(torch.zeros(14, 96), 1, 6, 10)


def test_audio_rows_are_all_left_then_all_right():
    latent = torch.randn(2, 32, 7)
    rows = audio_rows(latent)
    assert rows.shape == (14, 32)
    assert torch.equal(rows[3], latent[0, :, 3]) and torch.equal(rows[7 + 5], latent[1, :, 5])
    assert torch.equal(audio_from_rows(rows), latent)
