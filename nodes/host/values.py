"""The host's own kinds of values: video, latent."""

from __future__ import annotations

import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from .server import after_prompt


def video_from_file(path: Path) -> Any:
    """The host's VIDEO object over a file on disk."""
    from comfy_api.latest import InputImpl

    return InputImpl.VideoFromFile(str(path))


def latent_pair(video: Tensor, audio: Tensor) -> dict[str, Any]:
    """LATENT of an audio-video model: the pair where the host knows pairs, else the picture alone.

    `video` [1, 24, T, h, w], `audio` [1, 32, 2, A].
    """
    try:
        from comfy.nested_tensor import NestedTensor
    except ImportError:
        return {"samples": video}
    return {"samples": NestedTensor((video, audio))}


def delete_with(value: Any, *paths: Path) -> None:
    """Delete temporary files once nobody holds `value` any more, after the prompt that runs then: it may still read them."""

    def delete() -> None:
        for path in paths:
            with suppress(OSError):
                path.unlink()

    weakref.finalize(value, after_prompt, delete).atexit = False  # the host empties its folder itself
