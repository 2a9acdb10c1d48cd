"""One chunk of a render as one fragment of an MP4: a key frame first, nothing held back, decode times that continue.

Every chunk gets an encoder and a muxer of its own. Since it starts with a key frame anyway nothing is lost by that, a
chunk can be left out without breaking those after it, and the fragment is whole at the moment its last frame goes in.
Sound is the exception: its encoder lives across chunks, because AAC starts with silence.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .video_file import BT709, LIMITED_RANGE

# frag_discont with timestamps left alone: decode times go on from the chunk before instead of starting at 0
MUXER = {
    "movflags": "frag_custom+empty_moov+default_base_moof+frag_discont",
    "avoid_negative_ts": "disabled",
}
# One thread and the cheapest search: every millisecond is taken from the render. Key frames where chunks start only.
ENCODER = {"preset": "ultrafast", "tune": "zerolatency", "crf": "23", "threads": "1", "g": "1000", "sc_threshold": "0"}
SOUND_RATE = 48000
INIT_BOXES, FRAGMENT_BOXES = (b"ftyp", b"moov"), (b"moof", b"mdat")


class NoVideoEncoder(RuntimeError):
    """This PyAV has no H.264 encoder."""


@dataclass(frozen=True)
class Fragment:
    """What a MediaSource needs: `init` (ftyp, moov) once, then the `segment` (moof, mdat) of each chunk in order."""

    init: bytes
    segment: bytes
    mime: str


def boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Top-level boxes of an MP4: (name, the whole box)."""
    start = 0
    while start < len(data):
        (length,) = struct.unpack_from(">I", data, start)
        if length < 8 or start + length > len(data):
            raise ValueError(f"the MP4 is broken at byte {start}: a box of {length} bytes; encode the chunk again")
        yield data[start + 4 : start + 8], data[start : start + length]
        start += length


def mime_of(init: bytes, sound: bool) -> str:
    """The exact type for MediaSource: profile, constraints and level stand in the avcC box of the init segment."""
    place = init.index(b"avcC") + 5
    return f'video/mp4; codecs="avc1.{init[place : place + 3].hex()}{", mp4a.40.2" if sound else ""}"'


def require_encoder() -> None:
    """Raise `NoVideoEncoder` when H.264 cannot be written here."""
    try:
        import av

        av.codec.Codec("libx264", "w")
    except Exception as error:
        raise NoVideoEncoder("PyAV has no H.264 encoder (libx264); previews come as pictures") from error


@dataclass
class FragmentEncoder:
    """Encodes chunks of one preview. `size` (height, width), both even; `sound` adds a stereo AAC track of 48 kHz."""

    size: tuple[int, int]
    fps: Fraction = Fraction(24)
    sound: bool = False
    _number: int = 0
    _samples: int = 0  # of sound, taken so far
    _aac: Any = None

    def encode(self, first: int, pictures: Iterable[Any], samples: np.ndarray | None = None) -> Fragment:
        """The fragment of the chunk whose first picture is number `first` of the preview.

        `pictures` are av.VideoFrame of yuv420p in `size`; `samples` float32 [2, n] in [-1, 1], the sound of this chunk.
        """
        import av
        from av.video.frame import PictureType

        self._number += 1
        sink = io.BytesIO()
        options = {**MUXER, "fragment_index": str(self._number)}
        with av.open(sink, "w", format="mp4", options=options) as container:
            video: Any = container.add_stream("libx264", rate=self.fps, options=dict(ENCODER))
            video.height, video.width, video.pix_fmt = *self.size, "yuv420p"
            context = video.codec_context
            context.color_primaries = context.color_trc = context.colorspace = BT709
            context.color_range = LIMITED_RANGE
            audio: Any = container.add_stream("aac", rate=SOUND_RATE, layout="stereo") if self.sound else None
            container.start_encoding()
            for position, picture in enumerate(pictures):
                picture.pts, picture.time_base = first + position, 1 / self.fps
                picture.pict_type = PictureType.NONE if position else PictureType.I
                for packet in video.encode(picture):
                    container.mux(packet)
            for packet in video.encode(None):
                container.mux(packet)
            for packet in self._sound(samples) if audio is not None else ():
                packet.stream = audio
                container.mux(packet)
        parts = list(boxes(sink.getvalue()))
        init = b"".join(box for name, box in parts if name in INIT_BOXES)
        segment = b"".join(box for name, box in parts if name in FRAGMENT_BOXES)
        return Fragment(init, segment, mime_of(init, self.sound))

    def _sound(self, samples: np.ndarray | None) -> list[Any]:
        import av

        if samples is None or not samples.shape[1]:
            return []
        if self._aac is None:
            self._aac = av.CodecContext.create("aac", "w")
            self._aac.sample_rate, self._aac.layout, self._aac.format = SOUND_RATE, "stereo", "fltp"
            self._aac.time_base = Fraction(1, SOUND_RATE)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples, np.float32), format="fltp", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = SOUND_RATE, self._samples, Fraction(1, SOUND_RATE)
        self._samples += samples.shape[1]
        return list(self._aac.encode(frame))
