"""Text states from Qwen3-VL through transformers: the output of decoder layer 49 without the final norm.

The model is built with the first 50 decoder layers only and an identity in place of the norm, so its last output is the
wanted state whatever the library does to its last entry (specification: conditioning 2.5 and 5.1).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...kernels.block_stream import BlockStreamer
from .encoder_files import EncoderError, EncoderFolder, encoder_folder
from .image_rows import H3_RULES, ImageRules, image_rows, read_rules
from .look import TextStates
from .presentation import SpecialIds, present, special_ids

DECODER_LAYERS = 50
"""Decoder layers that H3 conditions on; a model with fewer gives the output of its last one."""
MANY_ROWS = 8192

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QwenEncoder:
    """A loaded text encoder, truncated; ``model`` is a transformers Qwen3VLModel in eval mode.

    With ``streamer``, its decoder layers wait on the host and are copied to ``device`` one by one when they run.
    """

    model: Any
    tokenize: Callable[[str], list[int]]
    special: SpecialIds
    rules: ImageRules
    device: torch.device
    streamer: BlockStreamer | None = None

    @torch.no_grad()
    def encode(self, prompt: str, picture: np.ndarray | None) -> TextStates:
        """States of ``prompt`` after ``picture`` uint8 [H, W, 3], which should already be at the output size; or alone.

        Returns text [L, width] in the model's dtype, on the CPU. Warns in the log above about 8 k rows.
        """
        image = None if picture is None else image_rows(picture, self.rules)
        shown = present(self.tokenize, prompt, image.tokens if image else None, self.special)
        rows = len(shown.ids)
        if rows > MANY_ROWS:
            log.warning("The prompt and picture take %d text rows; above %d the render slows down.", rows, MANY_ROWS)
        inputs = {
            "input_ids": shown.ids[None],
            "attention_mask": torch.ones(1, rows, dtype=torch.int64),
        }
        if image:
            inputs |= {"pixel_values": image.rows.to(self.model.dtype), "image_grid_thw": torch.tensor([image.grid])}
        # Required by transformers 5 as soon as pictures are present, unknown to 4.57.
        if "mm_token_type_ids" in inspect.signature(self.model.forward).parameters:
            inputs["mm_token_type_ids"] = shown.token_types[None]
        states = self.model(**{name: value.to(self.device) for name, value in inputs.items()}, use_cache=False)
        return TextStates(states.last_hidden_state[0].cpu(), shown.tags, shown.media_rows)


def encode_text(
    folder: str | Path,
    prompt: str,
    picture: np.ndarray | None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    *,
    stream: bool = False,
) -> TextStates:
    """Load the encoder of ``folder``, encode once, drop it again. See ``load_encoder`` and ``QwenEncoder.encode``."""
    encoder = load_encoder(folder, device=device, dtype=dtype, stream=stream)
    try:
        return encoder.encode(prompt, picture)
    finally:
        if encoder.streamer:
            encoder.streamer.close()
        del encoder
        if torch.device(device).type == "cuda":
            torch.cuda.empty_cache()


def load_encoder(
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    stream: bool = False,
) -> QwenEncoder:
    """Load a Qwen3-VL folder, its first 50 decoder layers, straight onto ``device`` in ``dtype``. Never goes online.

    With ``stream`` the decoder layers (1 GB each in the released model) stay in the memory-mapped files and come to the
    device one after the other when they run: for devices that do not hold them all.

    Raises EncoderError when files are missing or broken, or transformers is too old for Qwen3-VL.
    """
    files = encoder_folder(folder)
    try:
        from transformers import AutoConfig, AutoTokenizer, Qwen3VLModel
    except (ImportError, OSError, RuntimeError) as error:
        raise EncoderError(
            f"The installed transformers cannot load Qwen3-VL ({_root(error)}); version 4.57 or newer is needed, and a "
            "torchvision and torchaudio that fit torch, or none. Update them, or connect a CONDITIONING."
        ) from error
    config = AutoConfig.from_pretrained(files.config.parent, local_files_only=True)
    config.text_config.num_hidden_layers = min(DECODER_LAYERS, config.text_config.num_hidden_layers)
    config.text_config.use_cache = False
    with _WithoutStorage():
        model: Any = Qwen3VLModel(config)
    model.language_model.norm = nn.Identity()
    device = torch.device(device)
    _load_weights(model, files, device, dtype, stream)
    tokenizer = AutoTokenizer.from_pretrained(files.tokenizer, local_files_only=True)

    def tokenize(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    rules = read_rules(files.rules) if files.rules else H3_RULES
    vision = config.vision_config
    if (rules.patch, rules.temporal, rules.merge) != (
        vision.patch_size,
        vision.temporal_patch_size,
        vision.spatial_merge_size,
    ):
        raise EncoderError(
            f"The image rules cut patches of {rules.patch}, {rules.temporal} frames, merged by {rules.merge}, but the "
            f"vision tower takes {vision.patch_size}, {vision.temporal_patch_size}, {vision.spatial_merge_size}; they "
            "must agree. Take config.json and preprocessor_config.json from the same release."
        )
    model.eval().requires_grad_(False)
    streamer = _to_device(model, device, stream)
    return QwenEncoder(model, tokenize, special_ids(config, tokenizer), rules, device, streamer)


def _to_device(model: Any, device: torch.device, stream: bool) -> BlockStreamer | None:
    """Everything to ``device``; with ``stream`` everything but the decoder layers."""
    if not stream:
        model.to(device)
        return None
    layers = model.language_model.layers
    model.language_model.layers = nn.ModuleList()
    model.to(device)
    model.language_model.layers = layers
    return BlockStreamer(layers, device, through_buffers=True, everything=True)


def _root(error: BaseException) -> BaseException:
    """What went wrong first; transformers hides it behind errors of its own."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return error


class _WithoutStorage(TorchFunctionMode):
    """Parameters are born on the meta device, computed buffers (rotary frequencies) keep their values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _load_weights(
    model: nn.Module, files: EncoderFolder, device: torch.device, dtype: torch.dtype, stream: bool
) -> None:
    from safetensors import SafetensorError, safe_open

    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    layers = len(model.language_model.layers)  # type: ignore[union-attr, arg-type]
    found: set[str] = set()
    for path in files.shards:
        state: dict[str, Tensor] = {}
        try:
            with safe_open(path, framework="pt", device="cpu" if stream else str(device)) as shard:
                for stored in shard.keys():  # noqa: SIM118 (not a mapping)
                    name = module_name(stored, layers)
                    if name is None:
                        continue
                    tensor = shard.get_tensor(stored)
                    if wanted.get(name) != tuple(tensor.shape) or tensor.dtype not in _DTYPES:
                        raise EncoderError(
                            f"The tensor {stored} in {path} is {tensor.dtype} {list(tensor.shape)}; "
                            f"{_needed(wanted.get(name))} is needed. Use an unquantised Qwen3-VL whose config.json "
                            "belongs to these weights."
                        )
                    state[name] = tensor.to(dtype)
        except (SafetensorError, OSError) as error:
            raise EncoderError(
                f"The weights {path} could not be read ({error}); a whole safetensors file is needed. Copy it again."
            ) from error
        model.load_state_dict(state, strict=False, assign=True)
        found |= state.keys()
    missing = sorted(wanted.keys() - found)
    if missing:
        raise EncoderError(
            f"The weights in {files.config.parent} lack {len(missing)} of {len(wanted)} tensors, the first is "
            f"{missing[0]}; all are needed. Copy the missing weight files of the release."
        )


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _needed(shape: tuple[int, ...] | None) -> str:
    return "no tensor of this name" if shape is None else f"a 16- or 32-bit float tensor {list(shape)}"


def module_name(stored: str, layers: int) -> str | None:
    """Name inside Qwen3VLModel of a stored tensor (release or single-file repack prefixes); None when not used."""
    name = stored
    if name.startswith(("model.language_model.", "model.visual.")):
        name = name.removeprefix("model.")
    elif name.startswith("model."):
        name = "language_model." + name.removeprefix("model.")
    if name.startswith(("lm_head.", "language_model.norm.")):
        return None
    parts = name.split(".")
    if parts[:2] == ["language_model", "layers"] and parts[2].isdigit() and int(parts[2]) >= layers:
        return None
    return name
