"""Text states from ComfyUI objects: the CONDITIONING of the native H3 nodes, or a CLIP of type minimax.

Only what StreamRender can use is taken; everything else in the conditioning is refused by name (specification:
conditioning 4.3 and 4.5). A reference picture inside it was encoded by the full VAE and is left there: the picture
latent comes from the pack's own encoder. Nothing of ComfyUI is imported, the objects are used as they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .look import LookError, TextStates, check_tags, check_text_width

TAGS = "minimax_token_tags"
REFERENCES = "minimax_refs"
KEYFRAMES = "minimax_keyframes"


def states_from_conditioning(positive: Any, *, text_dim: int | None = None) -> TextStates:
    """Check a CONDITIONING and take text states float32 [L, width] and tags int64 [L] from it, onto the CPU.

    ``text_dim`` is the width the model needs, when it is known. Without tags all rows count as text. The picture prefix
    ends with the last row tagged 0. Raises LookError for keyframes, reference videos or sounds, more than one entry,
    picture or batch item, and for widths and tags that do not fit.
    """
    cond, extras = _single_entry(positive)
    if text_dim is not None:
        check_text_width(cond, text_dim)
    if extras.get(KEYFRAMES):
        raise LookError(
            "The CONDITIONING carries keyframes (first or last frame); StreamRender has no place for them, only for "
            "one reference picture. Use MiniMaxH3ReferenceToVideo with ref_image_0 instead, without Add Guide."
        )
    references = extras.get(REFERENCES) or []
    kinds = [str(reference.get("kind")) for reference in references]
    unusable = [kind for kind in kinds if kind != "image"]
    if unusable:
        raise LookError(
            f"The CONDITIONING carries a {unusable[0].replace('_', ' and ')} reference; only one reference picture is "
            "used here. Connect the semantic video to Semantic Palette Encode, not to ref_videos, and leave the audio "
            "references empty."
        )
    if len(references) > 1:
        raise LookError(
            f"The CONDITIONING carries {len(references)} reference pictures; exactly one is used. "
            "Connect only ref_image_0."
        )
    tags = _tags(extras.get(TAGS), cond.shape[0])
    picture_rows = (tags == 0).nonzero()
    media_rows = int(picture_rows[-1]) + 1 if len(picture_rows) else 0
    return TextStates(cond, tags, media_rows)


def states_from_clip(clip: Any, prompt: str, image: Tensor) -> TextStates:
    """States of ``prompt`` after ``image`` float [1, H, W, 3] in [0, 1], by a ComfyUI CLIP of type minimax.

    Raises LookError when the CLIP is of another type: its tokenizer takes no pictures, or its output has no such rows.
    """
    try:
        tokens = clip.tokenize(prompt, images=[image])
    except TypeError as error:
        raise LookError(
            f"The CLIP does not take pictures ({error}); the MiniMax-H3 text encoder is needed. "
            "Set type to 'minimax' on Load CLIP (ComfyUI 0.33 or newer)."
        ) from error
    positive = clip.encode_from_tokens_scheduled(tokens)
    states = states_from_conditioning(positive)
    if states.media_rows == 0:
        raise LookError(
            "The CLIP gave no picture rows; the MiniMax-H3 text encoder is needed. "
            "Set type to 'minimax' on Load CLIP (ComfyUI 0.33 or newer)."
        )
    return states


def _single_entry(positive: Any) -> tuple[Tensor, Mapping[str, Any]]:
    """The only entry as (text [L, width], extras)."""
    if not isinstance(positive, (list, tuple)):
        raise LookError(
            f"The CONDITIONING is a {type(positive).__name__}; a list with one entry is needed. "
            "Connect a CONDITIONING output."
        )
    if len(positive) != 1:
        raise LookError(
            f"The CONDITIONING has {len(positive)} entries; exactly one is needed. Do not combine or schedule prompts."
        )
    entry = positive[0]
    if not (
        isinstance(entry, (list, tuple))
        and len(entry) == 2
        and isinstance(entry[0], Tensor)
        and isinstance(entry[1], Mapping)
    ):
        raise LookError(
            "The CONDITIONING entry is not a tensor with its settings; the output of a MiniMax-H3 node is needed. "
            "Connect MiniMaxH3ReferenceToVideo."
        )
    cond, extras = entry
    if cond.ndim != 3 or cond.shape[0] != 1:
        raise LookError(
            f"The CONDITIONING has shape {list(cond.shape)}; [1, rows, width], a batch of one, is needed. "
            "Encode a single prompt."
        )
    return cond[0].detach().cpu(), extras


def _tags(tags: Any, rows: int) -> Tensor:
    if tags is None:
        return torch.ones(rows, dtype=torch.int64)
    try:
        values = torch.as_tensor(tags).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise LookError(
            f"The {TAGS} of the CONDITIONING are a {type(tags).__name__}; one integer per text row is needed. "
            "Encode the prompt again."
        ) from error
    check_tags(values, rows)
    return values.to(torch.int64)
