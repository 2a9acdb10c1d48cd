"""ComfyUI nodes: Load H3 Encoder and Load H3 Decoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from comfy_api.latest import io

from ...kernels.dispatch import offer_host_attention
from .. import host
from ..host import CATEGORY, H3_DECODER, H3_ENCODER, socket
from . import DecodeMode, Decoder, Encoder, load_decoder, load_encoder, usual_dtype

KIND, ALSO = "vae_approx", ("vae",)
DTYPES = {"auto": None, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPE_TOOLTIP = (
    "Number format of the codec. 'auto' takes fp32 on the CPU, and on a GPU fp16 for a TAE and bf16 for the ViT."
)


@dataclass(frozen=True)
class HostEncoder:
    """What travels on H3_ENCODER: the codec and the host's handle on its memory."""

    codec: Encoder
    patcher: Any


@dataclass(frozen=True)
class HostDecoder:
    """What travels on H3_DECODER: the codec and the host's handle on its memory."""

    codec: Decoder
    patcher: Any


def choose_dtype(name: str, path: Path, node: str) -> torch.dtype:
    """What the widget says, or what suits the file on the host's device."""
    if name not in DTYPES:
        raise ValueError(f"{node}: dtype {name!r} is unknown; choose one of {list(DTYPES)}")
    return DTYPES[name] or usual_dtype(path, host.device())


class LoadEncoderNode(io.ComfyNode):
    """Reads the codec that turns class maps and the picture into latents."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_LoadEncoder",
            display_name="Load H3 Encoder",
            category=CATEGORY,
            description="Loads the streaming encoder (TAE for MiniMax-H3) that turns class maps and the picture into latents.",
            inputs=[
                io.Combo.Input(
                    "encoder_name",
                    options=host.model_names(KIND, ALSO),
                    tooltip="A TAE file from models/vae_approx or models/vae, for example taeh3.safetensors (22.7 MB). "
                    "The file is recognised by its tensors, not by its name.",
                ),
                io.Combo.Input("dtype", options=list(DTYPES), default="auto", tooltip=DTYPE_TOOLTIP),
            ],
            outputs=[socket(H3_ENCODER).Output("encoder", display_name="encoder")],
        )

    @classmethod
    def execute(cls, encoder_name: str, dtype: str) -> io.NodeOutput:
        path = host.model_path(encoder_name, KIND, ALSO)
        codec = load_encoder(path, device="cpu", dtype=choose_dtype(dtype, path, "Load H3 Encoder"))
        return io.NodeOutput(HostEncoder(codec, host.managed(codec.layers)))


class LoadDecoderNode(io.ComfyNode):
    """Reads the codec that turns latents into pictures."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_LoadDecoder",
            display_name="Load H3 Decoder",
            category=CATEGORY,
            description="Loads the decoder that turns latents into frames as they come: a TAE, or the causal ViT decoder.",
            inputs=[
                io.Combo.Input(
                    "decoder_name",
                    options=host.model_names(KIND, ALSO),
                    tooltip="A decoder file from models/vae_approx or models/vae: TAE (22.7 MB, fast) or the causal ViT "
                    "student (6.5 GB, finer). The file is recognised by its tensors, not by its name.",
                ),
                io.Combo.Input("dtype", options=list(DTYPES), default="auto", tooltip=DTYPE_TOOLTIP),
                io.Combo.Input(
                    "mode",
                    options=list(get_args(DecodeMode)),
                    default="pair",
                    optional=True,
                    tooltip="Only for the ViT, which works on pairs of latents. 'pair': a lone latent waits for its partner, as "
                    "released. 'early_single' shows it at once (about 20 % more decoding), 'early_pair' more carefully (40 %).",
                ),
            ],
            outputs=[socket(H3_DECODER).Output("decoder", display_name="decoder")],
        )

    @classmethod
    def execute(cls, decoder_name: str, dtype: str, mode: DecodeMode = "pair") -> io.NodeOutput:
        if mode not in get_args(DecodeMode):
            raise ValueError(f"Load H3 Decoder: mode {mode!r} is unknown; choose one of {list(get_args(DecodeMode))}")
        path = host.model_path(decoder_name, KIND, ALSO)
        codec = load_decoder(path, device="cpu", dtype=choose_dtype(dtype, path, "Load H3 Decoder"), mode=mode)
        offer_host_attention(host.attention())
        return io.NodeOutput(HostDecoder(codec, host.managed(codec.layers)))
