"""Still images of a frame folder, with their bit depth, alpha and palette kept for `pixels` to judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .errors import ClipError
from .pixels import Raw

IMAGE_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".webp", ".tga", ".jpg", ".jpeg")

_NATIVE_MODES = {"L", "RGB", "RGBA"}


def read_image(path: Path) -> Raw:
    """One image file. Raises `ClipError` naming the file when it cannot be read."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            if _is_wide_rgb(path):
                return Raw(_read_wide(path))
            if image.mode == "P" and "transparency" not in image.info:
                palette = np.array(image.getpalette("RGB") or [0, 0, 0], dtype=np.uint8).reshape(-1, 3)
                return Raw(np.asarray(image), lookup=palette)
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I"):
                return Raw(np.clip(np.asarray(upright), 0, 65535).astype(np.uint16))
            if upright.mode == "1":
                return Raw(np.asarray(upright).astype(np.uint8) * 255)
            if upright.mode not in _NATIVE_MODES:
                alpha = "A" in upright.mode or "a" in upright.mode or "transparency" in upright.info
                upright = upright.convert("RGBA" if alpha else "RGB")
            return Raw(np.asarray(upright))
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ClipError(
            f"Image '{path}' could not be read ({error}); a readable PNG is needed. Export this frame again."
        ) from error


def _is_wide_rgb(path: Path) -> bool:
    """Whether a PNG holds 16 bits per channel in colour, which PIL would cut to their high byte."""
    with open(path, "rb") as file:
        head = file.read(26)
    return head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR" and head[24] == 16 and head[25] in (2, 4, 6)


def _read_wide(path: Path) -> np.ndarray:
    """uint16 [H, W, 3 or 4] of a 16-bit colour PNG."""
    import av

    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
        wide = "rgba64le" if len(frame.format.components) in (2, 4) else "rgb48le"
        return frame.reformat(format=wide).to_ndarray()
