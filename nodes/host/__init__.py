"""The only room that touches ComfyUI: folders, memory, progress, interrupts, files shown to people.

The host is imported inside functions, so that the pack imports without one and touches no device when it is loaded.
"""

from __future__ import annotations

from .examples import (
    EXAMPLE_INPUTS,
    provide_example_inputs,
)
from .folders import (
    cache_folder,
    input_path,
    output_files,
    output_place,
    output_subfolder,
    preview_folder,
    temporary_file,
    temporary_folder,
    user_palette,
    user_palettes,
    viewable,
)
from .lists import (
    blocked,
    driven_by_list,
    failed_items,
    one_of_many,
)
from .memory import (
    attention,
    device,
    make_room,
    memory_budget,
    memory_use,
    on_device,
    prefers_bfloat16,
)
from .models import (
    model_folders,
    model_names,
    model_path,
    new_model_path,
    text_encoder_folders,
    text_encoder_path,
)
from .names import (
    ASSETS,
    CATEGORY,
    EXAMPLE,
    H3_DECODER,
    H3_ENCODER,
    H3_LOOK,
    H3_MODEL,
    H3_SCHEDULE,
    PACK,
    ROOT,
    SEMANTIC_CLIP,
    socket,
)
from .patching import (
    managed,
    patched,
)
from .server import (
    add_routes,
    after_prompt,
    check_interrupted,
    client_id,
    is_interrupt,
    progress,
    prompt_id,
    saved_metadata,
    send,
    show_text,
    was_interrupted,
)
from .values import (
    delete_with,
    latent_pair,
    video_from_file,
)

__all__ = [
    "ASSETS",
    "CATEGORY",
    "EXAMPLE",
    "EXAMPLE_INPUTS",
    "H3_DECODER",
    "H3_ENCODER",
    "H3_LOOK",
    "H3_MODEL",
    "H3_SCHEDULE",
    "PACK",
    "ROOT",
    "SEMANTIC_CLIP",
    "add_routes",
    "after_prompt",
    "attention",
    "blocked",
    "cache_folder",
    "check_interrupted",
    "client_id",
    "delete_with",
    "device",
    "driven_by_list",
    "failed_items",
    "input_path",
    "is_interrupt",
    "latent_pair",
    "make_room",
    "managed",
    "memory_budget",
    "memory_use",
    "model_folders",
    "model_names",
    "model_path",
    "new_model_path",
    "on_device",
    "one_of_many",
    "output_files",
    "output_place",
    "output_subfolder",
    "patched",
    "prefers_bfloat16",
    "preview_folder",
    "progress",
    "prompt_id",
    "provide_example_inputs",
    "saved_metadata",
    "send",
    "show_text",
    "socket",
    "temporary_file",
    "temporary_folder",
    "text_encoder_folders",
    "text_encoder_path",
    "user_palette",
    "user_palettes",
    "video_from_file",
    "viewable",
    "was_interrupted",
]
