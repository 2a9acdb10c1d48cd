"""Load a pack as ComfyUI does and report what that changed: `import_probe.py COMFYUI PACK BASE`, JSON on the last line.

ComfyUI's own modules are imported first; then the attributes of every one of them, of their classes and the entries
of their dictionaries are compared before and after the pack was imported, entered and asked for its schemas.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import sys
import traceback
from types import ModuleType

comfyui, pack, base = sys.argv[1:4]

from run_comfyui import install_companions  # noqa: E402 (beside this file)

install_companions()
sys.path[0] = comfyui
sys.argv = ["main.py"]

importlib.import_module("utils.extra_config")  # first, as main.py does: packages bring other `utils`
from comfy.cli_args import args  # noqa: E402

args.cpu = True
args.base_directory = base
args.disable_api_nodes = True
for folder in ("input", "output", "temp", "user", "models", "custom_nodes"):
    os.makedirs(os.path.join(base, folder), exist_ok=True)

import torch  # noqa: E402

# In the order of main.py and with what its graph execution uses.
for name in ("folder_paths", "execution", "server", "comfy.sd", "comfy.sample", "comfy.utils", "comfy_api.latest"):
    importlib.import_module(name)

HOST = tuple(sorted({name for name in os.listdir(comfyui) if not name.startswith(".")} | {"comfy"}))
CACHES = {"folder_paths.filename_list_cache", "folder_paths.cache_helper"}  # listing models fills them, rightly


def is_host(name: str) -> bool:
    return name.split(".")[0] in {entry.removesuffix(".py") for entry in HOST}


def snapshot() -> dict[str, int]:
    """Identity of everything reachable by name in the host's modules: attributes, class attributes, dictionary entries."""
    seen: dict[str, int] = {}
    for name, module in list(sys.modules.items()):
        if not is_host(name) or not isinstance(module, ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            path = f"{name}.{attribute}"
            if attribute.startswith("__") or path in CACHES:
                continue
            seen[path] = id(value)
            if isinstance(value, type) and value.__module__ == name:
                seen.update(
                    {f"{path}.{key}": id(item) for key, item in vars(value).items() if not key.startswith("_abc")}
                )
            elif isinstance(value, dict):
                seen.update({f"{path}[{key!r}]": id(item) for key, item in value.items()})
    return seen


def new_submodule(path: str) -> bool:
    """Importing a submodule for the first time hangs it on its package, and brings its own names: that is no change."""
    parts = path.split(".")
    return any(".".join(parts[:n]) in fresh for n in range(1, len(parts) + 1))


sockets: list[str] = []
cuda: list[str] = []


def audit(event: str, details: tuple) -> None:
    if event in ("socket.connect", "socket.getaddrinfo"):
        sockets.append(f"{event} {details[-1] if event == 'socket.connect' else details[:2]}")


def waking(*_: object, **__: object) -> None:
    cuda.append("".join(traceback.format_stack(limit=6)[:-1]))
    raise RuntimeError("CUDA was initialised")


modules_before = set(sys.modules)
before = snapshot()
sys.addaudithook(audit)
torch.cuda._lazy_init = waking

spec = importlib.util.spec_from_file_location(
    "pack_under_test", os.path.join(pack, "__init__.py"), submodule_search_locations=[pack]
)
module = importlib.util.module_from_spec(spec)
sys.modules["pack_under_test"] = module
spec.loader.exec_module(module)


async def enter() -> list[str]:
    extension = await module.comfy_entrypoint()
    nodes = await extension.get_node_list()
    return [node.GET_SCHEMA().node_id for node in nodes]


nodes = asyncio.run(enter())
fresh = {name for name in sys.modules if name not in modules_before}
after = snapshot()
changed = [path for path in after if before.get(path) != after[path] and not new_submodule(path)]
changed += [path for path in before if path not in after]
print(json.dumps({"nodes": nodes, "changed": sorted(changed), "sockets": sockets, "cuda": cuda}))
