"""The sampler: time grids, guidance, noise, prefix bank, the rollout of chunks, the render from clip to frames, whole clips."""

from .bank import PrefixBank
from .clip_attention import ClipAttention, PreparedAttention, RowSegments, Sparsity
from .clip_choice import choose_recipe
from .clip_plan import ClipPlan, ClipShape
from .clip_recipes import RECIPES, Recipe
from .clip_render import ClipInputs, ClipSettings, render_clip
from .finite import NonFiniteError
from .grids import AUDIO_SHIFT, CLEAN_SIGMA, VIDEO_SHIFT, TimeGrid, ddim_step, h3_time, trailing_sigmas
from .guidance import SINGLE, Branch, chain, fitting_weights
from .looks import LookChange, LookSequence, add_change
from .network import DENSE, PREFIX, Conditions, Network
from .noise import DEFAULT_SEED, Noise, combine_seed, picture_noise
from .render import RenderedChunk, RenderError, Resume, Settings, check_inputs, conditions_for, geometry_of, render
from .rollout import Chunk, Rollout
from .state import RolloutState
from .watch import ChunkFigures, Watch

__all__ = [
    "AUDIO_SHIFT",
    "CLEAN_SIGMA",
    "DEFAULT_SEED",
    "DENSE",
    "PREFIX",
    "RECIPES",
    "SINGLE",
    "VIDEO_SHIFT",
    "Branch",
    "Chunk",
    "ChunkFigures",
    "ClipAttention",
    "ClipInputs",
    "ClipPlan",
    "ClipSettings",
    "ClipShape",
    "Conditions",
    "LookChange",
    "LookSequence",
    "Network",
    "Noise",
    "NonFiniteError",
    "PrefixBank",
    "PreparedAttention",
    "Recipe",
    "RenderError",
    "RenderedChunk",
    "Resume",
    "Rollout",
    "RolloutState",
    "RowSegments",
    "Settings",
    "Sparsity",
    "TimeGrid",
    "Watch",
    "add_change",
    "chain",
    "check_inputs",
    "choose_recipe",
    "combine_seed",
    "conditions_for",
    "ddim_step",
    "fitting_weights",
    "geometry_of",
    "h3_time",
    "picture_noise",
    "render",
    "render_clip",
    "trailing_sigmas",
]
