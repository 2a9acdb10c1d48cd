"""The Look: everything that fixes the appearance of a session, and the checks it must pass before any model work.

Text states and tags come from Qwen3-VL (or a ComfyUI CONDITIONING), the picture is the clean latent of the first-frame
anchor (specification: conditioning 2.6, 2.7 and 3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

LATENT_PIXELS = 16


class LookError(ValueError):
    """The look cannot be used; the message says what arrived, what is needed and what to do."""


class PictureEncoder(Protocol):
    """What a Look needs of a video encoder."""

    def encode_picture(self, rgb: Tensor) -> Tensor:
        """RGB float32 [3, H, W] in [0, 1] to a normalised latent [24, 1, H/16, W/16]."""
        ...


@dataclass(frozen=True)
class TextStates:
    """Encoder states before ``condition_proj``: ``text`` float [L, text_dim], ``tags`` int64 [L] (1 text, 0 picture).

    The first ``media_rows`` rows are the picture label and the image block. Qwen is causal, so they are also the whole
    context of the guidance branch without a caption. Raises LookError for shapes that do not fit each other.
    """

    text: Tensor
    tags: Tensor
    media_rows: int

    def __post_init__(self) -> None:
        if self.text.ndim != 2 or not self.text.is_floating_point() or 0 in self.text.shape:
            raise LookError(
                f"The text states are {self.text.dtype} {list(self.text.shape)}; a float tensor [rows, width] is "
                "needed. Encode the prompt again."
            )
        check_tags(self.tags, self.text.shape[0])
        if not 0 <= self.media_rows <= self.text.shape[0]:
            raise LookError(
                f"The picture prefix is {self.media_rows} rows of {self.text.shape[0]}; it must lie inside the text. "
                "Encode the prompt again."
            )


@dataclass(frozen=True)
class Look(TextStates):
    """Text states with the picture: a clean latent float32 [24, 1, h, w], or uint8 RGB [H, W, 3] still to be encoded.

    Exactly one of ``picture`` and ``rgb`` is given. ``prompt`` and ``note`` are for people.
    """

    picture: Tensor | None = None
    rgb: Tensor | None = None
    prompt: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.picture is None) == (self.rgb is None):
            raise LookError(
                f"The look has {'no picture' if self.picture is None else 'both a picture latent and an RGB picture'}; "
                "exactly one is needed. Connect an image to 'picture'."
            )
        if self.picture is not None and (
            self.picture.ndim != 4 or self.picture.shape[1] != 1 or self.picture.dtype != torch.float32
        ):
            raise LookError(
                f"The picture latent is {self.picture.dtype} {list(self.picture.shape)}; float32 [channels, 1, h, w] "
                "is needed. Encode the picture with an H3 encoder."
            )
        if self.rgb is not None and (self.rgb.ndim != 3 or self.rgb.shape[-1] != 3 or self.rgb.dtype != torch.uint8):
            raise LookError(
                f"The picture is {self.rgb.dtype} {list(self.rgb.shape)}; uint8 [height, width, 3] is needed. "
                "Prepare it with prepare_picture."
            )

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the picture in pixels."""
        if self.rgb is not None:
            return int(self.rgb.shape[0]), int(self.rgb.shape[1])
        assert self.picture is not None  # checked on construction
        return int(self.picture.shape[2]) * LATENT_PIXELS, int(self.picture.shape[3]) * LATENT_PIXELS


@dataclass(frozen=True)
class TextLook(TextStates):
    """Text states without a picture, for text to video; ``size`` is (height, width) of the video in pixels."""

    size: tuple[int, int] = (768, 1344)
    prompt: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool((self.tags == 0).any()):
            raise LookError(
                "The text states show a picture; text alone is needed here. Encode the prompt without a picture, or use H3 Look."
            )


def make_look(
    states: TextStates,
    *,
    picture: Tensor | None = None,
    rgb: Tensor | None = None,
    prompt: str = "",
    note: str = "",
) -> Look:
    """A Look from text states and a picture in one of its two forms."""
    return Look(states.text, states.tags, states.media_rows, picture, rgb, prompt, note)


def encode_picture(encoder: PictureEncoder, rgb: Tensor) -> Tensor:
    """uint8 [H, W, 3] to the clean picture latent float32 [24, 1, H/16, W/16], rounded through float16.

    The rounding is what the released runtime does to picture latents; training saw the same.
    """
    latent = encoder.encode_picture(rgb.permute(2, 0, 1).to(torch.float32) / 255.0)
    return latent.detach().to("cpu", torch.float16).to(torch.float32)


def with_picture_latent(look: Look, encoder: PictureEncoder) -> Look:
    """The look with its RGB picture turned into a latent; a look that already has one is returned as it is."""
    if look.rgb is None:
        return look
    return replace(look, picture=encode_picture(encoder, look.rgb), rgb=None)


def check_tags(tags: Tensor, rows: int) -> None:
    """Raise LookError unless ``tags`` is one integer per text row, each 0 or 1."""
    if tags.ndim != 1 or tags.is_floating_point() or tags.is_complex() or tags.dtype == torch.bool:
        raise LookError(
            f"The modality tags are {tags.dtype} {list(tags.shape)}; one integer per text row is needed. "
            "Encode the prompt again."
        )
    if tags.shape[0] != rows:
        raise LookError(
            f"There are {tags.shape[0]} modality tags for {rows} text rows; one tag per row is needed. "
            "Encode the prompt again, without nodes that cut or join the conditioning."
        )
    if not bool(((tags == 0) | (tags == 1)).all()):
        raise LookError(
            f"The modality tags contain {sorted(set(tags.tolist()) - {0, 1})}; only 0 (picture) and 1 (text) are "
            "known. Encode the prompt again."
        )


def check_text_width(text: Tensor, text_dim: int) -> None:
    """Raise LookError unless the text states [L, width] are as wide as the model's ``text_dim``."""
    width = text.shape[-1]
    if width != text_dim:
        raise LookError(
            f"The text states are {width} wide, but the model needs text_dim {text_dim}. "
            "Encode the prompt with the Qwen3-VL text encoder that belongs to this model."
        )


def check_look(look: Look, *, text_dim: int, size: tuple[int, int], channels: int = 24) -> None:
    """Raise LookError unless the look fits a model of ``text_dim`` and an output of ``size`` = (height, width)."""
    check_text_width(look.text, text_dim)
    if look.picture is not None and look.picture.shape[0] != channels:
        raise LookError(
            f"The picture latent has {look.picture.shape[0]} channels; {channels} are needed. "
            "Encode the picture with an H3 encoder (TAE-H3)."
        )
    if look.size != size:
        raise LookError(
            f"The look's picture is {look.size[1]}x{look.size[0]}, but the output is {size[1]}x{size[0]}. "
            "Set the same width and height on H3 Look and on the sampler."
        )
