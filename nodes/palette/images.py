"""Still images, with their bit depth, alpha and palette kept for `pixels` to judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .errors import ClipError
from .frame import bytes_from_light, frame_pixels
from .pixels import Raw, raw_from_array

if TYPE_CHECKING:
    from PIL.Image import Image

# What Pillow reads, then what FFmpeg reads, then arrays.
IMAGE_SUFFIXES = (
    *(".png", ".bmp", ".tif", ".tiff", ".webp", ".tga", ".jpg", ".jpeg", ".ppm", ".pgm", ".gif", ".jp2", ".avif"),
    *(".exr", ".dpx", ".hdr", ".sgi"),
    ".npy",
)

_NATIVE_MODES = {"L", "RGB", "RGBA"}
_FFMPEG_SUFFIXES = (".exr", ".dpx", ".hdr")
_REMEDIES = {
    ".exr": "Export PNG (8 bit, colour management off), or a plain EXR with one layer of channels R, G, B or Y",
    ".npy": "Save it with numpy.save as an array [height, width] of class numbers or [height, width, 3] of colours",
}


def read_image(path: Path) -> Raw:
    """One image file. Raises `ClipError` naming the file when it cannot be read."""
    from PIL import Image

    suffix = path.suffix.lower()
    try:
        if suffix == ".npy":
            return _from_numpy(np.load(path, mmap_mode="r", allow_pickle=False), path)
        if suffix in _FFMPEG_SUFFIXES or _is_wide_rgb(path):
            return _read_with_ffmpeg(path)
        try:
            with Image.open(path) as image:
                return raw_from_picture(image)
        except Image.UnidentifiedImageError:  # such as TIFF with 16 bits per colour
            return _read_with_ffmpeg(path)
    except (OSError, ValueError, SyntaxError, EOFError, StopIteration, Image.DecompressionBombError) as error:
        if isinstance(error, ClipError):
            raise
        remedy = _REMEDIES.get(suffix, "Export this frame again as PNG")
        raise ClipError(
            f"Image '{path}' could not be read ({str(error) or 'it is not complete'}); a readable image is needed. {remedy}."
        ) from error


def raw_from_picture(image: Image) -> Raw:
    """The pixels of an opened Pillow image, upright."""
    from PIL import ImageOps

    if image.mode == "P" and "transparency" not in image.info and image.getexif().get(0x0112, 1) == 1:
        palette = np.array(image.getpalette("RGB") or [0, 0, 0], dtype=np.uint8).reshape(-1, 3)
        return Raw(np.asarray(image), lookup=palette)
    coded = image.format in ("JPEG", "MPO")
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "F":
        return Raw(bytes_from_light(np.asarray(upright)))
    if upright.mode.startswith("I"):
        return Raw(np.clip(np.asarray(upright), 0, 65535).astype(np.uint16))
    if upright.mode == "1":
        return Raw(np.asarray(upright).astype(np.uint8) * 255)
    if upright.mode not in _NATIVE_MODES:
        alpha = "A" in upright.mode or "a" in upright.mode or "transparency" in upright.info
        upright = upright.convert("RGBA" if alpha else "RGB")
    return Raw(np.asarray(upright), converted=coded)


def _from_numpy(array: np.ndarray, path: Path) -> Raw:
    return raw_from_array(np.array(array), f"Array '{path}'")


def _is_wide_rgb(path: Path) -> bool:
    """Whether a PNG holds 16 bits per channel in colour, which PIL would cut to their high byte."""
    with open(path, "rb") as file:
        head = file.read(26)
    return head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR" and head[24] == 16 and head[25] in (2, 4, 6)


def _read_with_ffmpeg(path: Path) -> Raw:
    import av

    try:
        with av.open(str(path)) as container:
            return Raw(np.ascontiguousarray(frame_pixels(next(container.decode(video=0)))))
    except av.error.FFmpegError as error:
        raise OSError(error.strerror) from error
