"""The only module that touches ComfyUI: folders, memory, progress, interrupts, files shown to people.

Everything is imported inside functions, so that the pack imports without a host and touches no device when it is loaded.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
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
EXAMPLE_INPUTS = ("semantic_clip.mp4", "picture.jpg")

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


def cache_folder(name: str) -> Path:
    """A folder below the host's user folder for results worth keeping, such as encoded looks."""
    import folder_paths

    folder = Path(folder_paths.get_user_directory()) / PACK / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def temporary_file(suffix: str) -> Path:
    """A new name in the host's temporary folder, which the host empties itself."""
    import folder_paths

    folder = Path(folder_paths.get_temp_directory()) / PACK
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{uuid.uuid4().hex}{suffix}"


def keep_partial(path: Path) -> Path:
    """Move an unfinished video into the output folder under the next free number and return where it is."""
    import folder_paths

    folder = Path(folder_paths.get_output_directory()) / PACK
    folder.mkdir(parents=True, exist_ok=True)
    number = 1 + max(
        (int(p.stem.rsplit("_", 1)[1]) for p in folder.glob("partial_[0-9]*.mp4") if p.stem[8:].isdigit()), default=0
    )
    target = folder / f"partial_{number:05}.mp4"
    shutil.move(path, target)
    return target


def device() -> torch.device:
    """The device the host computes on."""
    from comfy import model_management

    return model_management.get_torch_device()


def prefers_bfloat16() -> bool:
    """Whether the host's device computes bf16 well; otherwise weights are best kept in float32."""
    from comfy import model_management

    return bool(model_management.should_use_bf16(device()))


def managed(module: nn.Module) -> Any:
    """Hand a module to the host's memory management; `on_device` brings it to the device when it is needed."""
    from comfy import model_management
    from comfy.model_patcher import ModelPatcher

    return ModelPatcher(module, load_device=device(), offload_device=model_management.unet_offload_device())


@contextmanager
def on_device(patchers: list[Any], working_bytes: int) -> Iterator[torch.device]:
    """Load what the patchers hold, leaving `working_bytes` free; on leaving, cached device memory is given back."""
    from comfy import model_management

    model_management.load_models_gpu(patchers, memory_required=working_bytes)
    try:
        yield device()
    finally:
        model_management.soft_empty_cache()


def check_interrupted() -> None:
    """Raise the host's interrupt exception if the person pressed cancel."""
    from comfy import model_management

    model_management.throw_exception_if_processing_interrupted()


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
