"""Codec file -> encoder or decoder, recognised by tensor names and shapes, everything else refused by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from .errors import CodecFileError
from .protocol import Decoder, Encoder
from .tae import TAE, TAEWidths, build_decoder, build_encoder
from .tae_stream import TAEDecoder, TAEEncoder
from .vit import CausalViT, ViTConfig
from .vit_stream import DecodeMode, ViTDecoder

Shapes = Mapping[str, tuple[int, ...]]
Sizes = TypeVar("Sizes")


@dataclass(frozen=True)
class CodecFile:
    """What the header of a safetensors file says; no tensor has been read."""

    path: Path
    shapes: Shapes
    metadata: Mapping[str, str]
    identity: str  # sha256 over the header bytes and the file size

    def error(self, text: str) -> CodecFileError:
        return CodecFileError(f"{self.path.name}: {text}")

    def read(self, module: nn.Module, prefix: str, device: torch.device, place: Callable[[str], torch.dtype]) -> None:
        """Fill a module built on the meta device with the tensors under `prefix`, in the dtype `place(name)`."""
        from safetensors import safe_open

        with safe_open(self.path, "pt", device="cpu") as tensors:
            state = {name: tensors.get_tensor(prefix + name).to(device, place(name)) for name in module.state_dict()}
        module.load_state_dict(state, assign=True)
        module.requires_grad_(False)


def read_codec_file(path: str | PathLike[str]) -> CodecFile:
    """Read names, shapes and metadata of a safetensors file; refuse what is missing, truncated or another format."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise CodecFileError(f"{path}: no such file; a codec is one safetensors file. Check the path.")
    try:
        with safe_open(path, "pt") as tensors:
            shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
            metadata = tensors.metadata() or {}
    except SafetensorError as error:
        raise CodecFileError(
            f"{path.name}: not a whole safetensors file ({error}); a codec is one safetensors file. Download it again."
        ) from error
    with path.open("rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
    identity = hashlib.sha256(length + header + str(path.stat().st_size).encode()).hexdigest()
    return CodecFile(path, shapes, metadata, identity)


def load_encoder(
    path: str | PathLike[str], *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> Encoder:
    """Load the streaming encoder of a TAE file (`taeh3`)."""
    file = read_codec_file(path)
    kind = recognise(file.shapes)
    if kind != "tae":
        raise file.error(f"{KINDS[kind]}; an H3 stream needs the encoder of a TAE. Use taeh3.safetensors of TAEHV.")
    return TAEEncoder(_load_tae(file, "encoder.", torch.device(device), dtype), file.identity)


def load_decoder(
    path: str | PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    mode: DecodeMode = "pair",
) -> Decoder:
    """Load a streaming decoder: the decoder half of a TAE file (`taeh3`), or the causal ViT decoder.

    `dtype` is that of all TAE weights, and of the block Linears of the ViT, whose other weights stay float32. `mode`
    says what the ViT does with a latent whose partner has not come; a TAE never waits and has no use for it.
    """
    file = read_codec_file(path)
    kind = recognise(file.shapes)
    if kind == "tae":
        return TAEDecoder(_load_tae(file, "decoder.", torch.device(device), dtype), file.identity)
    if kind == "vit":
        return ViTDecoder(_load_vit(file, torch.device(device), dtype), file.identity, mode)
    raise file.error(f"{KINDS[kind]}; an H3 stream needs a TAE or the causal ViT decoder. Use taeh3.safetensors.")


def usual_dtype(path: str | PathLike[str], device: str | torch.device) -> torch.dtype:
    """The dtype a codec file runs best in on `device`: float32 on the CPU, else float16 for a TAE and bfloat16 for the ViT.

    A TAE in bfloat16 would band smooth skies; the ViT's feed-forward may overflow float16.
    """
    if torch.device(device).type == "cpu":
        return torch.float32
    return torch.bfloat16 if recognise(read_codec_file(path).shapes) == "vit" else torch.float16


KINDS = {
    "tae": "this is the TAE of MiniMax-H3",
    "vit": "this is the causal ViT decoder, which has no encoder",
    "tae2d": "this is a picture-only (2D) taeh3, a decoder without time and without encoder",
    "native": "this is the whole-clip MiniMax-H3 video VAE, which cannot stream",
    "audio": "this is the MiniMax-H3 audio VAE",
    "unknown": "no video codec of MiniMax-H3 is in this file",
}


def recognise(shapes: Shapes) -> str:
    """Which codec the tensor names belong to: a key of KINDS."""
    if {"encoder.0.weight", "decoder.1.weight", "decoder.22.weight"} <= shapes.keys():
        return "tae"
    if {"x_embedder.weight", "register_tokens", "blocks.0.attn.to_qkv.weight"} <= shapes.keys():
        return "vit"
    if any(name.startswith(("decoder.transformer_blocks.", "encoder.down.")) for name in shapes):
        return "native"
    if any(name.startswith(("pre_block.attn.", "dec_in_proj")) for name in shapes):
        return "audio"
    if shapes and all(name.split(".")[0].isdigit() for name in shapes):
        return "tae2d"
    return "unknown"


def _load_tae(file: CodecFile, prefix: str, device: torch.device, dtype: torch.dtype) -> nn.Sequential:
    widths = _sizes(file, lambda: TAEWidths.from_shapes(file.shapes))
    with torch.device("meta"):
        refuse_differences(file, TAE(widths), "TAE")
        part = build_encoder(widths) if prefix == "encoder." else build_decoder(widths)
    file.read(part, prefix, device, lambda name: dtype)
    return part


def _load_vit(file: CodecFile, device: torch.device, dtype: torch.dtype) -> CausalViT:
    config = _sizes(file, lambda: ViTConfig.from_file(file.shapes, file.metadata))
    with torch.device("meta"):
        network = CausalViT(config)
    refuse_differences(file, network, "ViT decoder")
    file.read(network, "", device, lambda name: dtype if CausalViT.narrow(name) else torch.float32)
    return network


def _sizes(file: CodecFile, read: Callable[[], Sizes]) -> Sizes:
    try:
        return read()
    except KeyError as error:
        raise file.error(f"the tensor {error} is missing; all of the release are needed. Download it again.") from None
    except IndexError:
        raise file.error("a tensor has too few dimensions; those of the release are needed. Use that file.") from None
    except CodecFileError as error:
        raise file.error(str(error)) from None


def refuse_differences(file: CodecFile, module: nn.Module, what: str) -> None:
    """Strict check of names and shapes; the error lists what is missing, unexpected and misshapen."""
    needed = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    missing = [f"missing {name}" for name in needed if name not in file.shapes]
    extra = [f"unexpected {name}" for name in file.shapes if name not in needed]
    shaped = [
        f"{name} is {list(file.shapes[name])}, not {list(shape)}"
        for name, shape in needed.items()
        if file.shapes.get(name, shape) != shape
    ]
    if differences := missing + extra + shaped:
        listed = "; ".join(differences[:8]) + (f"; and {len(differences) - 8} more" if len(differences) > 8 else "")
        raise file.error(f"its {what} tensors differ ({listed}); exactly {len(needed)} are needed. Download it again.")
