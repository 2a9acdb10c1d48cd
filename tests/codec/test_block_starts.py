"""No pulse at the block starts: a still scene through the shipped example decoder, frame by frame."""

from __future__ import annotations

import os

import pytest
import torch
from streamrender_h3.nodes.codec import frames_before, load_decoder, load_encoder

SECONDS = 60 if os.environ.get("SRH3_LONG") == "1" else 6
FPS, BLOCK = 24, 17
GREY = 1 / 255


@pytest.fixture(scope="module")
def assets(repository):
    return repository / "workflows" / "assets"


@pytest.fixture(scope="module")
def still(assets):
    """The latent of a piece of the example picture, as the example encoder makes it."""
    import numpy as np
    from PIL import Image

    picture = Image.open(assets / "picture.jpg").convert("RGB").resize((448, 256)).crop((96, 64, 352, 192))
    rgb = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255
    return load_encoder(assets / "vae_approx" / "taeh3_example.safetensors").encode_picture(rgb)


@pytest.mark.parametrize("mode", ["pair", "early_single", "early_pair"])
def test_block_starts_are_as_bright_as_their_neighbours(assets, still, mode):
    decoder = load_decoder(assets / "vae_approx" / "vit_decoder_example.safetensors", mode=mode)
    stream, latents = decoder.stream(), next(n for n in range(10**6) if frames_before(n) >= SECONDS * FPS)
    brightness = []
    for start in range(0, latents, 5):
        brightness += stream.push(still.expand(-1, min(5, latents - start), -1, -1)).mean(dim=(1, 2, 3)).tolist()
    brightness += stream.flush().mean(dim=(1, 2, 3)).tolist()
    assert len(brightness) == frames_before(latents)
    starts = range(BLOCK, len(brightness) - 1, BLOCK)
    steps = [abs(brightness[n] - (brightness[n - 1] + brightness[n + 1]) / 2) / GREY for n in starts]
    print(f"{mode}: {len(steps)} block starts, largest step {max(steps):.3f} grey levels")
    assert max(steps) < 2
