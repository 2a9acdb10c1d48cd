"""Inputs of a render that takes a fraction of a second per chunk: random tiny weights, a moving clip, a look from a seed."""

from __future__ import annotations

import numpy as np
import torch
from streamrender_h3.nodes.look import make_look
from streamrender_h3.nodes.look.look import TextStates
from streamrender_h3.nodes.palette import RACING, clip_from_frames
from streamrender_h3.nodes.sampler import Settings, TimeGrid
from streamrender_h3.nodes.schedule import RELEASE

SIZE, MAP_SIZE = (64, 96), (64, 64)
BASE = Settings(RELEASE, TimeGrid.trailing(2), seed=7)


def look_of(seed, text_dim, rows=9):
    """A look of random text states and a random picture."""
    generator = torch.Generator().manual_seed(seed)
    tags = torch.tensor([1, 0, 0, 0, 1, 1, 1, 1, 1] + [1] * (rows - 9))
    states = TextStates(torch.randn(rows, text_dim, generator=generator), tags, 4)
    return make_look(states, rgb=torch.randint(0, 256, (*SIZE, 3), generator=generator, dtype=torch.uint8))


def moving_clip(frames):
    """Road, sky and a car that drives across, made frame by frame."""

    def draw():
        for k in range(frames):
            picture = np.empty((*MAP_SIZE, 3), np.uint8)
            picture[:30], picture[30:] = RACING.colours[11], RACING.colours[1]
            picture[40:52, k % 50 : k % 50 + 12] = RACING.colours[12]
            yield picture

    return clip_from_frames(draw, RACING, MAP_SIZE, count=frames)
