"""A finished latent decoded piece by piece: what is taken, how much is shown, what stays in memory."""

from __future__ import annotations

import types
import weakref

import pytest
import torch
from streamrender_h3.nodes.codec import (
    TAE,
    CausalViT,
    CodecError,
    TAEDecoder,
    TAEWidths,
    ViTConfig,
    ViTDecoder,
    frames_before,
)
from streamrender_h3.nodes.codec.latent_input import video_latents
from streamrender_h3.nodes.codec.whole import decode_pieces, frames_wanted
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TINY = ViTConfig(layers=2, hidden=32, heads=2, ffn=64, window=4, patch=16)


def pair(*streams):
    """The audio-video pair of the host, as far as it is used."""
    return types.SimpleNamespace(is_nested=True, unbind=lambda: streams)


@pytest.fixture(scope="module", params=["vit", "tae"])
def decoder(request):
    torch.manual_seed(0)
    if request.param == "vit":
        return ViTDecoder(CausalViT(TINY).requires_grad_(False))
    return TAEDecoder(TAE(TAEWidths(8, (16, 8, 8, 8))).requires_grad_(False).decoder)


def test_pairs_and_plain_videos_give_the_same_latents():
    video, audio = torch.randn(1, 24, 7, 2, 3), torch.randn(1, 32, 2, 40)
    assert torch.equal(video_latents({"samples": pair(video, audio)}), video[0])
    assert torch.equal(video_latents({"samples": video}), video[0])


@pytest.mark.parametrize(
    ("latent", "says"),
    [
        ({}, "NoneType arrived"),
        ({"samples": pair()}, "empty audio-video latent"),
        ({"samples": torch.zeros(1, 16, 2, 4, 4)}, r"\[1, 16, 2, 4, 4\] arrived"),
        ({"samples": torch.zeros(2, 24, 2, 4, 4)}, "one at a time"),
        ({"samples": torch.zeros(1, 4, 8, 8)}, r"\[1, 4, 8, 8\] arrived"),
        ({"samples": torch.zeros(1, 24, 0, 4, 4)}, "holds nothing"),
        ({"samples": torch.zeros(1, 24, 2, 0, 4)}, "holds nothing"),
        ({"samples": torch.zeros(1, 24, 2, 4, 4, dtype=torch.int32)}, "floating point"),
        ({"samples": pair(torch.zeros(1, 32, 2, 40))}, r"\[1, 32, 2, 40\] arrived"),
    ],
)
def test_other_latents_are_refused_by_their_shape(latent, says):
    with pytest.raises(CodecError, match=says):
        video_latents(latent)


def test_frames_are_counted_before_decoding():
    assert frames_wanted(7, 0) == 22 and frames_wanted(7, 20) == 20
    for wrong in (-1, 23):
        with pytest.raises(CodecError, match=f"{wrong} frames are asked for and the latent holds 22"):
            frames_wanted(7, wrong)


@pytest.mark.parametrize("frames", [1, 4, 5, 6, 17, 18, 30])
def test_any_number_of_frames_is_the_start_of_all(decoder, frames):
    torch.manual_seed(1)
    latents = torch.randn(24, 9, 2, 3)
    stream = decoder.stream()
    whole = torch.cat((stream.push(latents), stream.flush()))
    made = [piece for _, piece in decode_pieces(decoder, latents, frames)]
    torch.testing.assert_close(torch.cat(made), whole[:frames], atol=1e-5, rtol=0)
    assert max(len(piece) for piece in made) <= 8


def test_latents_behind_the_last_pair_are_not_decoded(decoder):
    latents = torch.zeros(24, 20, 2, 3)
    latents[:, 6:] = float("nan")
    done = [count for count, _ in decode_pieces(decoder, latents, frames_before(5))]
    assert done[-1] == 6


def test_broken_latents_are_named_by_latent_and_chunk(decoder):
    latents = torch.zeros(24, 10, 2, 3)
    latents[3, 7, 1, 1] = float("inf")
    with pytest.raises(CodecError, match="Latent 7 of the stream, in chunk 3, holds NaN"):
        list(decode_pieces(decoder, latents, frames_before(10)))


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every storage made inside it for as long as it lives, and the most there were at once."""

    def __init__(self):
        super().__init__()
        self.live, self.most, self._seen = 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        self.most = max(self.most, self.live)
        return out

    def _add(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self._seen:
            self._seen[key] = weakref.finalize(storage, self._gone, key, size)
            self.live += size

    def _gone(self, key, size):
        del self._seen[key]
        self.live -= size


def test_memory_does_not_grow_with_the_length(decoder):
    """Live tensor bytes at their highest: the same for a latent of 1.4 and one of 5.7 seconds."""

    def most(latents):
        source = torch.zeros(24, 1, 2, 3).expand(-1, latents, -1, -1)  # as large for any length
        with LiveBytes() as memory:
            frames = sum(len(piece) for _, piece in decode_pieces(decoder, source, frames_before(latents)))
        assert frames == frames_before(latents)
        return memory.most

    short, long = most(10), most(40)
    assert short == long > 0
    source = torch.zeros(24, 1, 2, 3).expand(-1, 10, -1, -1)
    with LiveBytes() as memory:  # a caller that keeps all the frames is noticed
        kept = [piece for _, piece in decode_pieces(decoder, source, frames_before(10))]
    assert memory.most > short and len(kept) == 5


def test_working_memory_covers_the_ring_and_does_not_depend_on_length():
    decoder = ViTDecoder(CausalViT(TINY).requires_grad_(False))
    stream = decoder.stream()
    stream.push(torch.zeros(24, 4, 5, 7))
    assert stream.cache_bytes < decoder.working_bytes((5, 7))
    assert decoder.working_bytes((10, 14)) < 5 * decoder.working_bytes((5, 7))
