"""A report on any checkpoint from its header alone: what it is, whether it is whole, what it holds."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .audit import audit
from .checkpoint import Checkpoint, open_checkpoint
from .detect import recognise
from .header import CheckpointError
from .marks import KIND_H3
from .quant_checkpoint import without_codes

_SHOWN = 20


@dataclass(frozen=True)
class Stored:
    """How much of one dtype a checkpoint holds."""

    tensors: int = 0
    parameters: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Report:
    """What the headers of a checkpoint say. `qkv_order` to `problems` describe H3 models and are empty for other kinds.

    Attributes:
        path, files: what was asked for, and the names of the files that were read.
        kind: H3, TAE, causal ViT decoder, native VAE, audio VAE, LoRA, Qwen3-VL, ... or unknown.
        layout: names and row order in words; `prefix` stands before every name in the file.
        tensors, parameters, bytes: in all; `dtypes` the same per dtype.
        adaln: full, curve, low rank, baked or absent. `storage`: plain or the quantised form.
        gates: gate projections of a sparse-attention branch.
        doubts: what the file does not tell and is assumed.
        loadable: whether `load_h3` reads it; `reason` says why not and what to do.
    """

    path: str
    files: tuple[str, ...]
    kind: str
    layout: str
    prefix: str
    tensors: int
    parameters: int
    bytes: int
    dtypes: Mapping[str, Stored]
    adaln: str
    storage: str
    gates: int
    qkv_order: str
    qkv_reason: str
    gate_order: str
    gate_reason: str
    doubts: tuple[str, ...]
    config: Mapping[str, Any] | None
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    wrong_shapes: tuple[str, ...]
    problems: tuple[str, ...]
    loadable: bool
    reason: str
    metadata: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def as_text(self) -> str:
        """One fact per line."""
        lines = [
            ("file", self.path if len(self.files) == 1 else f"{self.path} ({len(self.files)} shards)"),
            ("kind", self.kind),
            ("layout", self.layout),
            ("tensors", f"{self.tensors:,}"),
            ("parameters", f"{self.parameters:,}"),
            ("data", f"{self.bytes:,} bytes"),
            *(
                (f"  {dtype}", f"{part.tensors:,} tensors, {part.parameters:,} parameters, {part.bytes:,} bytes")
                for dtype, part in self.dtypes.items()
            ),
            ("storage", self.storage),
        ]
        if self.kind == KIND_H3:
            lines += [
                ("AdaLN", self.adaln),
                ("gates", str(self.gates) if self.gates else "none"),
                ("qkv rows", f"{self.qkv_order} ({self.qkv_reason})"),
                ("fc1 halves", f"{self.gate_order} ({self.gate_reason})"),
                (
                    "sizes",
                    ", ".join(f"{name} {value}" for name, value in (self.config or {}).items()) or "not readable",
                ),
                ("missing", _short(self.missing)),
                ("unexpected", _short(self.unexpected)),
                ("wrong shape", _short(self.wrong_shapes)),
                *(("problem", problem) for problem in self.problems),
                *(("assumed", doubt) for doubt in self.doubts),
            ]
        lines.append(("loads", "yes" if self.loadable else f"no: {self.reason}"))
        return "\n".join(f"{name:<12} {value}".rstrip() for name, value in lines if value)


def inspect_file(path: str | os.PathLike[str], qkv_order: str = "auto", gate_order: str = "auto") -> Report:
    """Report on a safetensors file, a set of shards or a folder. Reads headers only, whatever the size of the file.

    Raises:
        CheckpointError: the file cannot be read as safetensors at all (missing, cut, damaged, another format).
    """
    checkpoint = open_checkpoint(path)
    plain = _without_codes(checkpoint)
    recognition = recognise(plain, qkv_order, gate_order)
    found = audit(plain, recognition) if recognition.kind == KIND_H3 else None
    reason = ". ".join(recognition.refusal) if recognition.refusal else ""
    if found and not reason and not found.complete:
        reason = "it is not complete, see above. Download it again, or pick the unmodified file of its publisher."
    return Report(
        path=str(path),
        files=tuple(header.path.name for header in checkpoint.headers),
        kind=recognition.kind,
        layout=recognition.label,
        prefix=recognition.prefix,
        tensors=len(checkpoint.tensors),
        parameters=sum(info.parameters for info in checkpoint.tensors.values()),
        bytes=checkpoint.nbytes,
        dtypes=_by_dtype(checkpoint),
        adaln=recognition.adaln,
        storage=recognition.storage,
        gates=recognition.gates,
        qkv_order=recognition.qkv_order,
        qkv_reason=recognition.qkv_reason,
        gate_order=recognition.gate_order,
        gate_reason=recognition.gate_reason,
        doubts=recognition.doubts,
        config=asdict(found.config) if found and found.config else None,
        missing=found.missing if found else (),
        unexpected=found.unexpected if found else (),
        wrong_shapes=tuple(
            f"{item.name}: {list(item.found)} instead of {list(item.expected)}" for item in found.mismatched
        )
        if found
        else (),
        problems=found.problems if found else (),
        loadable=bool(found and found.complete and not recognition.refusal),
        reason=reason,
        metadata=dict(checkpoint.metadata),
    )


def _without_codes(checkpoint: Checkpoint) -> Checkpoint:
    """The plain view of a quantised checkpoint; one that is stored in a way nobody reads is reported as it is."""
    try:
        return without_codes(checkpoint)
    except CheckpointError:
        return checkpoint


def _by_dtype(checkpoint: Checkpoint) -> dict[str, Stored]:
    stored: defaultdict[str, Stored] = defaultdict(Stored)
    for info in checkpoint.tensors.values():
        part = stored[info.dtype]
        stored[info.dtype] = replace(
            part,
            tensors=part.tensors + 1,
            parameters=part.parameters + info.parameters,
            bytes=part.bytes + info.nbytes,
        )
    return dict(sorted(stored.items()))


def _short(items: tuple[str, ...]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more if items else "none"
