"""TAE against its golden file, and the promises of its streams."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from streamrender_h3.nodes.codec import (
    TAE,
    CodecError,
    CodecFileError,
    Decoder,
    Encoder,
    TAEDecoder,
    TAEEncoder,
    TAEWidths,
    decode_clip,
    encode_blocks,
    frames_before,
    load_decoder,
    load_encoder,
)

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = TAEWidths(8, (16, 8, 8, 8))


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN / "tae_tiny.safetensors")


@pytest.fixture(scope="module")
def facts():
    return json.loads((GOLDEN / "tae_tiny.json").read_text())


@pytest.fixture(scope="module")
def weights(golden):
    return {name[2:]: tensor for name, tensor in golden.items() if name.startswith("w.")}


@pytest.fixture(scope="module")
def file(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("tae") / "taeh3.safetensors"
    save_file(weights, path)
    return path


@pytest.fixture(scope="module")
def encoder(file):
    return load_encoder(file)


@pytest.fixture(scope="module")
def decoder(file):
    return load_decoder(file)


@pytest.fixture(scope="module")
def frames(golden):
    return golden["frames_u8"][0].float() / 255


@pytest.fixture(scope="module")
def latents(golden):
    return golden["latents"][0].transpose(0, 1)


def test_encoder_reproduces_the_golden_latents_at_the_golden_frames(encoder, frames, latents, facts):
    stream = encoder.stream()
    emitted = {i: z for i in range(34) if (z := stream.push(frames[i : i + 1])).shape[1]}
    assert list(emitted) == facts["encode_emits_after_frame_index"]
    assert all(z.dtype == torch.float32 for z in emitted.values())
    torch.testing.assert_close(torch.cat(list(emitted.values()), 1), latents, atol=2e-5, rtol=0)


def test_decoder_reproduces_the_golden_frames(decoder, latents, golden, facts):
    stream = decoder.stream()
    shown = [stream.push(latents[:, i : i + 1]) for i in range(7)]
    assert [len(rgb) for rgb in shown] == facts["decode_frames_per_call"]
    for i, rgb in enumerate(shown):
        torch.testing.assert_close(rgb, golden[f"decode.{i}.rgb"][0], atol=1e-5, rtol=0)


def test_memories_are_the_golden_ones(encoder, decoder, frames, latents, golden):
    encoding, decoding = encoder.stream(), decoder.stream()
    encoding.push(frames[:10])
    decoding.push(latents[:, :3])
    state = {f"enc_state_after_10.{i}": m for i, m in encoding._memory.items()}
    state["enc_state_after_10.2.pending0"] = state.pop("enc_state_after_10.2")
    state |= {f"dec_state_after_3.{i}": m for i, m in decoding._memory.items()}
    assert state.keys() == {name for name in golden if "_state_" in name}
    for name, memory in state.items():
        torch.testing.assert_close(memory, golden[name], atol=5e-5, rtol=0)


@pytest.mark.parametrize("split", [[34], [1, 16, 17], [5, 12, 3, 14], [0, 2, 32]])
def test_any_split_of_the_frames_gives_the_same_latents_bit_for_bit(encoder, frames, split):
    stream, whole = encoder.stream(), encoder.stream()
    one_by_one = torch.cat([whole.push(frame[None]) for frame in frames], 1)
    assert torch.equal(torch.cat([stream.push(part) for part in frames.split(split)], 1), one_by_one)


@pytest.mark.parametrize("split", [[10], [9, 1], [0, 3, 2, 5]])
def test_any_split_of_the_latents_gives_the_same_frames_bit_for_bit(decoder, latents, split):
    stream, whole = decoder.stream(), decoder.stream()
    one_by_one = torch.cat([whole.push(latents[:, i : i + 1]) for i in range(10)])
    assert torch.equal(torch.cat([stream.push(part) for part in latents.split(split, 1)]), one_by_one)
    assert len(one_by_one) == frames_before(10) == 34
    assert stream.flush().shape == (0, 3, 32, 48)


def test_encoder_forgets_at_every_block_and_decoder_never(encoder, decoder, frames, latents):
    stream = encoder.stream()
    stream.push(frames[:17])
    assert torch.equal(stream.push(frames[17:]), encoder.stream().push(frames[17:]))
    stream = decoder.stream()
    stream.push(latents[:, :5])
    assert not torch.allclose(stream.push(latents[:, 5:]), decoder.stream().push(latents[:, 5:]), atol=1e-3)


def test_streams_do_not_see_the_future(encoder, decoder, frames, latents):
    other, later = frames.clone(), latents.clone()
    other[21:] = 1 - other[21:]
    later[:, 6:] = -later[:, 6:]
    past = encoder.stream().push(frames)[:, :6], encoder.stream().push(other)[:, :6]
    assert torch.equal(*past)
    seen = frames_before(6)
    assert torch.equal(decoder.stream().push(latents)[:seen], decoder.stream().push(later)[:seen])


def test_a_still_picture_is_the_first_frame_of_a_block(encoder, frames, latents):
    torch.testing.assert_close(encoder.encode_picture(frames[0]), latents[:, :1], atol=2e-5, rtol=0)


def test_parallel_form_equals_the_streams(encoder, decoder, frames, latents):
    parallel = encode_blocks(encoder.layers, torch.stack((frames, frames.flip(0))))
    for one, clip in zip(parallel, (frames, frames.flip(0)), strict=True):
        torch.testing.assert_close(one.transpose(0, 1), encoder.stream().push(clip), atol=2e-5, rtol=0)
    both = torch.stack((latents, latents.flip(1))).transpose(1, 2)
    for one, z in zip(decode_clip(decoder.layers, both), (latents, latents.flip(1)), strict=True):
        torch.testing.assert_close(one, decoder.stream().push(z), atol=1e-5, rtol=0)


def test_a_new_tae_trains_through_the_parallel_form_and_keeps_the_released_names(weights, frames):
    torch.manual_seed(0)
    tae = TAE(TINY)
    assert {n: t.shape for n, t in tae.state_dict().items()} == {n: t.shape for n, t in weights.items()}
    clip = frames[None, :17]
    (decode_clip(tae.decoder, encode_blocks(tae.encoder, clip), clamp=False) - clip).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in tae.parameters())


def test_streams_hand_out_ordinary_tensors(encoder, decoder, frames, latents):
    encoder.stream().push(frames[:1]).add_(1)
    decoder.stream().push(latents[:, :1]).add_(1)
    assert isinstance(encoder, Encoder) and isinstance(decoder, Decoder)
    assert encoder.identity == decoder.identity != ""


def test_release_has_the_published_size():
    with torch.device("meta"):
        tae = TAE()
    sizes = [sum(p.numel() for p in part.parameters()) for part in (tae.encoder, tae.decoder)]
    assert sizes == [1_480_728, 9_868_236]
    assert len(tae.state_dict()) == 128
    assert TAEWidths.from_shapes({n: tuple(t.shape) for n, t in tae.state_dict().items()}) == TAEWidths()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
def test_narrow_dtypes_stay_near_float32(file, encoder, decoder, frames, latents, dtype, tolerance):
    z = load_encoder(file, dtype=dtype).stream().push(frames[:17])
    rgb = load_decoder(file, dtype=dtype).stream().push(latents[:, :5])
    assert z.dtype == rgb.dtype == torch.float32
    scale = latents.abs().max()
    torch.testing.assert_close(z / scale, encoder.stream().push(frames[:17]) / scale, atol=tolerance, rtol=0)
    torch.testing.assert_close(rgb, decoder.stream().push(latents[:, :5]), atol=tolerance, rtol=0)


def test_memory_of_a_stream_does_not_grow(decoder, latents):
    def held(stream):
        return sum(m.untyped_storage().nbytes() for m in stream._memory.values())

    stream = decoder.stream()
    stream.push(latents[:, :2])
    after_two = held(stream)
    for _ in range(5):
        stream.push(latents)
    assert held(stream) == after_two


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: {n.split(".", 1)[1]: t for n, t in w.items() if n.startswith("decoder.")}, "2D"),
        (lambda w: w | {"encoder.0.weight": torch.zeros(8, 3, 3, 3)}, "2x2 pixels"),
        (lambda w: w | {"decoder.1.weight": torch.zeros(16, 16, 3, 3)}, "16-channel latents"),
        (lambda w: {n: t for n, t in w.items() if n != "encoder.10.conv.2.bias"}, "missing encoder.10.conv.2.bias"),
        (lambda w: {n: t for n, t in w.items() if n != "decoder.8.weight"}, "decoder.8.weight"),
        (lambda w: w | {"decoder.22.bias": torch.zeros(3)}, "decoder.22.bias is"),
        (lambda w: w | {"extra": torch.zeros(3)}, "unexpected extra"),
        (lambda w: {"decoder.transformer_blocks.0.scale1": torch.zeros(3)}, "whole-clip"),
        (lambda w: {"pre_block.attn.zero_k_bias": torch.zeros(3)}, "audio"),
        (lambda w: {"model.layers.0.weight": torch.zeros(3)}, "no video codec"),
    ],
)
def test_other_files_are_refused_by_name(weights, tmp_path, change, says):
    save_file(change(weights), tmp_path / "other.safetensors")
    for load in (load_encoder, load_decoder):
        with pytest.raises(CodecFileError, match=f"other.safetensors: .*{says}"):
            load(tmp_path / "other.safetensors")


def test_missing_truncated_and_foreign_files_are_refused(file, tmp_path):
    with pytest.raises(CodecFileError, match="no such file"):
        load_decoder(tmp_path / "nothing.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(file.read_bytes()[:-1000])
    (tmp_path / "text.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    for name in ("cut", "text"):
        with pytest.raises(CodecFileError, match=f"{name}.safetensors: not a whole safetensors file"):
            load_encoder(tmp_path / f"{name}.safetensors")


def test_identity_changes_with_the_file(weights, file, tmp_path):
    save_file(weights, tmp_path / "same.safetensors")
    save_file(weights, tmp_path / "other.safetensors", metadata={"note": "retrained"})
    assert load_decoder(tmp_path / "same.safetensors").identity == load_decoder(file).identity
    assert load_decoder(tmp_path / "other.safetensors").identity != load_decoder(file).identity


def test_bad_frames_are_refused_before_any_work(encoder, frames):
    stream = encoder.stream()
    stream.push(frames[:3])
    for bad, says in (
        (frames[:1, :, :30], "multiples of 16"),
        (frames[:1, :2], "RGB"),
        (frames[0], "RGB"),
        (frames[:1, :, :16], "one size"),
        ((frames[:1] * 255).byte(), "Divide by 255"),
    ):
        with pytest.raises(CodecError, match=says):
            stream.push(bad)
    rest = torch.cat((stream.push(frames[3:5]),), 1)
    assert torch.equal(rest, encoder.stream().push(frames[:5])[:, 1:])
    with pytest.raises(CodecError, match="whole blocks of 17"):
        encode_blocks(encoder.layers, frames[None, :20])


def test_bad_latents_are_refused_and_named(decoder, latents):
    stream = decoder.stream()
    stream.push(latents[:, :4])
    holed = latents[:, 4:8].clone()
    holed[3, 2, 0, 1] = float("nan")
    for bad, says in (
        (latents[:16], r"\[24, latents"),
        (latents[:, 0], r"\[24, latents"),
        (latents[:, :1, :0], "empty picture grid"),
        (latents[:, :1, :1], "one size"),
        (holed, "Latent 6 of the stream, in chunk 1, holds NaN"),
    ):
        with pytest.raises(CodecError, match=says):
            stream.push(bad)
    assert torch.equal(stream.push(latents[:, 4:5]), decoder.stream().push(latents[:, :5])[frames_before(4) :])
    stream.flush()
    with pytest.raises(CodecError, match="after flush"):
        stream.push(latents[:, :1])


def test_constructed_codecs_need_no_file(frames):
    tae = TAE(TINY)
    z = TAEEncoder(tae.encoder).stream().push(frames[:17])
    assert z.shape == (24, 5, 2, 3)
    assert TAEDecoder(tae.decoder).stream().push(z).shape == (17, 3, 32, 48)
