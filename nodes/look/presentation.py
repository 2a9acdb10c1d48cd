"""The token sequence shown to Qwen: picture label, image block, prompt; and the modality tag of every row.

No chat template, no begin or end token, no padding. The semantic video is never shown to Qwen (specification:
conditioning 2.3 and 2.7).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

PICTURE_LABEL = "<Picture 1>: "
TAG_VIDEO = 0
TAG_TEXT = 1


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the vision markers; the defaults are those of the Qwen2.5 and Qwen3 vocabulary."""

    vision_start: int = 151652
    vision_end: int = 151653
    image_pad: int = 151655
    video_pad: int = 151656


@dataclass(frozen=True)
class Presentation:
    """``ids`` int64 [L], ``tags`` int64 [L]; the first ``media_rows`` rows are label and image block."""

    ids: Tensor
    tags: Tensor
    media_rows: int
    special: SpecialIds

    @property
    def token_types(self) -> Tensor:
        """0 text, 1 image, 2 video for each id, int64 [L]: what the rotary layout of Qwen3-VL is built from."""
        return (self.ids == self.special.image_pad).long() + 2 * (self.ids == self.special.video_pad).long()


def special_ids(config: Any, tokenizer: Any = None) -> SpecialIds:
    """Vision marker ids of a model: from its config, else from its tokenizer, else the common Qwen ids.

    ``config`` has attributes like ``image_token_id``; ``tokenizer`` has ``get_vocab()``.
    """
    vocabulary = tokenizer.get_vocab() if tokenizer is not None else {}
    default = SpecialIds()

    def find(attribute: str, token: str, fallback: int) -> int:
        value = getattr(config, attribute, None)
        return int(value if value is not None else vocabulary.get(token, fallback))

    return SpecialIds(
        vision_start=find("vision_start_token_id", "<|vision_start|>", default.vision_start),
        vision_end=find("vision_end_token_id", "<|vision_end|>", default.vision_end),
        image_pad=find("image_token_id", "<|image_pad|>", default.image_pad),
        video_pad=find("video_token_id", "<|video_pad|>", default.video_pad),
    )


def present(
    tokenize: Callable[[str], list[int]], prompt: str, image_tokens: int | None, special: SpecialIds | None = None
) -> Presentation:
    """Ids and tags of label, image block and prompt; of the prompt alone where ``image_tokens`` is None.

    ``tokenize`` turns a piece of text into ids without adding any. Label and prompt are tokenised apart and joined as
    ids, because joined text would melt the label's last space into the prompt's first word. Tags: text 1; the whole
    image block with its start and end marker 0. Raises ValueError when the prompt is empty or spells a vision marker.
    """
    special = special or SpecialIds()
    if not prompt.strip():
        raise ValueError("The prompt is empty; a text is needed. Write one, or start from the built-in template.")
    text = list(tokenize(prompt))
    if set(text) & set(astuple(special)):
        raise ValueError(
            "The prompt contains a marker such as <|image_pad|>, which stands for picture rows; plain text is needed. "
            "Remove everything of the form <|...|> from it."
        )
    label, block = [], []
    if image_tokens is not None:
        label = list(tokenize(PICTURE_LABEL))
        block = [special.vision_start, *[special.image_pad] * image_tokens, special.vision_end]
    tags = [TAG_TEXT] * len(label) + [TAG_VIDEO] * len(block) + [TAG_TEXT] * len(text)
    return Presentation(
        ids=torch.tensor(label + block + text, dtype=torch.int64),
        tags=torch.tensor(tags, dtype=torch.int64),
        media_rows=len(label) + len(block),
        special=special,
    )
