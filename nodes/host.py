"""The only module that touches ComfyUI: folders, memory, progress, interrupts, files shown to people.

Everything is imported inside functions, so that the pack imports without a host and touches no device when it is loaded.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACK = "streamrender_h3"
CATEGORY = "StreamRender-H3"  # in the node menu

# Names of the pack's own sockets: a public contract, shared graphs depend on them.
SEMANTIC_CLIP, H3_LOOK, H3_MODEL = "SEMANTIC_CLIP", "H3_LOOK", "H3_MODEL"
H3_SCHEDULE, H3_ENCODER, H3_DECODER = "H3_SCHEDULE", "H3_ENCODER", "H3_DECODER"

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "workflows" / "assets"
EXAMPLE = "example/"
AFTER_PROMPT_SECONDS = 0.5
CLAIM_SECONDS = 3600  # how long the number of an output file stays claimed by a render that wrote nothing
EXAMPLE_INPUTS = ("semantic_clip.mp4", "picture.jpg", "picture_blue_hour.jpg")

log = logging.getLogger(PACK)


def socket(name: str) -> Any:
    """The socket type called `name`, with its `Input` and `Output`."""
    from comfy_api.latest import io

    return io.Custom(name)


def model_names(kind: str, also: tuple[str, ...] = ()) -> list[str]:
    """Files a person can pick: those of the host's model folder `kind`, then the pack's own example files."""
    import folder_paths

    names: list[str] = []
    for folder in (kind, *also):
        names += [n for n in folder_paths.get_filename_list(folder) if n.endswith((".safetensors", ".json"))]
    bundled = sorted((ASSETS / kind).glob("*.safetensors")) if (ASSETS / kind).is_dir() else []
    first = [path.name for path in bundled if "-of-" not in path.name or "-00001-of-" in path.name]
    return [*dict.fromkeys(names), *(EXAMPLE + name for name in first)]


def model_path(name: str, kind: str, also: tuple[str, ...] = ()) -> Path:
    """Where the file picked from `model_names` lies. Raises `FileNotFoundError` naming the folder to put it in."""
    import folder_paths

    if name.startswith(EXAMPLE) and (ASSETS / kind / name.removeprefix(EXAMPLE)).is_file():
        return ASSETS / kind / name.removeprefix(EXAMPLE)
    for folder in (kind, *also):
        found = folder_paths.get_full_path(folder, name)
        if found:
            return Path(found)
    places = folder_paths.get_folder_paths(kind)
    place = next((place for place in places if Path(place).name == kind), places[0])  # some kinds have older names too
    raise FileNotFoundError(
        f"model file {name!r} is not there; put it into {place} and refresh the page, or pick another file"
    )


def model_folders(kinds: Sequence[str]) -> list[str]:
    """Every folder the host looks into for files of these kinds, then the pack's own."""
    import folder_paths

    places = [place for kind in kinds for place in folder_paths.get_folder_paths(kind)]
    return [*dict.fromkeys(places), *(str(ASSETS / kind) for kind in kinds if (ASSETS / kind).is_dir())]


def text_encoder_folders() -> list[str]:
    """Hugging Face style folders (with a config.json) below the host's text encoder folders, then the example's."""
    import folder_paths

    names = []
    for base in folder_paths.get_folder_paths("text_encoders"):
        if os.path.isdir(base):
            names += sorted(entry.name for entry in Path(base).iterdir() if (entry / "config.json").is_file())
    bundled = ASSETS / "text_encoders"
    if bundled.is_dir():
        names += sorted(EXAMPLE + entry.name for entry in bundled.iterdir() if (entry / "config.json").is_file())
    return list(dict.fromkeys(names))


def text_encoder_path(name: str) -> Path:
    """The folder picked from `text_encoder_folders`."""
    import folder_paths

    bases = (
        [str(ASSETS / "text_encoders")] if name.startswith(EXAMPLE) else folder_paths.get_folder_paths("text_encoders")
    )
    for base in bases:
        folder = Path(base) / name.removeprefix(EXAMPLE)
        if (folder / "config.json").is_file():
            return folder
    raise FileNotFoundError(
        f"text encoder folder {name!r} is not there; put the Qwen3-VL folder (with its config.json) into {bases[0]}"
    )


def provide_example_inputs() -> None:
    """Copy the example clip and picture into the host's input folder once, so that the shipped graph opens ready to run."""
    import folder_paths

    target = Path(folder_paths.get_input_directory()) / PACK
    for name in EXAMPLE_INPUTS:
        try:
            if (ASSETS / name).is_file() and not (target / name).is_file():
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ASSETS / name, target / name)
        except OSError as error:
            log.warning("the example file %s could not be copied to %s: %s", name, target, error)


def input_path(name: str) -> Path:
    """A file or folder that a person named: an absolute path as it is, another one below the host's input folder."""
    import folder_paths

    return Path(folder_paths.get_input_directory()) / Path(name.strip().strip('"')).expanduser()


def user_palettes() -> list[str]:
    """Names of the palette files that people put into the input folder."""
    folder = input_path(f"{PACK}/palettes")
    return sorted(file.name for file in folder.glob("*.json")) if folder.is_dir() else []


def user_palette(name: str) -> Path | None:
    """The palette file picked from `user_palettes`; None for another name."""
    return input_path(f"{PACK}/palettes/{name}") if name in user_palettes() else None


def cache_folder(name: str) -> Path:
    """A folder below the host's user folder for results worth keeping, such as encoded looks."""
    import folder_paths

    folder = Path(folder_paths.get_user_directory()) / PACK / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def temporary_folder() -> Path:
    """A new folder name in the host's temporary folder."""
    return temporary_file("")


def temporary_file(suffix: str) -> Path:
    """A new name in the host's temporary folder, which the host empties itself."""
    import folder_paths

    folder = Path(folder_paths.get_temp_directory()) / PACK
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{uuid.uuid4().hex}{suffix}"


@contextmanager
def output_place(name: str, suffix: str) -> Iterator[Path]:
    """A path in the output folder under the next free number of `name`, which no other render gets; for files and folders.

    A path where nothing was put is free again.
    """
    import folder_paths

    folder = Path(folder_paths.get_output_directory()) / PACK
    folder.mkdir(parents=True, exist_ok=True)
    taken = (path.stem.rpartition("_")[2] for path in folder.glob(f"{name}_[0-9]*"))
    number = 1 + max((int(digits) for digits in taken if digits.isdigit()), default=0)
    while True:
        claim = folder / f".{name}_{number:05}.claim"
        target = folder / f"{name}_{number:05}{suffix}"
        try:
            claim.open("x").close()
        except FileExistsError:
            if time.time() - claim.stat().st_mtime < CLAIM_SECONDS:
                number += 1
                continue
            claim.unlink(missing_ok=True)  # left behind by a process that was killed
            continue
        try:
            yield target
        finally:
            claim.unlink(missing_ok=True)
        return


def saved_metadata(prompt: Any, extra: Any) -> tuple[Any, dict[str, Any]]:
    """(prompt, workflow and the like) to write into files, nothing when the host was started with --disable-metadata."""
    from comfy.cli_args import args

    return (None, {}) if args.disable_metadata else (prompt, dict(extra or {}))


def device() -> torch.device:
    """The device the host computes on."""
    from comfy import model_management

    return model_management.get_torch_device()


def prefers_bfloat16() -> bool:
    """Whether the host's device computes bf16 well; otherwise weights are best kept in float32."""
    from comfy import model_management

    return bool(model_management.should_use_bf16(device()))


def attention() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The attention that the host's user chose, over [batch, heads, rows, d]."""
    from comfy.ldm.modules.attention import optimized_attention

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = q.shape[1]
        return optimized_attention(q, k, v, heads, skip_reshape=True).unflatten(-1, (heads, -1)).transpose(1, 2)

    return attend


def managed(module: nn.Module, partly: Iterable[nn.Module] = ()) -> Any:
    """Hand a module to the host's memory management; `on_device` brings it to the device when it is needed.

    The layers in `partly` may stay in host memory when the device is short of it; whoever runs them has to fetch them.
    """
    from comfy import model_management
    from comfy.model_patcher import ModelPatcher

    for layer in partly:
        layer.comfy_cast_weights = False  # type: ignore[assignment]  # the attribute by which the host knows such layers
    return ModelPatcher(module, load_device=device(), offload_device=model_management.unet_offload_device())


def patched(patcher: Any, weights: Mapping[str, Sequence[Any]], modules: Mapping[str, nn.Module] | None = None) -> Any:
    """A patcher over the same module with changes of weights on top of its own; the given one stays as it is.

    `weights` are patches by tensor name with the fields of the loader's `WeightPatch`; the host merges them in float32 when
    it brings the weights to the device, and takes them back when another patcher of the module is used. `modules` are put
    in place of submodules for as long. Raises `ValueError` where a tensor is not in the module.
    """
    from comfy.weight_adapter import LoRAAdapter

    clone = patcher.clone()
    for level in range(max((len(patches) for patches in weights.values()), default=0)):
        groups: dict[float, dict[Any, Any]] = {}
        for name, patches in weights.items():
            if level < len(patches):
                one = patches[level]
                key = name if one.rows is None else (name, (0, one.rows[0], one.rows[1] - one.rows[0]))
                change: Any = ("set" if one.kind == "replacement" else "diff", (one.value,))
                if one.down is not None:
                    change = LoRAAdapter(set(), (one.value, one.down, one.alpha, None, None, None))
                groups.setdefault(one.strength, {})[key] = change
        for strength, changes in groups.items():
            missing = set(changes) - set(clone.add_patches(changes, strength))
            if missing:
                raise ValueError(f"the host's model has no tensor {sorted(map(str, missing))[0]}; load the model again")
    for name, module in (modules or {}).items():
        clone.add_object_patch(name, module)
    return clone


def new_model_path(name: str, kind: str) -> Path:
    """A path for a new model file in the host's folder `kind`. Raises `ValueError` for a name that is no plain name."""
    import folder_paths

    stem = name.strip().removesuffix(".safetensors")
    if not stem or stem != Path(stem).name or stem in (".", "..") or any(sign in stem for sign in '\\/:*?"<>|'):
        raise ValueError(f"the name {name!r} arrived; a plain file name without folders is needed, such as 'h3_tables'")
    places = folder_paths.get_folder_paths(kind)
    folder = Path(next((place for place in places if Path(place).name == kind), places[0]))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{stem}.safetensors"


@contextmanager
def on_device(patchers: list[Any], working_bytes: int) -> Iterator[torch.device]:
    """Load what the patchers hold, leaving `working_bytes` free; on leaving, cached device memory is given back."""
    from comfy import model_management

    # Adapters are merged also into layers that stay in host memory.
    model_management.load_models_gpu(patchers, memory_required=working_bytes, force_patch_weights=True)
    try:
        yield device()
    finally:
        model_management.soft_empty_cache()


def make_room(nbytes: int) -> None:
    """Have the host move its models off the device until `nbytes` are free."""
    from comfy import model_management

    model_management.free_memory(nbytes, device())


def memory_budget() -> int | None:
    """Bytes of the device's memory that the host lets models use; None on the CPU, whose memory it does not divide."""
    from comfy import model_management

    where = device()
    if where.type == "cpu":
        return None
    total = int(model_management.get_total_memory(where))
    reserved = getattr(model_management, "extra_reserved_memory", lambda: 0)()
    return max(0, total - int(reserved))


def _server() -> Any:
    """The host's server, loaded long before us; None where nodes are used without one, as scripts and tests do."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)


def show_text(text: str, node_id: str | None) -> None:
    """Show a text on a node while it runs."""
    server = _server()
    if node_id is not None and server is not None:
        server.send_progress_text(text, node_id)


def check_interrupted() -> None:
    """Raise the host's interrupt exception if the person pressed cancel."""
    from comfy import model_management

    model_management.throw_exception_if_processing_interrupted()


def after_prompt(action: Callable[[], None]) -> None:
    """Do `action` when the prompt now running has ended, however it ends; at once where no prompt is known to run."""
    server, prompt = _server(), prompt_id()
    if server is None or not prompt:
        action()
        return
    queue = server.prompt_queue

    def wait() -> None:
        while any(item[1] == prompt for item in queue.get_current_queue()[0]):
            time.sleep(AFTER_PROMPT_SECONDS)
        action()

    threading.Thread(target=wait, name="srh3 after prompt", daemon=True).start()


def is_interrupt(error: BaseException) -> bool:
    """Whether this is the host's way of saying that the person pressed cancel."""
    from comfy import model_management

    return isinstance(error, model_management.InterruptProcessingException)


def client_id() -> str | None:
    """The browser or script that queued the prompt now running; None when it did not say who it is."""
    return getattr(_server(), "client_id", None) or None


def prompt_id() -> str:
    """The prompt now running, "" when unknown."""
    return getattr(_server(), "last_prompt_id", None) or ""


def send(event: str, data: dict[str, Any], client: str) -> None:
    """A message to one client over the host's message channel; from any thread. Lost when the client is not there."""
    server = _server()
    if server is not None:
        server.send_sync(event, data, client)


def add_routes(table: dict[str, Any]) -> None:
    """Answer GET requests: path pattern -> handler. Must happen while the host loads the pack.

    A host that loads nodes without serving anything, as scripts and tools do, gets no routes.
    """
    server = _server()
    for path, handler in table.items() if server is not None else ():
        server.routes.get(path)(handler)


def preview_folder() -> Path:
    """A name for a folder of a preview's chunks in the host's temporary folder."""
    import folder_paths

    return Path(folder_paths.get_temp_directory()) / PACK / "previews" / uuid.uuid4().hex


def viewable(path: Path) -> dict[str, str] | None:
    """How the host's /view route names a file of its output or temporary folder; None for a file elsewhere."""
    import folder_paths

    folders = {"output": folder_paths.get_output_directory(), "temp": folder_paths.get_temp_directory()}
    for kind, folder in folders.items():
        base, place = Path(folder).resolve(), path.resolve()
        if place.is_relative_to(base):
            subfolder = place.parent.relative_to(base).as_posix()
            return {"filename": place.name, "subfolder": "" if subfolder == "." else subfolder, "type": kind}
    return None


def memory_use() -> dict[str, Any]:
    """Bytes used and total of the memory the host computes in, and the kind of device it belongs to."""
    from comfy import model_management

    total, free = model_management.get_total_memory(device()), model_management.get_free_memory(device())
    return {"used": int(total - free), "total": int(total), "device": device().type}


def was_interrupted(error: BaseException) -> bool:
    """Whether this is how a press on cancel ends a render."""
    from comfy import model_management

    return isinstance(error, model_management.InterruptProcessingException | KeyboardInterrupt)


def progress(total: int, node_id: str | None) -> Callable[[int, Tensor | None], None]:
    """A function `(done, frame or None)`: moves the node's bar and shows the frame [3, H, W] in [0, 1] on the node."""
    import comfy.utils
    from PIL import Image

    bar = comfy.utils.ProgressBar(total, node_id=node_id)

    def report(done: int, frame: Tensor | None) -> None:
        preview = None
        if frame is not None:
            pixels = (frame.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()
            preview = ("JPEG", Image.fromarray(pixels), max(pixels.shape[:2]))
        bar.update_absolute(done, total, preview)

    return report


def video_from_file(path: Path) -> Any:
    """The host's VIDEO object over a file on disk."""
    from comfy_api.latest import InputImpl

    return InputImpl.VideoFromFile(str(path))


def latent_pair(video: Tensor, audio: Tensor) -> dict[str, Any]:
    """LATENT of an audio-video model: the pair where the host knows pairs, else the picture alone.

    `video` [1, 24, T, h, w], `audio` [1, 32, 2, A].
    """
    try:
        from comfy.nested_tensor import NestedTensor
    except ImportError:
        return {"samples": video}
    return {"samples": NestedTensor((video, audio))}
