"""The kinds of video file a render can be written as: which encoder, which container, and how large it will be."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

RESERVE = 64 * 2**20  # bytes a disk must keep free: a full system disk stops more than this render


class VideoFileError(OSError):
    """The file cannot be written; the message names the path and the remedy."""


class DiskFullError(VideoFileError):
    """There is no room for what is to be written; nothing is wrong with what is there already."""


@dataclass(frozen=True)
class VideoFormat:
    """One choice. `bytes_per_pixel` is an upper estimate for photographic frames, used to look at the free space first."""

    name: str
    codec: str
    container: str  # FFmpeg's name of the muxer, or IMAGES
    suffix: str
    pixels: str
    options: Mapping[str, str]
    bytes_per_pixel: float
    tag: str | None = None  # four characters by which MP4 and MOV name the codec
    even: bool = True  # whether width and height must be even

    @property
    def boxed(self) -> bool:
        """Whether the container is of the MP4 family."""
        return self.container in ("mp4", "mov")

    @property
    def browser(self) -> bool:
        """Whether the file is an MP4, which the host's own Save Video takes over as it is."""
        return self.container == "mp4"

    def frame_bytes(self, size: tuple[int, int]) -> int:
        """Estimated bytes of one frame of `size` (height, width)."""
        return int(size[0] * size[1] * self.bytes_per_pixel)

    def require(self) -> None:
        """Raise `VideoFileError` when this PyAV cannot encode it."""
        if self.container == IMAGES:
            return
        import av

        try:
            av.codec.Codec(self.codec, "w")
        except Exception as error:
            raise VideoFileError(
                f"{self.name} cannot be written: this PyAV has no encoder {self.codec}. "
                f"Choose another video format, or install PyAV from its own wheels (pip install av)"
            ) from error


IMAGES = "images"
# No look-ahead and no frame order of its own: a chunk is coded alone and its frames follow those before it.
H264 = VideoFormat(
    "H.264 (MP4)",
    "libx264",
    "mp4",
    ".mp4",
    "yuv420p",
    {"preset": "fast", "tune": "zerolatency", "crf": "16"},
    0.15,
    "avc1",
)
H265 = VideoFormat(
    "H.265 (MP4)",
    "libx265",
    "mp4",
    ".mp4",
    "yuv420p",
    {
        "preset": "veryfast",
        "tune": "zerolatency",
        "crf": "18",
        # equal frames must give equal bytes: no look-ahead, and coding blocks that never reach beyond a picture of multiples of
        # 32 pixels (with the usual 64 a few chunks in a hundred came out differently from run to run)
        "x265-params": "log-level=error:rc-lookahead=0:cutree=0:bframes=0:b-adapt=0:scenecut=0:ctu=32",
    },
    0.1,
    "hvc1",  # the name under which Apple's players take it
)
PRORES = VideoFormat(
    "ProRes 4444 (MOV)", "prores_ks", "mov", ".mov", "yuv444p10le", {"profile": "4444", "vendor": "apl0"}, 0.8, "ap4h"
)
FFV1 = VideoFormat(
    "FFV1 lossless (MKV)",
    "ffv1",
    "matroska",
    ".mkv",
    "bgr0",
    {"level": "3", "g": "1", "slices": "4", "slicecrc": "1"},
    2.0,
    even=False,
)
PNG = VideoFormat("PNG images", "png", IMAGES, "", "rgb24", {}, 2.0, even=False)

FORMATS = {form.name: form for form in (H264, H265, PRORES, FFV1, PNG)}
BY_SUFFIX = {".mp4": H264, ".mov": PRORES, ".mkv": FFV1}
SHORT = {"h264": H264, "h265": H265, "prores": PRORES, "ffv1": FFV1, "png": PNG}


def format_named(name: str) -> VideoFormat:
    """The format a widget or option names. Raises `VideoFileError` listing the choices."""
    if name in FORMATS:
        return FORMATS[name]
    if name in SHORT:
        return SHORT[name]
    raise VideoFileError(f"video format {name!r} is unknown; choose one of {', '.join(FORMATS)}")


def require_space(folder: Path, wanted: int, what: str) -> None:
    """Raise `DiskFullError` unless the disk of `folder` has `wanted` bytes free beside the reserve."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return  # a folder that is gone or cannot be asked: the write itself will tell
    if free < wanted + RESERVE:
        raise DiskFullError(
            f"{folder} has {megabytes(free)} free and {what} needs about {megabytes(wanted + RESERVE)}. "
            "Free disk space, or choose a folder on another disk"
        )


def bytes_needed(
    forms: Iterable[VideoFormat], frames: int, size: tuple[int, int], latent_bytes: int = 0, copies: int = 2
) -> int:
    """Estimated bytes a render of `frames` frames needs: files as they grow, their finished copies, latents."""
    return sum(copies * frames * form.frame_bytes(size) for form in forms) + latent_bytes


def megabytes(count: int) -> str:
    """Bytes in words people use."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
