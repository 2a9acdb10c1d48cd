"""Checkpoint file to H3 model: headers, key layouts, the strict loader, the report, the writer."""

from .audit import EXAMPLE_KEY
from .checkpoint import Checkpoint, open_checkpoint
from .header import CheckpointError, Header, TensorInfo, read_header
from .inspect import Report, inspect_file
from .load import H3Model, ModulationSource, load_h3, write_tables
from .write import write_h3

__all__ = [
    "EXAMPLE_KEY",
    "Checkpoint",
    "CheckpointError",
    "H3Model",
    "Header",
    "ModulationSource",
    "Report",
    "TensorInfo",
    "inspect_file",
    "load_h3",
    "open_checkpoint",
    "read_header",
    "write_h3",
    "write_tables",
]
