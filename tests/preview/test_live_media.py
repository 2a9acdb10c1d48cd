"""Fragments, pictures and the ring: what the live preview stores of a chunk."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
import pytest
import torch
from streamrender_h3.nodes.preview.fragment import SOUND_RATE, FragmentEncoder, boxes, mime_of
from streamrender_h3.nodes.preview.picture import MAX_WIDTH, Converter, nearest, preview_size, stacked
from streamrender_h3.nodes.preview.ring import Ring
from streamrender_h3.nodes.preview.stills import bundle, bundle_of_fragment, unbundle

SIZE = (64, 96)  # of the whole picture
COUNTS = (5, 3, 4)
TICKS = 512  # of the muxer per frame at 24 fps: its time base is 1/12288


def pictures(first, count, size=SIZE):
    """Flat grey pictures whose brightness is their number."""
    return [np.full((3, *size), min(255, 40 + 12 * (first + number)), np.uint8) for number in range(count)]


def encoded(counts=COUNTS, **options):
    encoder, first, out = FragmentEncoder(SIZE, **options), 0, []
    for count in counts:
        samples = None
        if encoder.sound:
            moments = np.arange(count * SOUND_RATE // 24) + first * SOUND_RATE // 24
            samples = np.repeat(0.3 * np.sin(moments * 2 * np.pi * 440 / SOUND_RATE)[None], 2, axis=0)
        out.append(encoder.encode(first, map(Converter(), pictures(first, count)), samples))
        first += count
    return out


def decode_times(segment):
    """Base decode time of each track in a fragment, from the box tfdt."""
    out, start = [], segment.find(b"tfdt")
    while start >= 0:
        assert segment[start + 4] == 1
        out.append(struct.unpack_from(">Q", segment, start + 8)[0])
        start = segment.find(b"tfdt", start + 4)
    return out


def test_every_chunk_is_exactly_one_fragment():
    for fragment in encoded():
        assert [name for name, _ in boxes(fragment.segment)] == [b"moof", b"mdat"]
        assert [name for name, _ in boxes(fragment.init)] == [b"ftyp", b"moov"]


def test_the_init_segment_is_the_same_for_all_chunks():
    fragments = encoded()
    assert len({fragment.init for fragment in fragments}) == 1
    assert fragments[0].mime.startswith('video/mp4; codecs="avc1.')


def test_decode_times_go_on_from_chunk_to_chunk():
    times = [decode_times(fragment.segment) for fragment in encoded()]
    assert times == [[0], [5 * TICKS], [8 * TICKS]]


def test_a_chunk_plays_without_those_before_it():
    fragments = encoded()
    with av.open(io.BytesIO(fragments[2].init + fragments[2].segment)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    assert [packet.is_keyframe for packet in packets] == [True, False, False, False]


def test_all_chunks_in_a_row_are_the_whole_video():
    fragments = encoded()
    data = fragments[0].init + b"".join(fragment.segment for fragment in fragments)
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(video=0))
    assert [int(frame.pts * frame.time_base * 24 + 0.5) for frame in frames] == list(range(12))
    grey = [frame.to_ndarray(format="rgb24").mean() for frame in frames]
    assert np.abs(np.array(grey) - (40 + 12 * np.arange(12))).max() < 4


def test_a_missing_chunk_leaves_a_gap_and_breaks_nothing():
    first, _, third = encoded()
    with av.open(io.BytesIO(first.init + first.segment + third.segment)) as container:
        times = [round(frame.time * 24) for frame in container.decode(video=0)]
    assert times == [0, 1, 2, 3, 4, 8, 9, 10, 11]


def test_sound_runs_through_all_chunks_without_a_break():
    fragments = encoded((12, 12, 12), sound=True)
    assert fragments[0].mime.endswith(', mp4a.40.2"')
    data = fragments[0].init + b"".join(fragment.segment for fragment in fragments)
    with av.open(io.BytesIO(data)) as container:
        packets = [packet.pts for packet in container.demux(audio=0) if packet.size]
    assert np.all(np.diff(packets) == 1024)
    with av.open(io.BytesIO(data)) as container:
        sound = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    middle = sound[4096:-4096]
    assert 0.15 < np.sqrt((middle**2).mean()) < 0.25  # a sine of 0.3 has 0.21; a break would lower it
    assert np.abs(np.diff(middle)).max() < 0.05


def test_the_mime_type_is_read_from_the_stream():
    init = b"....avcC" + bytes([1, 0x4D, 0x40, 0x1F]) + b"...."
    assert mime_of(init, sound=False) == 'video/mp4; codecs="avc1.4d401f"'


def test_a_broken_mp4_is_an_error_that_says_where():
    with pytest.raises(ValueError, match="byte 0"):
        list(boxes(struct.pack(">I4s", 100, b"moof")))


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(768, 1344, (476, 832)), (256, 448, (256, 448)), (1344, 768, (1344, 768))]
)
def test_previews_are_at_most_832_wide_and_even(height, width, expected):
    assert preview_size(height, width) == expected
    assert preview_size(height, width)[1] <= MAX_WIDTH


def test_the_map_is_resized_without_mixing_colours():
    classes = np.random.default_rng(0).integers(0, 255, (3, 30, 52), dtype=np.uint8)
    made = nearest(classes, (128, 224))
    assert made.shape == (3, 128, 224)
    assert np.array_equal(made[:, 77, 201], classes[:, 77 * 30 // 128, 201 * 52 // 224])


def test_render_and_map_of_a_frame_stand_in_one_picture():
    frames = torch.stack([torch.full((3, 64, 128), share) for share in (0.25, 0.75)])
    maps = torch.stack([torch.full((3, 16, 30), value, dtype=torch.uint8) for value in (10, 200)])
    made = list(stacked(frames, maps, (32, 64)))
    assert [picture.shape for picture in made] == [(3, 64, 64)] * 2
    assert [int(picture[:, :32].mean().round()) for picture in made] == [64, 191]
    assert [set(np.unique(picture[:, 32:])) for picture in made] == [{10}, {200}]


def test_a_bundle_gives_back_its_pictures():
    from PIL import Image

    files = unbundle(bundle(pictures(0, 3)))
    grey = [np.asarray(Image.open(io.BytesIO(file))).mean() for file in files]
    assert np.abs(np.array(grey) - [40, 52, 64]).max() < 1


def test_pictures_made_from_a_video_chunk_have_its_colours():
    from PIL import Image

    colour = np.empty((3, *SIZE), np.uint8)
    colour[:] = np.array((200, 60, 30))[:, None, None]
    fragment = FragmentEncoder(SIZE).encode(7, map(Converter(), [colour] * 2))
    files = unbundle(bundle_of_fragment(fragment.init, fragment.segment))
    assert len(files) == 2
    assert np.abs(np.asarray(Image.open(io.BytesIO(files[1]))).reshape(-1, 3).mean(0) - (200, 60, 30)).max() < 4


def test_the_ring_throws_the_oldest_chunks_away(tmp_path):
    ring = Ring(tmp_path / "ring", limit=1000)
    oldest = [ring.put(number, bytes([number]) * 300) for number in range(6)]
    assert oldest == [0, 0, 0, 1, 2, 3]
    assert [ring.get(number) is not None for number in range(6)] == [False, False, False, True, True, True]
    assert ring.bytes == 900 == sum(path.stat().st_size for path in (tmp_path / "ring").iterdir())


def test_a_single_chunk_larger_than_the_ring_is_kept(tmp_path):
    ring = Ring(tmp_path / "ring", limit=10)
    assert ring.put(0, b"x" * 100) == 0
    assert ring.get(0) == b"x" * 100


def test_a_closed_ring_leaves_nothing_and_takes_nothing(tmp_path):
    ring = Ring(tmp_path / "ring")
    ring.put(0, b"x")
    ring.close()
    ring.put(1, b"x")
    assert not (tmp_path / "ring").exists()
    assert ring.get(0) is None and ring.get(1) is None
