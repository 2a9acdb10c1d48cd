"""What the pixels of a source mean: bit depth, grey, alpha and palette-mode images brought to 8-bit RGB by rule.

Rules: 16-bit values are scaled to 8 bits, unless none exceeds 255 (then they are 8-bit values in a wide container).
Floats are [0, 1], unless any exceeds 1.5 (then 0..255). Pixels less than half opaque are black, the colour of
"unlabeled", unless alpha is the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import ClipError


@dataclass(frozen=True)
class Raw:
    """Pixels as a file or graph brought them.

    `values`: uint8 or uint16 [H, W] (grey or indices), [H, W, 3] or [H, W, 4] (alpha last, straight).
    `lookup`: uint8 [n, 3] colours of a palette-mode image, whose `values` are positions in it.
    `converted`: the file held YCbCr, so that values are not those that were drawn.
    """

    values: np.ndarray
    lookup: np.ndarray | None = None
    converted: bool = False

    @property
    def size(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]


def raw_from_array(frame: np.ndarray, name: str) -> Raw:
    """A `Raw` from any array a caller may hold: [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]; integers, bool or floats."""
    if frame.ndim == 3 and frame.shape[-1] == 1:
        frame = frame[..., 0]
    if frame.ndim not in (2, 3) or (frame.ndim == 3 and frame.shape[-1] not in (3, 4)):
        raise ClipError(
            f"{name} has frames of shape {list(frame.shape)}; [height, width, 3] is needed. Connect an IMAGE batch."
        )
    if frame.dtype in (np.uint8, np.uint16):
        return Raw(frame)
    if frame.dtype == bool or np.issubdtype(frame.dtype, np.integer):
        if frame.size and (frame.min() < 0 or frame.max() > 65535):
            raise ClipError(f"{name} holds values {frame.min()} to {frame.max()}; 0..255 is needed. Convert it first.")
        return Raw(frame.astype(np.uint16 if frame.size and frame.max() > 255 else np.uint8))
    if not np.issubdtype(frame.dtype, np.floating):
        raise ClipError(f"{name} holds {frame.dtype} values; uint8 or float is needed. Convert it first.")
    return Raw(_bytes_from_float(frame, name))


def _bytes_from_float(frame: np.ndarray, name: str) -> np.ndarray:
    values = frame.astype(np.float32)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if not np.isfinite(low) or not np.isfinite(high):
        raise ClipError(f"{name} holds NaN or infinite values; numbers in [0, 1] are needed. Repair the export.")
    if high <= 1.5:
        values = values * 255
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def to_rgb(raw: Raw) -> np.ndarray:
    """uint8 [H, W, 3] by the rules above, taking the values for colours."""
    values = raw.values
    if raw.lookup is not None:
        return raw.lookup.take(values, axis=0, mode="clip")
    if values.dtype != np.uint8:
        values = narrow(values)
    if values.ndim == 2:
        return np.repeat(values[..., None], 3, axis=-1)
    if values.shape[-1] == 4:
        alpha = values[..., 3]
        opaque = alpha >= 128
        return values[..., :3] if opaque.all() or _is_even(alpha) else values[..., :3] * opaque[..., None]
    return values


def hidden_colours(raw: Raw) -> np.ndarray:
    """uint8 [n, 3]: the colours that the transparent pixels of a frame carry, which `to_rgb` takes for black."""
    values = raw.values
    if raw.lookup is not None or values.ndim != 3 or values.shape[-1] != 4 or _is_even(values[..., 3]):
        return np.zeros((0, 3), dtype=np.uint8)
    colours = narrow(values) if values.dtype != np.uint8 else values
    return colours[colours[..., 3] < 128][:, :3]


def _is_even(alpha: np.ndarray) -> bool:
    """Whether alpha says nothing: many renderers write 0 everywhere."""
    return bool((alpha == alpha[0, 0]).all()) if alpha.size else True


def unmultiplied(raw: Raw) -> Raw:
    """The pixels of a premultiplied RGBA frame with colours divided by alpha."""
    if raw.lookup is not None or raw.values.ndim != 3 or raw.values.shape[-1] != 4:
        return raw
    full = np.iinfo(raw.values.dtype).max
    values = raw.values.astype(np.float32)
    colours = values[..., :3] * full / np.maximum(values[..., 3:], 1)
    values[..., :3] = np.clip(np.rint(colours), 0, full)
    return Raw(values.astype(raw.values.dtype), converted=raw.converted)


def narrow(values: np.ndarray) -> np.ndarray:
    """uint16 -> uint8. Widening by 257 (full scale) and by 256 (shift) are both undone exactly."""
    if values.max(initial=0) <= 255:
        return values.astype(np.uint8)
    if not (values & 255).any():
        return (values >> 8).astype(np.uint8)
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
