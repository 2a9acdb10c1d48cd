"""Video codecs of H3: frames to latents and back, as causal streams with bounded memory."""

from .errors import CodecError, CodecFileError
from .load import load_decoder, load_encoder, usual_dtype
from .protocol import Decoder, DecoderStream, Encoder, EncoderStream
from .space import frames_before
from .tae import TAE, TAEWidths, decode_clip, encode_blocks
from .tae_stream import TAEDecoder, TAEEncoder
from .vit import CausalViT, ViTConfig
from .vit_clip import decode_pairs
from .vit_stream import DecodeMode, ViTDecoder

__all__ = [
    "TAE",
    "CausalViT",
    "CodecError",
    "CodecFileError",
    "DecodeMode",
    "Decoder",
    "DecoderStream",
    "Encoder",
    "EncoderStream",
    "TAEDecoder",
    "TAEEncoder",
    "TAEWidths",
    "ViTConfig",
    "ViTDecoder",
    "decode_clip",
    "decode_pairs",
    "encode_blocks",
    "frames_before",
    "load_decoder",
    "load_encoder",
    "usual_dtype",
]
