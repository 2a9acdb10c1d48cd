"""Chunked sliding-window schedule of the stream: clock, windows, packed rows, RoPE coordinates. No torch in here."""

from .clock import (
    AUDIO_HZ,
    FPS,
    LATENT_SPANS,
    audio_of_latent,
    frame_of_latent,
    latent_of_unit,
    position_of_latent,
    position_thirds,
)
from .errors import ScheduleError
from .rope import (
    FrameTimes,
    Origins,
    frame_times,
    layout_key,
    origins,
    positions,
    spatial_axes,
    spatial_axis,
)
from .rows import RELEASE_GEOMETRY, Geometry, RowPlan, row_plan, rows_per_frame, tags
from .schedule import PRESETS, RELEASE, TEACHER, Coverage, Schedule
from .table import PlanEntry, format_table, plan_table
from .window import Window, pair_decoder_frames
from .window_tiles import TilePlan, WindowTile, tile_plan

__all__ = [
    "AUDIO_HZ",
    "FPS",
    "LATENT_SPANS",
    "PRESETS",
    "RELEASE",
    "RELEASE_GEOMETRY",
    "TEACHER",
    "Coverage",
    "FrameTimes",
    "Geometry",
    "Origins",
    "PlanEntry",
    "RowPlan",
    "Schedule",
    "ScheduleError",
    "TilePlan",
    "Window",
    "WindowTile",
    "audio_of_latent",
    "format_table",
    "frame_of_latent",
    "frame_times",
    "latent_of_unit",
    "layout_key",
    "origins",
    "pair_decoder_frames",
    "plan_table",
    "position_of_latent",
    "position_thirds",
    "positions",
    "row_plan",
    "rows_per_frame",
    "spatial_axes",
    "spatial_axis",
    "tags",
    "tile_plan",
]
