"""ComfyUI node: H3 Text, the words of a video that is made from text alone."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .. import host
from ..host import CATEGORY, H3_LOOK, socket
from ..schedule import Geometry
from . import TextLook, TextStates, states_from_conditioning
from .node import NO_FOLDER, states_from_folder

NODE = "H3 Text"


class TextNode(io.ComfyNode):
    """A prompt, encoded without a picture, and the size of the video."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        folders = host.text_encoder_folders()
        return io.Schema(
            node_id="SRH3_Text",
            display_name=NODE,
            category=CATEGORY,
            description="The words of a video made from text alone (T2VA), with its size, for H3 Clip Sampler. The text is encoded "
            "by a CLIP, a Qwen3-VL folder, or comes as a ready CONDITIONING.",
            inputs=[
                io.String.Input(
                    "prompt",
                    multiline=True,
                    tooltip="What is seen and heard, in the sections integrated_multimodal_description:, overall_soundscape: and "
                    "non_diegetic_music:. Ignored when 'positive' is connected.",
                ),
                io.Int.Input(
                    "width",
                    default=1344,
                    min=64,
                    max=4096,
                    step=32,
                    tooltip="Width of the video in pixels, a multiple of 32. MiniMax-H3 is made for 1344.",
                ),
                io.Int.Input(
                    "height",
                    default=768,
                    min=64,
                    max=4096,
                    step=32,
                    tooltip="Height of the video in pixels, a multiple of 32. MiniMax-H3 is made for 768.",
                ),
                io.Combo.Input(
                    "text_encoder",
                    options=[*folders, NO_FOLDER],
                    default=folders[0] if folders else NO_FOLDER,
                    tooltip="A Qwen3-VL folder in models/text_encoders. Used when neither 'clip' nor 'positive' is connected. "
                    "Results are kept on disk, so it runs once per prompt.",
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
                    tooltip="Ready text states from a native MiniMax H3 node without pictures. Takes precedence over the prompt.",
                ),
            ],
            outputs=[
                socket(H3_LOOK).Output("text", display_name="text", tooltip="For the 'look' input of H3 Clip Sampler.")
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
        )

    @classmethod
    @host.one_of_many
    def execute(
        cls,
        prompt: str,
        width: int,
        height: int,
        text_encoder: str,
        clip: Any = None,
        positive: Any = None,
    ) -> io.NodeOutput:
        size = (height, width)
        Geometry.from_sizes(target=size, reference=size, picture=None)  # refuses a size that does not fit
        if positive is not None:
            states = states_from_conditioning(positive)
        elif clip is not None:
            states = states_from_conditioning(clip.encode_from_tokens_scheduled(clip.tokenize(prompt)))
        else:
            states = states_from_folder(text_encoder, prompt, None, NODE)
        return io.NodeOutput(text_look(states, size, prompt))


def text_look(states: TextStates, size: tuple[int, int], prompt: str) -> TextLook:
    """Text states with the size of the video; refuses states that show a picture."""
    return TextLook(states.text, states.tags, states.media_rows, size, prompt)
