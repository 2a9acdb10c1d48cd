"""A render as the memory plan sees it, put together from files' headers or from parts that are loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import torch

from ..codec.load import read_codec_file, recognise
from ..codec.vit import CausalViT
from ..loader.weight_sizes import TransformerSizes
from ..schedule import Schedule
from .memory import RELEASE_TEXT_ROWS, Need, decoder_working, encoder_working
from .memory_plan import BANK_AUTO, Job, WeightSizes
from .network import PREFIX

Size = tuple[int, int]
Shapes = Mapping[str, tuple[int, ...]]


def job_of(
    sizes: TransformerSizes,
    *,
    dtype: torch.dtype,
    schedule: Schedule,
    size: Size,
    reference_size: Size,
    text_rows: int = RELEASE_TEXT_ROWS,
    steps: int = 2,
    branches: int = 1,
    attention: str = PREFIX,
    encoder: Need | None = None,
    decoder: Need | None = None,
    text_encoder: Need | None = None,
    bank: str = BANK_AUTO,
    form: str = BANK_AUTO,
    sparse_window: bool = False,
) -> Job:
    """The job of a render. Text rows default to those of the prompt StreamRender-H3 ships with."""
    return Job(
        config=sizes.config,
        weights=WeightSizes(sizes.blocks, sizes.rest, sizes.form, sizes.scratch),
        schedule=schedule,
        size=size,
        reference_size=reference_size,
        text_rows=text_rows,
        steps=steps,
        branches=branches,
        attention=attention,
        itemsize=dtype.itemsize,
        encoder=encoder or Need(),
        decoder=decoder or Need(),
        text_encoder=text_encoder,
        bank=bank,
        form=form,
        sparse_window=sparse_window,
    )


def encoder_file_need(path: str | os.PathLike[str], dtype: torch.dtype, sizes: tuple[Size, ...]) -> Need:
    """What the encoder in a codec file needs for frames of `sizes`, from its header."""
    shapes = {name: shape for name, shape in read_codec_file(path).shapes.items() if name.startswith("encoder.")}
    return encoder_need(shapes, dtype, sizes)


def decoder_file_need(path: str | os.PathLike[str], dtype: torch.dtype, size: Size) -> Need:
    """What the decoder in a codec file needs at `size`, from its header."""
    shapes = read_codec_file(path).shapes
    if recognise(shapes) == "tae":
        shapes = {name: shape for name, shape in shapes.items() if name.startswith("decoder.")}
    return decoder_need(shapes, dtype, size)


def encoder_need(shapes: Shapes, dtype: torch.dtype, sizes: tuple[Size, ...]) -> Need:
    """What an encoder with tensors of these shapes needs."""
    return Need(sum(map(math.prod, shapes.values())) * dtype.itemsize, encoder_working(sizes, dtype.itemsize))


def decoder_need(shapes: Shapes, dtype: torch.dtype, size: Size) -> Need:
    """What a decoder with tensors of these shapes needs: a TAE, or the causal ViT with its ring of keys and values."""
    if "x_embedder.weight" not in shapes:
        return Need(sum(map(math.prod, shapes.values())) * dtype.itemsize, decoder_working(size, dtype.itemsize))
    layers = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    width = shapes["x_embedder.weight"][0]
    weights = sum(
        math.prod(shape) * (dtype.itemsize if CausalViT.narrow(name) else 4) for name, shape in shapes.items()
    )
    return Need(weights, decoder_working(size, dtype.itemsize, (layers, width)))


def shapes_of(module: torch.nn.Module) -> Shapes:
    """Shapes of a loaded module's tensors."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
