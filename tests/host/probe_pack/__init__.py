"""A pack for the tests only: a node that writes a LATENT to a file, audio-video pairs included (the host's own cannot)."""

import os

import folder_paths
from safetensors.torch import save_file


class WriteLatent:
    RETURN_TYPES = ()
    FUNCTION = "write"
    OUTPUT_NODE = True
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"samples": ("LATENT",), "name": ("STRING", {"default": "latent.safetensors"})}}

    def write(self, samples, name):
        value = samples["samples"]
        parts = value.tensors if getattr(value, "is_nested", False) else [value]
        names = ("video", "audio")
        tensors = {key: part.contiguous().clone() for key, part in zip(names, parts, strict=False)}
        save_file(tensors, os.path.join(folder_paths.get_output_directory(), name))
        return {"ui": {"text": [type(value).__name__]}}


NODE_CLASS_MAPPINGS = {"Test_WriteLatent": WriteLatent}
