"""Run a ComfyUI folder's main.py on a CPU-only torch: `python run_comfyui.py COMFYUI_FOLDER [ComfyUI's arguments]`.

On x86_64 Linux, PyPI has torchvision and torchaudio only as CUDA builds, whose compiled parts cannot load beside a CPU
torch. Everything ComfyUI and H3 use from them is pure Python, so an import hook declares what their imports look for.
It does nothing beside genuine CPU builds or beside a CUDA torch.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import re
import runpy
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

STOP_WITH_PARENT = "SRH3_STOP_WITH_PARENT"


def accelerator_build(name: str) -> bool:
    """True when the package's version.py says that it was built for CUDA, ROCm or XPU; nothing is imported."""
    spec = importlib.machinery.PathFinder.find_spec(name)
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return version.is_file() and bool(
        re.search(r"__version__\s*=\s*['\"][^'\"]*\+(cu|rocm|xpu)\d", version.read_text())
    )


class CpuTorchCompanions(importlib.abc.MetaPathFinder):
    """Prepares the import of torchvision and torchaudio, lazily, and never provides a module itself."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("torchvision", "torchaudio"):
            import torch

            cpu = torch.version.cuda is None and getattr(torch.version, "hip", None) is None
            if cpu and accelerator_build(name):
                getattr(self, "_" + name)(torch)

    def _torchvision(self, torch: Any) -> None:
        # The two operators whose fake kernels are registered at import. Unreferenced, the library would take them away.
        self._library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            with contextlib.suppress(RuntimeError):  # already declared
                self._library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    def _torchaudio(self, torch: Any) -> None:
        extension = types.ModuleType("torchaudio._extension")  # in place of the module that loads the shared libraries
        extension._IS_TORCHAUDIO_EXT_AVAILABLE = extension._IS_ALIGN_AVAILABLE = False  # type: ignore[attr-defined]
        extension._check_cuda_version = lambda: None  # type: ignore[attr-defined]
        extension.fail_if_no_align = lambda function: function  # type: ignore[attr-defined]
        sys.modules.setdefault(extension.__name__, extension)


def install_companions() -> None:
    """Put the import hook in place; harmless to call twice."""
    if not any(isinstance(finder, CpuTorchCompanions) for finder in sys.meta_path):
        sys.meta_path.insert(0, CpuTorchCompanions())


def _stop_with_parent(parent: int) -> None:
    """End this server when the process that started it is gone, however it went."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="stop-with-parent").start()


def main() -> None:
    if len(sys.argv) < 2 or not Path(sys.argv[1], "main.py").is_file():
        sys.exit("usage: run_comfyui.py COMFYUI_FOLDER [ComfyUI arguments]; the folder must hold main.py")
    folder = str(Path(sys.argv[1]).resolve())
    parent = os.environ.pop(STOP_WITH_PARENT, None)
    if parent:
        _stop_with_parent(int(parent))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited from a shell that started us in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    install_companions()
    script = os.path.join(folder, "main.py")
    sys.path[0] = folder
    sys.argv = [script, *sys.argv[2:]]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
