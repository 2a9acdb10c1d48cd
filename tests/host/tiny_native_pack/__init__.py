"""A pack for the tests only: random files in the native MiniMax-H3 formats, small enough for a test.

ComfyUI's loaders know one size of each H3 network. This pack makes ComfyUI's own classes smaller in the test's server,
before anything is loaded, and writes files of that size with the native tensor names into its model folders. Loaders,
tokenizer, networks and nodes stay ComfyUI's; only widths, and the depths of vision tower and picture decoder, change.
The text encoder keeps its fifty layers, by which ComfyUI recognises it, and its vocabulary.
"""

import os
from functools import partial

import comfy.ldm.minimax.audio_vae as audio_vae
import comfy.ldm.minimax.vae as video_vae
import comfy.ops
import comfy.text_encoders.minimax as minimax
import comfy.text_encoders.qwen3vl as qwen3vl
import folder_paths
import torch
from safetensors.torch import save_file

TEXT_WIDTH = 96  # that of the pack's example model
KIND = "qwen3vl_32b"

qwen3vl.QWEN3VL_CONFIGS[KIND] = partial(
    qwen3vl.QWEN3VL_CONFIGS[KIND],
    hidden_size=TEXT_WIDTH,
    intermediate_size=64,
    num_attention_heads=2,
    num_key_value_heads=1,
)
qwen3vl.QWEN3VL_VISION[KIND] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "depth": 3,
    "deepstack_visual_indexes": [0, 1, 2],
}
video_vae.ViT3DDecoder = partial(video_vae.ViT3DDecoder, num_layers=2, heads=2)
video_vae.MiniMaxH3VideoVAE = partial(video_vae.MiniMaxH3VideoVAE, ch=32, num_res_blocks=1)
audio_vae.MiniMaxH3AudioVAE = partial(audio_vae.MiniMaxH3AudioVAE, encoder_dim=2, latent_dim=64, decoder_dim=128)


def random_state(module, dtype):
    """Values that keep a deep network finite; filters and means that ComfyUI computes or knows are kept."""
    g = torch.Generator().manual_seed(1)
    made = {}
    for name, tensor in module.state_dict().items():
        if name.endswith("filter") or (isinstance(module, video_vae_class) and name.startswith("latents_")):
            made[name] = tensor.clone()
            continue
        noise = torch.randn(tensor.shape, generator=g)
        if tensor.ndim > 1:
            value = noise * tensor[0].numel() ** -0.5
        elif name.endswith(("bias", "mean", "alpha", "beta")):
            value = noise * 0.02
        else:
            value = 1 + noise * 0.02
        made[name] = value.to(dtype)
    return made


video_vae_class = video_vae.MiniMaxH3VideoVAE.func
networks = {
    ("text_encoders", "tiny_h3_text.safetensors"): (
        minimax.MiniMaxQwen3VL({}, torch.float16, "cpu", comfy.ops.manual_cast),
        torch.float16,
    ),
    ("vae", "tiny_h3_video_vae.safetensors"): (video_vae.MiniMaxH3VideoVAE(), torch.float16),
    ("vae", "tiny_h3_audio_vae.safetensors"): (audio_vae.MiniMaxH3AudioVAE(), torch.float32),
}
for (kind, file_name), (network, dtype) in networks.items():
    folder = next(place for place in folder_paths.get_folder_paths(kind) if os.path.basename(place) == kind)
    os.makedirs(folder, exist_ok=True)
    save_file(random_state(network, dtype), os.path.join(folder, file_name))


class WriteNative:
    """What a CONDITIONING, an IMAGE batch and an AUDIO hold, as tensors in a file."""

    RETURN_TYPES = ()
    FUNCTION = "write"
    OUTPUT_NODE = True
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        kinds = ("CONDITIONING", "IMAGE", "AUDIO")
        return {
            "required": {"name": ("STRING", {"default": "native.safetensors"})},
            "optional": {kind.lower(): (kind,) for kind in kinds},
        }

    def write(self, name, conditioning=None, image=None, audio=None):
        tensors = {}
        if conditioning is not None:
            ((text, extras),) = conditioning
            tensors = {"text": text, "tags": extras["minimax_token_tags"]}
            tensors |= {f"ref_{i}_{ref['kind']}": ref["latent"] for i, ref in enumerate(extras.get("minimax_refs", []))}
        if image is not None:
            tensors["image"] = image
        if audio is not None:
            tensors["audio"], tensors["rate"] = audio["waveform"], torch.tensor(audio["sample_rate"])
        tensors = {key: value.contiguous().clone() for key, value in tensors.items()}
        save_file(tensors, os.path.join(folder_paths.get_output_directory(), name))
        return {}


NODE_CLASS_MAPPINGS = {"Test_WriteNative": WriteNative}
