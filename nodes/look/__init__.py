"""Picture and prompt to a Look: prompt template, Qwen3-VL text states, picture preparation, cache on disk."""

from .cache import LookCache, encode_cached, look_key
from .encoder_files import EncoderError, encoder_identity
from .files import load_look, load_states, save_look, save_states
from .image_rows import H3_RULES, ImageRows, ImageRules, fitted_size, image_rows, read_rules
from .look import (
    Look,
    LookError,
    PictureEncoder,
    TextLook,
    TextStates,
    check_look,
    check_text_width,
    encode_picture,
    make_look,
    with_picture_latent,
)
from .native import states_from_clip, states_from_conditioning
from .picture import PictureError, PreparedPicture, load_picture, picture_from_image, prepare_picture
from .presentation import Presentation, SpecialIds, present, special_ids
from .prompt import (
    EXAMPLE,
    EXAMPLE_CLASSES,
    RACING_COLOURS,
    SECTIONS,
    Phrases,
    build_prompt,
    colour_words,
    prompt_warnings,
)
from .qwen import QwenEncoder, encode_text, load_encoder

__all__ = [
    "EXAMPLE",
    "EXAMPLE_CLASSES",
    "H3_RULES",
    "RACING_COLOURS",
    "SECTIONS",
    "EncoderError",
    "ImageRows",
    "ImageRules",
    "Look",
    "LookCache",
    "LookError",
    "Phrases",
    "PictureEncoder",
    "PictureError",
    "PreparedPicture",
    "Presentation",
    "QwenEncoder",
    "SpecialIds",
    "TextLook",
    "TextStates",
    "build_prompt",
    "check_look",
    "check_text_width",
    "colour_words",
    "encode_cached",
    "encode_picture",
    "encode_text",
    "encoder_identity",
    "fitted_size",
    "image_rows",
    "load_encoder",
    "load_look",
    "load_picture",
    "load_states",
    "look_key",
    "make_look",
    "picture_from_image",
    "prepare_picture",
    "present",
    "prompt_warnings",
    "read_rules",
    "save_look",
    "save_states",
    "special_ids",
    "states_from_clip",
    "states_from_conditioning",
    "with_picture_latent",
]
