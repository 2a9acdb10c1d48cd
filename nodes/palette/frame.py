"""Decoded video frames as arrays: RGB bit for bit, YUV by its tagged matrix and range, deep and float formats by rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

# AVColorSpace of a frame -> swscale's matrix number. A file that says nothing is BT.601, as encoders fed RGB write it.
_MATRIX = {1: 1, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9, 10: 9}
_BT601 = 5
_LIMITED, _FULL = 1, 2
# Float images above this hold numbers, not light.
MOST_LIGHT = 1.5


def frame_pixels(frame: VideoFrame) -> np.ndarray:
    """Pixels of a decoded frame: RGB formats bit for bit, YUV by the frame's matrix and range, deep formats in 16 bits.

    uint8 [H, W, 3], uint8 [H, W, 4] with alpha, uint8 or uint16 [H, W] for grey, uint16 [H, W, 3 or 4] for deep RGB.
    Float formats hold linear light and come out as sRGB bytes; values above 1.5 in them are whole numbers (uint16).
    """
    layout = frame.format
    if "f16" in layout.name or "f32" in layout.name:
        return bytes_from_light(_floats(frame))
    deep = max(component.bits for component in layout.components) > 8
    alpha = layout.name != "pal8" and len(layout.components) in (2, 4)
    if is_yuv(frame):
        return _rgb_from_yuv(frame)
    if layout.name.startswith("gray"):
        return frame.to_ndarray(format="gray16le" if deep else "gray")
    target = ("rgba64le" if alpha else "rgb48le") if deep else ("rgba" if alpha or layout.name == "pal8" else "rgb24")
    return frame.to_ndarray(format=target)


def is_yuv(frame: VideoFrame) -> bool:
    """Whether the frame holds brightness and colour differences."""
    name = frame.format.name
    return not (frame.format.is_rgb or name == "pal8" or name.startswith(("gray", "ya", "mono")))


def upright(pixels: np.ndarray, frame: VideoFrame) -> np.ndarray:
    """Pixels turned upright by the display matrix (degrees counter-clockwise, multiples of 90)."""
    return np.rot90(pixels, round(getattr(frame, "rotation", 0) / 90) % 4)


def bytes_from_light(light: np.ndarray) -> np.ndarray:
    """uint8 sRGB of linear light float [H, W] or [H, W, 3 or 4] (alpha stays as it is), or uint16 when it holds numbers.

    An index pass (object, material, stencil) holds whole numbers, of which some exceed 1.5.
    """
    light = np.nan_to_num(light.astype(np.float32), nan=0.0, posinf=65535.0, neginf=0.0)
    if light.max(initial=0) > MOST_LIGHT and np.array_equal(light, np.rint(light)):
        return np.clip(light, 0, 65535).astype(np.uint16)
    light = np.clip(light, 0, 1)
    shown = np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)
    if light.ndim == 3 and light.shape[-1] == 4:
        shown[..., 3] = light[..., 3]
    return np.rint(255 * shown).astype(np.uint8)


def _floats(frame: VideoFrame) -> np.ndarray:
    layout = frame.format
    if layout.name.startswith("gray"):
        return frame.to_ndarray(format="grayf32le")
    return frame.to_ndarray(format="gbrapf32le" if len(layout.components) == 4 else "gbrpf32le")


def _rgb_from_yuv(frame: VideoFrame) -> np.ndarray:
    from av.video.reformatter import Interpolation

    full = frame.color_range == _FULL or frame.format.name.startswith("yuvj")
    flags = int(Interpolation.BILINEAR)
    # Full chroma interpolation (0x2000 out, 0x4000 in) and accurate rounding (0x40000): flat colours come out exact.
    flags |= 0x2000 | 0x4000 | 0x40000
    return frame.reformat(
        format="rgba" if len(frame.format.components) == 4 else "rgb24",
        src_colorspace=_MATRIX.get(int(frame.colorspace), _BT601),
        src_color_range=_FULL if full else _LIMITED,
        dst_color_range=_FULL,
        interpolation=flags,
    ).to_ndarray()
