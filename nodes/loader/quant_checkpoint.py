"""A quantised checkpoint seen as a plain one: every linear weight under its own name and [out, in], no scales beside it.

Which tensors belong to one quantised weight, and how they are spelled, is a table; the formulas are in `quant`. Layouts,
audit and conversion then work as for any other file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .checkpoint import Checkpoint
from .header import CheckpointError, read_header
from .quant import FP8, INT8, MXFP8, NVFP4, QuantWeight, dequantise
from .quant_formats import Format, assemble

QUANTISATION_KEY = "_quantization_metadata"
FASTVIDEO_PART = "nvfp4_weights.safetensors"  # lies beside the shards that hold everything else
_USE_PLAIN = "Use the unquantised bf16 weights, or another quantised version."

# What FastVideo calls the modules in its packed files, as diffusers calls them.
FASTVIDEO_NAMES: tuple[tuple[str, str], ...] = (
    (r"\.ff\.fc_in$", ".ff.net.0.proj"),
    (r"\.ff\.fc_out$", ".ff.net.2"),
    (r"\.attn\.to_out$", ".attn.to_out.0"),
)

Layer = Mapping[str, str]  # role of a tensor -> its name in the file


COMFY_FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        Format("float8_e4m3fn", FP8, ("F8_E4M3",)),
        Format("float8_e5m2", FP8, ("F8_E5M2",)),
        Format("nvfp4", NVFP4, ("U8",), high_first=True, tiled=True),
        Format("mxfp8", MXFP8, ("F8_E4M3",), tiled=True),
        Format("int8_tensorwise", INT8, ("I8",)),
    )
}
MODELOPT = Format("ModelOpt NVFP4", NVFP4, ("U8",))
FASTVIDEO = Format("FastVideo NVFP4", NVFP4, ("U8",), tiled=True)
SCALED_FP8 = Format("scaled FP8", FP8, ("F8_E4M3", "F8_E5M2"))

# Spelling of a tensor's role -> role. A name is the module, the spelling, nothing else.
ROLES: Mapping[str, str] = {
    ".weight": "codes",
    ".comfy_quant": "about",
    ".weight_scale": "scale",
    ".scale_weight": "scale",
    ".weight_scale_2": "scale_2",
    ".input_scale": "input",
    ".scale_input": "input",
    ".pre_quant_scale": "columns",
    "::_nvfp4_weight": "fv_codes",
    "::_nvfp4_weight_scale": "fv_blocks",
    "::_nvfp4_alpha": "fv_alpha",
    "::_weight_global_sf": "fv_inverse",
    "::_nvfp4_input_global_sf": "fv_input",
}
_NAME = re.compile(
    rf"(?P<module>.+?)(?P<spelling>{'|'.join(re.escape(s) for s in sorted(ROLES, key=len, reverse=True))})"
)


class QuantisedCheckpoint(Checkpoint):
    """The logical tensors of a quantised checkpoint. `tensors` describes dense weights as BF16; `read` dequantises them.

    Attributes:
        formats: module, as a plain checkpoint would name it, -> how it is stored.
        storage: the formats in words.
    """

    def __init__(self, stored: Checkpoint, layers: Mapping[str, Layer], formats: Mapping[str, Format]) -> None:
        self.__dict__.update(stored.__dict__)
        self.stored = stored
        self.formats = formats
        self._layers = layers
        hidden = {name for layer in layers.values() for name in layer.values()}
        markers = {name for name in stored.tensors if name.split(".")[-1] == "scaled_fp8"}
        self._exact = any(
            stored.tensors[name].parameters == 2 for name in markers
        )  # the old marker of full-precision products
        self.tensors = {name: info for name, info in stored.tensors.items() if name not in hidden | markers}
        for module, layer in layers.items():
            info = stored.tensors[layer["codes"]]
            factor = 2 if formats[module].kind == NVFP4 else 1
            self.tensors[f"{module}.weight"] = replace(
                info, dtype="BF16", shape=(info.shape[0], info.shape[1] * factor)
            )
        counts = Counter(form.name for form in formats.values())
        words = ", ".join(f"{count} layers {name}" for name, count in counts.items())
        self.storage = f"ComfyUI quantised: {words}" if set(counts) & set(COMFY_FORMATS) else words

    def read(self, name: str) -> Tensor:
        """Tensor `name`; a quantised weight as float32 by its formula."""
        packed = self.packed(name)
        return self.stored.read(name) if packed is None else dequantise(packed)

    def is_quantised(self, name: str) -> bool:
        """Whether tensor `name` is stored in codes."""
        return name.endswith(".weight") and name.removesuffix(".weight") in self._layers

    def stored_bytes(self, name: str) -> int:
        """Bytes in the file that make the quantised weight `name`."""
        layer = self._layers[name.removesuffix(".weight")]
        return sum(self.stored.tensors[part].nbytes for part in layer.values())

    def packed(self, name: str) -> QuantWeight | None:
        """Codes and scales of the weight `name`, or None where it is plain.

        Raises CheckpointError where scales are missing or do not fit the codes.
        """
        if not self.is_quantised(name):
            return None
        module = name.removesuffix(".weight")
        layer, form = self._layers[module], self.formats[module]
        about = _about(self.stored, module, layer)
        parts = {
            role: self.stored.read(layer[role]) for role in ("codes", "scale", "scale_2", "columns") if role in layer
        }
        try:
            weight = assemble(form, parts, about)
        except (KeyError, ValueError, RuntimeError) as error:
            reason = f"its {error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(
                self.path,
                found=f"'{name}' is stored as {form.name} and {reason}",
                needed="codes and scales that fit each other",
                remedy=_USE_PLAIN,
            ) from error
        exact = self._exact or bool(about.get("full_precision_matrix_mult"))
        return replace(weight, exact_matmul=exact)


def without_codes(checkpoint: Checkpoint) -> Checkpoint:
    """`checkpoint` with its quantised weights as plain ones, or itself when it has none.

    A part that FastVideo keeps in a second file is joined on the way.

    Raises:
        CheckpointError: a layer is stored in a way that is not read.
    """
    checkpoint = _with_fastvideo_part(checkpoint)
    layers: dict[str, dict[str, str]] = {}
    for name in checkpoint.tensors:
        match = _NAME.fullmatch(name)
        if match:
            layers.setdefault(match["module"], {})[ROLES[match["spelling"]]] = name
    described = _described(checkpoint)
    quantised: dict[str, Layer] = {}
    formats: dict[str, Format] = {}
    for module, layer in layers.items():
        form = _format(checkpoint, module, layer, described)
        if form is None:
            continue
        if form is FASTVIDEO:
            module = _plain_name(module)
            layer = _fastvideo_roles(layer)
        quantised[module], formats[module] = layer, form
    return QuantisedCheckpoint(checkpoint, quantised, formats) if quantised else checkpoint


def _with_fastvideo_part(checkpoint: Checkpoint) -> Checkpoint:
    """Join shards and `nvfp4_weights.safetensors` of one folder, whichever of the two was picked."""
    folder = checkpoint.headers[0].path.parent
    names = [header.path.name for header in checkpoint.headers]
    part = folder / FASTVIDEO_PART
    if names == [FASTVIDEO_PART]:
        others = [path for path in sorted(folder.glob("*.safetensors")) if path.name != FASTVIDEO_PART]
        headers = tuple(read_header(path) for path in others)
        return Checkpoint(checkpoint.path, (*headers, *checkpoint.headers), checkpoint.index) if headers else checkpoint
    if (
        FASTVIDEO_PART not in names
        and part.is_file()
        and any("transformer_blocks." in name for name in checkpoint.tensors)
    ):
        return Checkpoint(checkpoint.path, (*checkpoint.headers, read_header(part)), checkpoint.index)
    return checkpoint


def _plain_name(module: str) -> str:
    for theirs, ours in FASTVIDEO_NAMES:
        module = re.sub(theirs, ours, module)
    return module


def _fastvideo_roles(layer: Layer) -> dict[str, str]:
    renamed = {"fv_codes": "codes", "fv_blocks": "scale", "fv_alpha": "scale_2"}
    return {renamed.get(role, role): name for role, name in layer.items()}


def _described(checkpoint: Checkpoint) -> Mapping[str, Mapping[str, Any]]:
    """ComfyUI's description of layers in the metadata: module -> settings."""
    text = checkpoint.metadata.get(QUANTISATION_KEY)
    if text is None:
        return {}
    try:
        layers = json.loads(text)["layers"]
        return {str(module): dict(settings) for module, settings in layers.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            checkpoint.path,
            found=f"its metadata {QUANTISATION_KEY} cannot be read ({error})",
            needed='{"layers": {module: {"format": ...}}} as JSON',
            remedy=_USE_PLAIN,
        ) from error


def _about(checkpoint: Checkpoint, module: str, layer: Layer) -> Mapping[str, Any]:
    """ComfyUI's description of one layer: its `comfy_quant` tensor, else the metadata, else nothing."""
    if "about" not in layer:
        described = _described(checkpoint)
        return next((described[name] for name in (module, _bare(module)) if name in described), {})
    raw = checkpoint.read(layer["about"]).to(torch.uint8).numpy().tobytes()
    try:
        about = json.loads(raw.rstrip(b"\0").decode("utf-8"))
    except ValueError as error:
        raise CheckpointError(
            checkpoint.path,
            found=f"'{layer['about']}' cannot be read as JSON ({error})",
            needed='a description such as {"format": "nvfp4"}',
            remedy=_USE_PLAIN,
        ) from error
    return about if isinstance(about, dict) else {}


def _bare(module: str) -> str:
    return re.sub(r"^(model\.)?diffusion_model\.", "", module)


def _format(checkpoint: Checkpoint, module: str, layer: Layer, described: Mapping[str, Any]) -> Format | None:
    """How `module` is stored, None when it is plain. Raises CheckpointError for what is not read."""
    name = layer.get("fv_codes") or layer.get("codes")
    if name is None:
        return None
    codes = checkpoint.tensors[name]
    word = None
    form: Format | None
    if "fv_codes" in layer:
        form = FASTVIDEO
    elif "about" in layer or module in described or _bare(module) in described:
        word = str(_about(checkpoint, module, layer).get("format"))
        form = COMFY_FORMATS.get(word)
    elif "scale_2" in layer and codes.dtype == "U8":
        form = MODELOPT
    elif "scale" in layer and codes.dtype in SCALED_FP8.dtypes:
        form = SCALED_FP8
    elif "scale" in layer:
        form = COMFY_FORMATS["int8_tensorwise"] if codes.dtype == "I8" else None
    else:
        return None
    if form is None or codes.dtype not in form.dtypes or len(codes.shape) != 2:
        raise CheckpointError(
            checkpoint.path,
            found=f"'{name}' is {codes.dtype} {list(codes.shape)} stored as {word or 'codes with scales'}",
            needed=f"one of {', '.join([*COMFY_FORMATS, MODELOPT.name, FASTVIDEO.name, SCALED_FP8.name])}",
            remedy=_USE_PLAIN,
        )
    return form
