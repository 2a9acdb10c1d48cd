"""Measurements of the pack's parts with random weights, each next to the limit of the machine it runs on."""

from .rows import BenchError, Options, Report, Row

__all__ = ["BenchError", "Options", "Report", "Row"]
