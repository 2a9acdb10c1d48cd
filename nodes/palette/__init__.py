"""Semantic clips: palettes, snapping of colours to classes, the 24 fps clock, nearest resize, the legend."""

from .audit import Audit, audit
from .card import draw_card
from .clip import REPAIRS, LabelFrame, SemanticClip, clip_from_frames, clip_from_video
from .clock import FPS, Timeline
from .errors import ClipError, PaletteError
from .legend import Legend, read_legend
from .mapping import FIT, MAPPINGS, STRETCH, Placement, describe, place, shape_of
from .palette import RACING, Palette, PaletteClass, builtin_palettes, load_palette
from .report import chunk_lines, chunk_report, clip_report, palette_report, require_renderable, write_labels
from .resize import REFERENCE_SIZE, check_reference_size, floor_indices, resize_labels
from .snap import snap
from .video import Trim

__all__ = [
    "FIT",
    "FPS",
    "MAPPINGS",
    "RACING",
    "REFERENCE_SIZE",
    "REPAIRS",
    "STRETCH",
    "Audit",
    "ClipError",
    "LabelFrame",
    "Legend",
    "Palette",
    "PaletteClass",
    "PaletteError",
    "Placement",
    "SemanticClip",
    "Timeline",
    "Trim",
    "audit",
    "builtin_palettes",
    "check_reference_size",
    "chunk_lines",
    "chunk_report",
    "clip_from_frames",
    "clip_from_video",
    "clip_report",
    "describe",
    "draw_card",
    "floor_indices",
    "load_palette",
    "palette_report",
    "place",
    "read_legend",
    "require_renderable",
    "resize_labels",
    "shape_of",
    "snap",
    "write_labels",
]
