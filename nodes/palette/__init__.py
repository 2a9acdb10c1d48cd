"""Semantic clips: palettes, snapping of colours to classes, the 24 fps clock, nearest resize, the legend."""

from .audit import Audit, audit
from .clip import LabelFrame, SemanticClip, clip_from_frames, clip_from_video
from .clock import FPS, Timeline
from .errors import ClipError, PaletteError
from .legend import Legend, read_legend
from .palette import RACING, Palette, PaletteClass, builtin_palettes, load_palette
from .report import clip_report, palette_report, write_labels
from .resize import REFERENCE_SIZE, check_reference_size, floor_indices, resize_labels
from .snap import snap

__all__ = [
    "FPS",
    "RACING",
    "REFERENCE_SIZE",
    "Audit",
    "ClipError",
    "LabelFrame",
    "Legend",
    "Palette",
    "PaletteClass",
    "PaletteError",
    "SemanticClip",
    "Timeline",
    "audit",
    "builtin_palettes",
    "check_reference_size",
    "clip_from_frames",
    "clip_from_video",
    "clip_report",
    "floor_indices",
    "load_palette",
    "palette_report",
    "read_legend",
    "resize_labels",
    "snap",
    "write_labels",
]
