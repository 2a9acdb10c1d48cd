"""ComfyUI node: H3 Look, the picture and the words that fix how everything looks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comfy_api.latest import io

from .. import host
from ..host import CATEGORY, H3_ENCODER, H3_LOOK, SEMANTIC_CLIP, socket
from ..palette import FIT, MAPPINGS, STRETCH, SemanticClip
from . import (
    LookCache,
    TextStates,
    encode_cached,
    look_key,
    make_look,
    picture_from_image,
    prepare_picture,
    prompt_warnings,
    states_from_clip,
    states_from_conditioning,
    with_picture_latent,
)
from .encoder_size import encoder_size, text_rows

log = logging.getLogger(host.PACK)

NO_FOLDER = "none"


class LookNode(io.ComfyNode):
    """Picture, prompt and text states in one object."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        folders = host.text_encoder_folders()
        return io.Schema(
            node_id="SRH3_Look",
            display_name="H3 Look",
            category=CATEGORY,
            description="The look of the whole video: one photoreal picture of the clip's first frame, and a prompt. "
            "The output has the size set here. Text comes from a CLIP, a ready CONDITIONING, or a Qwen3-VL folder.",
            inputs=[
                io.Image.Input(
                    "picture",
                    tooltip="A photoreal version of the clip's first frame: same camera, same layout. See "
                    "'mapping' for a picture of another shape.",
                ),
                io.String.Input(
                    "prompt",
                    multiline=True,
                    tooltip="Six sections, from subject_definitions to non_diegetic_music. Say what each class colour stands "
                    "for and how it looks. Ignored when 'positive' is connected.",
                ),
                io.Int.Input(
                    "width",
                    default=1344,
                    min=64,
                    max=4096,
                    step=32,
                    tooltip="Width of the video in pixels, a multiple of 32. StreamRender-H3 is made for 1344.",
                ),
                io.Int.Input(
                    "height",
                    default=768,
                    min=64,
                    max=4096,
                    step=32,
                    tooltip="Height of the video in pixels, a multiple of 32. StreamRender-H3 is made for 768.",
                ),
                io.Combo.Input(
                    "text_encoder",
                    options=[*folders, NO_FOLDER],
                    default=folders[0] if folders else NO_FOLDER,
                    tooltip="A Qwen3-VL folder in models/text_encoders (config.json, tokenizer, safetensors). Used when "
                    "neither 'clip' nor 'positive' is connected. Results are kept on disk, so it runs once per prompt.",
                ),
                socket(H3_ENCODER).Input(
                    "encoder",
                    optional=True,
                    tooltip="Encodes the picture now. Leave it open and the sampler does it with its own encoder.",
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="A text encoder from Load CLIP with type 'minimax' (ComfyUI with native H3). Takes precedence over "
                    "the folder.",
                ),
                io.Conditioning.Input(
                    "positive",
                    optional=True,
                    tooltip="Ready text states from MiniMax H3 Reference To Video with only the picture connected. "
                    "Takes precedence over the prompt.",
                ),
                io.Combo.Input(
                    "mapping",
                    options=list(MAPPINGS),
                    default=FIT,
                    optional=True,
                    tooltip="How a picture of another shape lies in the video, as in Semantic Palette Encode: fit (black bands), "
                    "fill (cut) or stretch. Shapes within 2 % count as the same. Ignored when 'semantic_clip' is connected.",
                ),
                socket(SEMANTIC_CLIP).Input(
                    "semantic_clip",
                    optional=True,
                    tooltip="The clip from Semantic Palette Encode. The picture then lies exactly where the clip lies, and a clip "
                    "that cannot be rendered is refused before the text is encoded.",
                ),
            ],
            outputs=[
                socket(H3_LOOK).Output("look", display_name="look"),
                io.Image.Output(
                    "prepared_picture", display_name="picture", tooltip="The picture as the model sees it."
                ),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
        )

    @classmethod
    @host.one_of_many
    def execute(
        cls,
        picture: torch.Tensor,
        prompt: str,
        width: int,
        height: int,
        text_encoder: str,
        encoder: Any = None,
        clip: Any = None,
        positive: Any = None,
        mapping: str = STRETCH,
        semantic_clip: SemanticClip | None = None,
    ) -> io.NodeOutput:
        how, shape = (semantic_clip.mapping, semantic_clip.shape) if semantic_clip is not None else (mapping, None)
        prepared = prepare_picture(picture_from_image(picture), (height, width), how, shape)
        log.info("H3 Look: %s", prepared.note)
        rgb = torch.from_numpy(prepared.rgb.copy())
        image = rgb[None].float() / 255
        if positive is not None:
            states = states_from_conditioning(positive)
        elif clip is not None:
            states = states_from_clip(clip, prompt, image)
        else:
            states = states_from_folder(text_encoder, prompt, prepared.rgb)
        for warning in prompt_warnings(prompt) if positive is None else ():
            log.warning("H3 Look: %s", warning)
        look = make_look(states, rgb=rgb, prompt=prompt, note=prepared.note)
        if encoder is not None:
            with host.on_device([encoder.patcher], 0):
                look = with_picture_latent(look, encoder.codec)
        return io.NodeOutput(look, image)


def states_from_folder(name: str, prompt: str, picture: np.ndarray | None, node: str = "H3 Look") -> TextStates:
    """Text states from a Qwen3-VL folder, from the disk cache when this prompt and picture were encoded before."""
    if name == NO_FOLDER:
        raise ValueError(
            f"{node}: no text source; connect 'clip' or 'positive', or choose a Qwen3-VL folder in 'text_encoder' "
            "(folders in models/text_encoders with a config.json are listed)"
        )
    dtype = torch.bfloat16 if host.prefers_bfloat16() else torch.float32
    cache = LookCache(host.cache_folder("looks"))
    folder = host.text_encoder_path(name)
    stream = False
    if not cache.path(look_key(folder, prompt, picture, dtype)).is_file():
        stream = _make_room(folder, dtype, text_rows(folder, prompt, None if picture is None else picture.shape[:2]))
    return encode_cached(cache, folder, prompt, picture, host.device(), dtype, stream=stream)


def _make_room(folder: Path, dtype: torch.dtype, rows: int) -> bool:
    """Have the host free device memory for the text encoder; True when its layers must be streamed to fit."""
    budget = host.memory_budget()
    if budget is None:
        return False
    size = encoder_size(folder, dtype)
    whole = size.layers + size.rest + size.activations(rows)
    stream = whole > budget
    if stream:
        log.info("H3 Look: the text encoder (%.1f GB) is larger than the device; its layers are streamed", whole / 1e9)
    host.make_room(size.streamed + size.activations(rows) if stream else whole)
    return stream
