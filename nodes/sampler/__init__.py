"""The sampler: time grids, guidance, noise, prefix bank, the rollout of chunks, and the render from clip to frames."""

from .bank import PrefixBank
from .grids import AUDIO_SHIFT, CLEAN_SIGMA, VIDEO_SHIFT, TimeGrid, ddim_step, h3_time, trailing_sigmas
from .guidance import SINGLE, Branch, chain, fitting_weights
from .network import DENSE, PREFIX, Conditions, Network
from .noise import DEFAULT_SEED, Noise, combine_seed, picture_noise
from .render import RenderedChunk, RenderError, Settings, check_inputs, conditions_for, geometry_of, render
from .rollout import Chunk, Rollout

__all__ = [
    "AUDIO_SHIFT",
    "CLEAN_SIGMA",
    "DEFAULT_SEED",
    "DENSE",
    "PREFIX",
    "SINGLE",
    "VIDEO_SHIFT",
    "Branch",
    "Chunk",
    "Conditions",
    "Network",
    "Noise",
    "PrefixBank",
    "RenderError",
    "RenderedChunk",
    "Rollout",
    "Settings",
    "TimeGrid",
    "chain",
    "check_inputs",
    "combine_seed",
    "conditions_for",
    "ddim_step",
    "fitting_weights",
    "geometry_of",
    "h3_time",
    "picture_noise",
    "render",
    "trailing_sigmas",
]
