"""What the doctor finds: one line for each thing that was looked at, and how a trial becomes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import torch

YES, NO, FACT = "works", "does not work", ""
HEAD_DIM = 128


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it works (empty for a plain fact), and the detail or the reason."""

    part: str
    name: str
    state: str
    detail: str


def tried(part: str, name: str, use: str, trial: Callable[[], str], package: str = "") -> Finding:
    """A trial that returns what to say, or raises; nothing it raises gets out."""
    try:
        version = f" {metadata.version(package)}" if package else ""
    except metadata.PackageNotFoundError:
        version = ""
    try:
        with torch.inference_mode():
            said = trial()
    except Exception as error:  # any failure of a foreign package is a finding
        return Finding(part, f"{name}{version}", NO, line_of(error) + (f" ({use})" if use else ""))
    return Finding(part, f"{name}{version}", YES, f"{said} ({use})" if said and use else said or use)


def line_of(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())[:160]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
