"""The reference picture: read from a file, brought to the output size with LANCZOS on 8-bit RGB, laid there as the clip is.

Qwen and the picture latent see the same prepared image (specification: conditioning 3, step 1). Tensors of ComfyUI type
IMAGE arrive with EXIF rotation already applied by the loader; files get it here.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..palette import STRETCH, describe, place, shape_of

ROW_PIXELS = 32
"""One transformer row covers 32x32 pixels: a 2x2 patch of latents of 16x16 pixels."""
SMALLEST_SIDE = 64
ASPECT_TOLERANCE = 0.01


class PictureError(ValueError):
    """The picture cannot be used; the message says what arrived, what is needed and what to do."""


class PreparedPicture(NamedTuple):
    """``rgb`` uint8 [H, W, 3] at the output size, and ``note``: one line on what was done to it."""

    rgb: np.ndarray
    note: str


def load_picture(path: str | Path) -> np.ndarray:
    """Read an image file as uint8 RGB [H, W, 3], EXIF rotation applied, transparency dropped.

    Raises PictureError when the file is missing or not an image.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    path = Path(path)
    if not path.is_file():
        raise PictureError(f"The picture {path} is not there; an image file is needed. Check the path.")
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            return np.asarray(upright.convert("RGB"))
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise PictureError(
            f"The picture {path} could not be read ({error}); a PNG, JPEG or WebP file is needed. Save it again as PNG."
        ) from error


def picture_from_image(image: Tensor) -> np.ndarray:
    """ComfyUI IMAGE, float [1, H, W, 3] or [H, W, 3] in [0, 1], to uint8 [H, W, 3] by truncation of 255 x.

    Truncation, not rounding, is what ComfyUI's own LANCZOS does; 8-bit input passes through unchanged. A fourth channel
    is dropped. Raises PictureError for a batch of several images or another shape.
    """
    if image.ndim == 4:
        if image.shape[0] != 1:
            raise PictureError(
                f"The picture input holds {image.shape[0]} images; exactly one is needed. "
                "Pick one with 'Image From Batch', or connect the clip to Semantic Palette Encode instead."
            )
        image = image[0]
    if image.ndim != 3 or image.shape[-1] not in (3, 4):
        raise PictureError(
            f"The picture has shape {list(image.shape)}; [height, width, 3] is needed. Connect an IMAGE output."
        )
    pixels = image[..., :3].detach().to("cpu", torch.float32).numpy()
    return np.clip(np.float32(255.0) * pixels, 0, 255).astype(np.uint8)


def prepare_picture(
    image: np.ndarray | Tensor, size: tuple[int, int], mapping: str = STRETCH, clip_shape: Fraction | None = None
) -> PreparedPicture:
    """Bring ``image`` uint8 [H, W, 3] to ``size`` = (height, width) pixels with LANCZOS.

    ``mapping`` is how it lies there: "stretch" (no crop, no borders), "fit" (whole, with black bands) or "fill" (cut to the
    shape), by the geometry that lays the clip. ``clip_shape`` is the clip's width over its height: the picture then covers
    what the clip covers, whatever its own shape. A picture already at the size is returned unchanged. The note names what
    was done, and says how far the shape is off when it is off by more than 1 %. Raises PictureError for a wrong type, shape
    or output size.
    """
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3 or 0 in pixels.shape:
        raise PictureError(
            f"The picture is {pixels.dtype} {list(pixels.shape)}; uint8 [height, width, 3] is needed. "
            "Convert it with picture_from_image or load_picture."
        )
    height, width = size
    if any(side % ROW_PIXELS or side < SMALLEST_SIDE for side in size):
        raise PictureError(
            f"The output size {width}x{height} does not fit the model; both sides must be multiples of {ROW_PIXELS} "
            f"and at least {SMALLEST_SIDE}. Use for example {_fit(width)}x{_fit(height)}."
        )
    source_height, source_width = pixels.shape[:2]
    own = (source_height, source_width)
    placement = place(clip_shape or shape_of(own), shape_of(size), mapping)
    if own == size and placement.is_whole:
        return PreparedPicture(pixels, f"picture used as it is, {width}x{height}")
    part, box = placement.source_box(own), placement.frame_box(size)
    cut = pixels[part.top : part.top + part.height, part.left : part.left + part.width]
    resized = np.asarray(Image.fromarray(cut).resize((box.width, box.height), Image.Resampling.LANCZOS))
    out = np.zeros((height, width, 3), dtype=np.uint8)
    out[box.top : box.top + box.height, box.left : box.left + box.width] = resized
    how = f"({describe(placement)})" if describe(placement) else "(LANCZOS, nothing cropped)"
    verb = "stretched" if placement.is_whole else f"mapped ({mapping})"
    note = f"picture {verb} from {source_width}x{source_height} to {width}x{height} {how}"
    return PreparedPicture(out, note + _off_shape((part.height, part.width), (box.height, box.width)))


def _off_shape(source: tuple[int, int], target: tuple[int, int]) -> str:
    """What to say when a stretch from ``source`` to ``target`` (height, width) changes the shape by more than 1 %."""
    have, want = source[1] / source[0], target[1] / target[0]
    ratio = want / have
    if abs(ratio - 1) <= ASPECT_TOLERANCE:
        return ""
    wider = ratio > 1
    return (
        f"; its aspect ratio is {have:.3f} and the output's {want:.3f}, so "
        f"things in it look {abs(ratio - 1) * 100 if wider else abs(1 / ratio - 1) * 100:.0f} % too "
        f"{'wide' if wider else 'tall'}. Crop it to {target[1]}:{target[0]} first to avoid that"
    )


def _fit(side: int) -> int:
    return max(SMALLEST_SIDE, round(side / ROW_PIXELS) * ROW_PIXELS)
