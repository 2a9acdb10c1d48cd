"""Many renders: every clip of a folder in every look with every seed, from the command line or from inside a graph."""

from .errors import BatchError
from .items import ClipSpec, Item, all_items, find_clips, parse_seeds, plain_name
from .looks_file import LookSpec, read_looks, require_files

__all__ = [
    "BatchError",
    "ClipSpec",
    "Item",
    "LookSpec",
    "all_items",
    "find_clips",
    "parse_seeds",
    "plain_name",
    "read_looks",
    "require_files",
]
