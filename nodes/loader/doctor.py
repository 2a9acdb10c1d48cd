"""The doctor: what this machine has, whether it really works here, what the files are, and what a render would use.

Every optional package is tried with a small computation, because an import that succeeds says little. Nothing raises: a
failed trial is a finding with its reason.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from .checkpoint import INDEX_SUFFIX
from .doctor_kernels import attentions, chosen, products
from .findings import FACT, HEAD_DIM, NO, YES, Finding, line_of, tried
from .header import CheckpointError
from .inspect import inspect_file

_CLOSE = 2e-2  # relative error that a trial in bf16 or fp16 may have


@dataclass(frozen=True)
class Diagnosis:
    """Findings by part, in order."""

    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"findings": [asdict(finding) for finding in self.findings]}

    def as_text(self) -> str:
        """A heading per part and a line per finding."""
        lines: list[str] = []
        part = ""
        for finding in self.findings:
            if finding.part != part:
                part = finding.part
                lines += [*([""] if lines else []), part]
            state = f"{finding.state}: " if finding.state else ""
            lines.append(f"  {finding.name:<30} {state}{finding.detail}")
        return "\n".join(lines)


def diagnose(device: torch.device, files: Iterable[Path] = ()) -> Diagnosis:
    """Look at everything. `files` are model files or folders to recognise; headers only are read."""
    findings = [*machine(device), *packages(device), *attentions(device), *products(device), *chosen(device)]
    return Diagnosis((*findings, *recognised(files)))


# --------------------------------------------------------------------------------------------------------- the machine


def machine(device: torch.device) -> list[Finding]:
    """Interpreter, torch and the device."""
    part = "machine"
    found = [
        Finding(part, "python", FACT, f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding(part, "torch", FACT, f"{torch.__version__}, CUDA {torch.version.cuda}, HIP {torch.version.hip}"),
        Finding(part, "processor cores", FACT, str(os.cpu_count())),
    ]
    if device.type != "cuda":
        reason = "torch sees no CUDA device" if not torch.cuda.is_available() else "the CPU was asked for"
        return [*found, Finding(part, "device", FACT, f"{device}: {reason}")]
    try:
        about = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        return [*found, Finding(part, "device", NO, f"{device}: {line_of(error)}")]
    return [
        *found,
        Finding(part, "device", YES, f"{device}: {about.name}, compute capability {about.major}.{about.minor}"),
        Finding(part, "device memory", FACT, f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"),
        Finding(part, "bf16", YES if torch.cuda.is_bf16_supported() else NO, "as torch says"),
    ]


# -------------------------------------------------------------------------------------------------------- the packages


def _required(name: str) -> Callable[[torch.device], str]:
    def trial(device: torch.device) -> str:
        import_module(name)
        return ""

    return trial


def _try_transformers(device: torch.device) -> str:
    from transformers import Qwen3VLModel

    return f"has {Qwen3VLModel.__name__}"


def _try_av(device: torch.device) -> str:
    import io

    import av
    import numpy as np

    memory = io.BytesIO()
    with av.open(memory, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width = stream.height = 64
        for _ in range(2):
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return f"wrote {len(memory.getvalue())} bytes of H.264"


def _try_triton(device: torch.device) -> str:
    import triton

    if device.type != "cuda":
        raise RuntimeError(f"version {triton.__version__} is there; it needs a CUDA device")
    from ...kernels.launch import refusal

    reason = refusal(torch.zeros(1, device=device, dtype=torch.bfloat16))
    if reason:
        raise RuntimeError(reason)
    return "the pack's kernels may run"


def _try_kitchen(device: torch.device) -> str:
    import comfy_kitchen as kitchen

    weight = torch.randn(128, 64, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    scale = weight.abs().amax().float() / (6 * 448)
    codes, blocks = kitchen.quantize_nvfp4(weight, scale)
    _close(kitchen.dequantize_nvfp4(codes, scale, blocks, torch.float32), weight, 0.15)
    backends = [name for name, about in kitchen.list_backends().items() if about.get("available")]
    return f"nvfp4 there and back; backends {', '.join(backends) or 'none'}"


def _try_sage(device: torch.device) -> str:
    from sageattention import sageattn

    q, k, v = _rows(device)
    _close(sageattn(q, k, v, tensor_layout="HND"), F.scaled_dot_product_attention(q, k, v), 0.06)
    return "attention agrees"


def _try_xformers(device: torch.device) -> str:
    from xformers.ops import memory_efficient_attention

    q, k, v = _rows(device)
    found = memory_efficient_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    _close(found, F.scaled_dot_product_attention(q, k, v), _CLOSE)
    return "attention agrees"


def _rows(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v [1, heads, rows, head_dim] in bf16."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, 128, HEAD_DIM, generator=generator).to(device, torch.bfloat16) for _ in range(3))
    return q, k, v


def _close(found: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
    error = ((found.double() - expected.double()).norm() / expected.double().norm()).item()
    if not error <= limit:
        raise RuntimeError(f"its result is off by {error:.3f}, more than {limit}")


PACKAGES: dict[str, tuple[str, Callable[[torch.device], str]]] = {
    "einops": ("needed", _required("einops")),
    "safetensors": ("needed", _required("safetensors.torch")),
    "transformers": ("for a Qwen3-VL folder", _try_transformers),
    "av": ("needed for video files", _try_av),
    "triton": ("optional, faster kernels", _try_triton),
    "comfy-kitchen": ("optional, products on quantised weights", _try_kitchen),
    "sageattention": ("optional, not used by the pack itself", _try_sage),
    "xformers": ("optional, not used by the pack itself", _try_xformers),
}


def packages(device: torch.device) -> list[Finding]:
    """Every package the pack can use, tried."""
    return [tried("packages", name, use, partial(trial, device), name) for name, (use, trial) in PACKAGES.items()]


# --------------------------------------------------------------------------------------------------------------- files


def recognised(files: Iterable[Path]) -> list[Finding]:
    """What each file or set of shards is, by its header."""
    found = []
    for path in model_files(files):
        try:
            report = inspect_file(path)
        except (CheckpointError, OSError) as error:
            found.append(Finding("files", path.name, NO, line_of(error)))
            continue
        form = ", ".join(
            word
            for word in (report.kind, report.layout, report.adaln and f"AdaLN {report.adaln}", report.storage)
            if word
        )
        size = f"{report.bytes / 1e9:.2f} GB"
        if report.kind != "H3":
            found.append(Finding("files", path.name, FACT, f"{form}, {size}"))
        else:
            state = YES if report.loadable else NO
            found.append(
                Finding("files", path.name, state, f"{form}, {size}" + (f": {report.reason}" if report.reason else ""))
            )
    return found


def model_files(places: Iterable[Path]) -> list[Path]:
    """The safetensors files in these places; of a set of shards with an index only the index."""
    files: list[Path] = []
    for place in places:
        if not place.is_dir():
            files.append(place)
            continue
        inside = sorted(path for path in place.rglob("*") if path.name.endswith((".safetensors", INDEX_SUFFIX)))
        stems = {
            path.parent / path.name.removesuffix(INDEX_SUFFIX) for path in inside if path.name.endswith(INDEX_SUFFIX)
        }
        files += [path for path in inside if not any(_shard_of(path, stem) for stem in stems)]
    return list(dict.fromkeys(files))


def _shard_of(path: Path, stem: Path) -> bool:
    return path.parent == stem.parent and path.name.startswith(f"{stem.name}-") and "-of-" in path.name
