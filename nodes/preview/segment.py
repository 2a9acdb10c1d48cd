"""One chunk of frames, coded alone: a key frame first, nothing kept between chunks, ready to be appended to its file.

Because no encoder outlives its chunk, a render that was interrupted and went on writes the same bytes as one that was
not. MP4 and MOV files grow by fragments whose decode times continue, Matroska files by clusters.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from .formats import VideoFormat

BT709 = 1
LIMITED_RANGE = 1
FULL_RANGE = 2
RGB_MATRIX = 0
FRAGMENTED = "frag_keyframe+empty_moov+default_base_moof+frag_discont+use_metadata_tags"
CLUSTER = b"\x1f\x43\xb6\x75"  # the Matroska element that holds frames
HEADER_BOXES, FRAGMENT_BOXES = (b"ftyp", b"moov"), (b"moof", b"mdat")


def file_header(form: VideoFormat, size: tuple[int, int], fps: Fraction, metadata: Mapping[str, str]) -> bytes:
    """What stands in front of all frames: the file is playable from the first segment after it."""
    sink = io.BytesIO()
    container, _ = _open(form, size, fps, 1, sink)
    with container:
        container.metadata.update(metadata)
        container.start_encoding()
    data = sink.getvalue()
    return _boxes(data, HEADER_BOXES) if form.boxed else data.partition(CLUSTER)[0]


def file_segment(form: VideoFormat, size: tuple[int, int], fps: Fraction, first: int, pixels: np.ndarray) -> bytes:
    """Frames uint8 [n, H, W, 3], the first of which is number `first` of the file, as bytes to append."""
    import av
    from av.video.frame import PictureType

    sink = io.BytesIO()
    container, stream = _open(form, size, fps, first + 1, sink)
    with container:
        for position, picture in enumerate(pixels):
            frame = coloured(av.VideoFrame.from_ndarray(picture, format="rgb24"), form)
            frame.pts, frame.time_base = first + position, 1 / fps
            frame.pict_type = PictureType.NONE if position else PictureType.I
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    data = sink.getvalue()
    return _boxes(data, FRAGMENT_BOXES) if form.boxed else data[data.index(CLUSTER) :]


def coloured(rgb: Any, form: VideoFormat) -> Any:
    """An RGB frame in the format's pixels: BT.709 limited range and tagged so, or RGB as it is."""
    if form.pixels in ("bgr0", "rgb24"):
        frame = rgb.reformat(format=form.pixels)
        frame.color_range = FULL_RANGE
    else:
        frame = rgb.reformat(
            format=form.pixels, dst_colorspace=BT709, src_color_range=FULL_RANGE, dst_color_range=LIMITED_RANGE
        )
        frame.color_range = LIMITED_RANGE
    if hasattr(type(frame), "color_primaries"):  # PyAV 14 and later; ProRes reads them from its frames
        frame.color_primaries = frame.color_trc = BT709
    return frame


def _open(form: VideoFormat, size: tuple[int, int], fps: Fraction, number: int, sink: io.BytesIO) -> tuple[Any, Any]:
    import av

    if form.boxed:
        # times stay as they are given: the segment continues the one before it
        options = {"movflags": FRAGMENTED, "fragment_index": str(number), "avoid_negative_ts": "disabled"}
    else:
        options = {"live": "1", "fflags": "+bitexact"}  # unknown length, no random identifier
    container: Any = av.open(sink, "w", format=form.container, options=options)
    stream: Any = container.add_stream(form.codec, rate=fps, options=dict(form.options))
    stream.height, stream.width, stream.pix_fmt = *size, form.pixels
    context = stream.codec_context
    if form.tag:
        context.codec_tag = form.tag
    context.color_primaries = context.color_trc = BT709
    rgb = form.pixels in ("bgr0", "rgb24")
    context.colorspace = RGB_MATRIX if rgb else BT709
    context.color_range = FULL_RANGE if rgb else LIMITED_RANGE
    return container, stream


def _boxes(data: bytes, names: tuple[bytes, ...]) -> bytes:
    """The top-level boxes of an MP4 that have one of these names."""
    kept, start = [], 0
    while start + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, start)
        if data[start + 4 : start + 8] in names:
            kept.append(data[start : start + length])
        start += length
    return b"".join(kept)
