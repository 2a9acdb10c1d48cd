"""A chunk as separate pictures, for pages that may not play video and for machines that cannot encode it.

A bundle is: number of pictures (uint32, big endian), the length of each (uint32), then the JPEG files one after another.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable

import numpy as np

QUALITY = 82
MIME = "application/octet-stream"


def bundle(pictures: Iterable[np.ndarray]) -> bytes:
    """Pictures [3, H, W] uint8 as one bundle."""
    from PIL import Image

    files = []
    for pixels in pictures:
        sink = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(sink, "JPEG", quality=QUALITY)
        files.append(sink.getvalue())
    return struct.pack(f">I{len(files)}I", len(files), *map(len, files)) + b"".join(files)


def unbundle(data: bytes) -> list[bytes]:
    """The JPEG files of a bundle."""
    (count,) = struct.unpack_from(">I", data)
    lengths = struct.unpack_from(f">{count}I", data, 4)
    start, files = 4 + 4 * count, []
    for length in lengths:
        files.append(data[start : start + length])
        start += length
    return files


def bundle_of_fragment(init: bytes, segment: bytes) -> bytes:
    """The pictures of a video fragment."""
    import av

    with av.open(io.BytesIO(init + segment), "r") as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return bundle(frame.to_ndarray(format="rgb24").transpose(2, 0, 1) for frame in container.decode(stream))
