"""A pack for the tests only: nodes that write a LATENT to a file and read it, audio-video pairs included."""

import os

import folder_paths
from safetensors.torch import load_file, save_file


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


class ReadLatent:
    """What WriteLatent wrote: the pair where there is sound and the host knows pairs, else the video alone."""

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "read"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"name": ("STRING", {"default": "latent.safetensors"})}}

    def read(self, name):
        tensors = load_file(os.path.join(folder_paths.get_output_directory(), name))
        if "audio" not in tensors:
            return ({"samples": tensors["video"]},)
        try:
            from comfy.nested_tensor import NestedTensor
        except ImportError:
            return ({"samples": tensors["video"]},)
        return ({"samples": NestedTensor((tensors["video"], tensors["audio"]))},)


NODE_CLASS_MAPPINGS = {"Test_WriteLatent": WriteLatent, "Test_ReadLatent": ReadLatent}
