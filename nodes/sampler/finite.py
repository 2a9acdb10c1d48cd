"""Errors of a render, and the check that stops it at the first stage whose numbers are not numbers any more."""

from __future__ import annotations

import torch
from torch import Tensor


class RenderError(ValueError):
    """Inputs that do not fit together, or a render that went wrong; the message says what to change."""


class NonFiniteError(RenderError):
    """NaN or infinite values. `chunk` counts from 0; `stage` names where they appeared first."""

    def __init__(self, stage: str, chunk: int, remedy: str) -> None:
        super().__init__(
            f"chunk {chunk}: {stage} NaN or infinite values; the chunks before it are kept. {remedy}",
        )
        self.stage, self.chunk = stage, chunk


WEIGHTS = "Render with dtype bf16 or fp32, and check that the checkpoint's form is the one named in the log"
STAGES = {
    "text states": ("the look's text states hold", "Encode the prompt again, with a wider dtype of the text encoder"),
    "picture latent": ("the look's picture latent holds", "Load the H3 encoder with dtype fp32"),
    "map latents": ("the encoder returned, for the class maps,", "Load the H3 encoder with dtype fp32"),
    "decoded frames": ("the decoder returned", "Load the H3 decoder with dtype fp32 (bf16 for the causal ViT)"),
}


def require_finite(values: Tensor, stage: str, chunk: int) -> None:
    """Raise `NonFiniteError` naming `stage` (a key of STAGES) unless every value is finite."""
    if not torch.isfinite(values).all():
        words, remedy = STAGES[stage]
        raise NonFiniteError(words, chunk, remedy)


def require_finite_step(video: Tensor, audio: Tensor, step: int, steps: int, chunk: int) -> None:
    """The same for the clean latents predicted in one denoising step (counted from 0)."""
    for what, values in (("picture", video), ("sound", audio)):
        if not torch.isfinite(values).all():
            raise NonFiniteError(f"the model returned, in step {step + 1} of {steps} for the {what},", chunk, WEIGHTS)
