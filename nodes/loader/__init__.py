"""Checkpoint file to H3 model: headers, key layouts, the strict loader, AdaLN forms, adapters, the report, the writers."""

from .adapters import Bound, adapted, bind, with_adapter
from .audit import EXAMPLE_KEY
from .checkpoint import Checkpoint, open_checkpoint
from .header import CheckpointError, Header, TensorInfo, read_header
from .inspect import Report, inspect_file
from .load import H3Model, load_h3, write_tables
from .lora import Adapter, read_adapter
from .modulation_source import ModulationSource
from .table_cache import TableCache
from .table_checkpoint import write_table_checkpoint
from .write import write_h3

__all__ = [
    "EXAMPLE_KEY",
    "Adapter",
    "Bound",
    "Checkpoint",
    "CheckpointError",
    "H3Model",
    "Header",
    "ModulationSource",
    "Report",
    "TableCache",
    "TensorInfo",
    "adapted",
    "bind",
    "inspect_file",
    "load_h3",
    "open_checkpoint",
    "read_adapter",
    "read_header",
    "with_adapter",
    "write_h3",
    "write_table_checkpoint",
    "write_tables",
]
