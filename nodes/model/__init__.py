"""The H3 transformer: sizes, packed rows, positions, modulation, forward pass."""

from .blocks import Bank, LayerAttention, Stretch
from .config import BLOCK_SLOTS, FINAL_SLOTS, MODALITIES, RELEASE, ConfigError, H3Config
from .fast import run_fast
from .form import Form, choose_form
from .modulation import Modulation, canonical_time, curve_coordinates, distinct_times, modulation_rows
from .patchify import audio_from_rows, audio_rows, patchify, unpatchify
from .rope import Rope, inverse_frequencies
from .tables import (
    AdaLNTables,
    OffLadderError,
    TableError,
    build_tables,
    embed_times,
    layer_table,
    load_tables,
    save_tables,
)
from .transformer import FLOAT32_TENSORS, H3, PackedRows, RowOrder

__all__ = [
    "BLOCK_SLOTS",
    "FINAL_SLOTS",
    "FLOAT32_TENSORS",
    "H3",
    "MODALITIES",
    "RELEASE",
    "AdaLNTables",
    "Bank",
    "ConfigError",
    "Form",
    "H3Config",
    "LayerAttention",
    "Modulation",
    "OffLadderError",
    "PackedRows",
    "Rope",
    "RowOrder",
    "Stretch",
    "TableError",
    "audio_from_rows",
    "audio_rows",
    "build_tables",
    "canonical_time",
    "choose_form",
    "curve_coordinates",
    "distinct_times",
    "embed_times",
    "inverse_frequencies",
    "layer_table",
    "load_tables",
    "modulation_rows",
    "patchify",
    "run_fast",
    "save_tables",
    "unpatchify",
]
