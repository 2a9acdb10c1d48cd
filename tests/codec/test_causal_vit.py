"""The causal ViT decoder against its golden file and the promises of its stream."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from streamrender_h3.nodes.codec import (
    CausalViT,
    CodecError,
    CodecFileError,
    Decoder,
    ViTConfig,
    ViTDecoder,
    decode_pairs,
    frames_before,
    load_decoder,
    load_encoder,
    vit_stream,
)
from streamrender_h3.nodes.codec.space import denormalise, pixels_to_rgb, rgb_to_pixels
from streamrender_h3.nodes.codec.vit import Layout

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = ViTConfig(layers=4, hidden=32, heads=2, ffn=128, window=4, patch=4)
MODES = ("pair", "early_single", "early_pair")


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN / "vit_tiny.safetensors")


@pytest.fixture(scope="module")
def facts():
    return json.loads((GOLDEN / "vit_tiny.json").read_text())


@pytest.fixture(scope="module")
def weights(golden):
    return {name[2:]: tensor for name, tensor in golden.items() if name.startswith("w.")}


@pytest.fixture(scope="module")
def file(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("vit") / "decoder.safetensors"
    save_file(weights, path, metadata=TINY.metadata())
    return path


@pytest.fixture(scope="module")
def decoders(file):
    return {mode: load_decoder(file, mode=mode) for mode in MODES}


@pytest.fixture(scope="module")
def z(golden):
    return golden["z"][0].transpose(0, 1)


@pytest.fixture
def raw(monkeypatch):
    """Streams give ImageNet pixels before the clamp, the form of the golden file; a clamp would hide differences."""
    monkeypatch.setattr(vit_stream, "pixels_to_rgb", lambda pixels: pixels)


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


def frames_of(golden, name):
    return golden[name][0].transpose(0, 1)


def pushed(stream, z, sizes):
    return [stream.push(part) for part in z.split(sizes, 1)]


def test_sizes_come_from_the_file(weights, facts):
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    config = ViTConfig.from_file(shapes, TINY.metadata())
    assert config == TINY
    assert (config.head_dim, 6 * config.rope_freqs) == (facts["config"]["dim_head"], facts["config"]["rope_dim"])


def test_release_has_the_published_size():
    with torch.device("meta"):
        network = CausalViT(ViTConfig())
    assert sum(p.numel() for p in network.parameters()) == 1_617_806_936
    assert len(network.state_dict()) == 297
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    assert ViTConfig.from_file(shapes, {}) == ViTConfig()


def test_pairs_reproduce_the_golden_pixels(decoders, golden, z, facts, raw):
    stream = decoders["pair"].stream()
    for call in facts["calls"][:-1]:
        pair = [stream.push(z[:, [latent]]) for latent in call["latents"]]
        assert [len(frames) for frames in pair] == [0, call["frames"]]
        close(pair[1], frames_of(golden, call["out"]), 2e-5)
    assert len(stream.push(z[:, 12:])) == 0
    close(stream.flush(), frames_of(golden, "flush.px"), 2e-5)


def test_pixels_become_rgb(decoders, golden, z):
    close(decoders["pair"].stream().push(z[:, :2]), frames_of(golden, "pair.0.rgb"), 1e-5)
    rgb = torch.rand(2, 3, 4, 4)
    close(pixels_to_rgb(rgb_to_pixels(rgb)), rgb, 1e-6)


def test_a_later_clock_reproduces_the_golden_pixels(decoders, golden, z, raw):
    stream = decoders["pair"].stream(clock=100)
    for pair in range(3):
        close(stream.push(z[:, 2 * pair : 2 * pair + 2]), frames_of(golden, f"clock100.pair.{pair}.px"), 2e-5)


@pytest.mark.parametrize("mode", ["early_single", "early_pair"])
def test_early_modes_reproduce_the_golden_pixels_and_leave_no_trace(decoders, golden, z, facts, raw, mode):
    stream, regular = decoders[mode].stream(), decoders["pair"].stream()
    for entry in facts["early"]:
        t = entry["latent"]
        early = stream.push(z[:, [t]])
        assert len(early) == entry["frames"]
        close(early, frames_of(golden, entry.get(mode, entry["early_single"])), 2e-5)
        partner = stream.push(z[:, [t + 1]])
        assert torch.equal(partner, regular.push(z[:, t : t + 2])[entry["frames"] :])
    # an early latent without a partner was shown already
    assert len(stream.push(z[:, 12:])) == 4
    assert len(stream.flush()) == 0


def test_ring_holds_the_golden_keys_and_values(decoders, golden, z):
    stream = decoders["pair"].stream()
    stream.push(z[:, :6])
    for layer in (0, 1):
        order = stream._layouts[2].windows[layer].order(4)
        for kind, kept in zip("kv", stream._ring.read(layer, (2, 3, 4, 5)), strict=True):
            close(kept[torch.argsort(order)].view(4, 5, 7, 2, 16), golden[f"cache_after_pair2.{kind}.{layer}"], 1e-5)


def test_the_future_changes_no_earlier_frame(decoders, raw):
    torch.manual_seed(0)
    z = torch.randn(24, 24, 5, 7)  # twice around the ring
    for mode, decoder in decoders.items():
        whole = pushed(decoder.stream(), z, 1)
        for cut in (2, 6, 17):
            other = z.clone()
            other[:, cut:] = torch.randn_like(other[:, cut:])
            changed = pushed(decoder.stream(), other, 1)
            for latent, (a, b) in enumerate(zip(whole, changed, strict=True)):
                if latent < cut:
                    assert torch.equal(a, b), (mode, cut, latent)
            assert any(not torch.allclose(a, b) for a, b in zip(whole[cut:], changed[cut:], strict=True))
            assert not torch.allclose(whole[-1], changed[-1])


@pytest.mark.parametrize("mode", MODES)
def test_the_caller_may_reuse_its_tensor(decoders, mode, z):
    kept, reused = decoders[mode].stream(), decoders[mode].stream()
    for latent in range(5):
        mine = z[:, [latent]].clone()
        assert torch.equal(reused.push(mine), kept.push(z[:, [latent]]))
        mine.zero_()


@pytest.mark.parametrize("split", [[20], [1] * 20, [9, 3, 2, 3, 2, 1], [0, 7, 0, 13]])
def test_any_split_of_the_latents_gives_the_same_frames(decoders, split):
    torch.manual_seed(1)
    z = torch.randn(24, 20, 5, 7)
    whole = torch.cat(pushed(decoders["pair"].stream(), z, 2))
    assert torch.equal(torch.cat(pushed(decoders["pair"].stream(), z, split)), whole)
    assert len(whole) == frames_before(20)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clock", [100, 1000, 1_000_000])
def test_the_clock_does_not_matter(decoders, raw, mode, clock):
    torch.manual_seed(2)
    z = torch.randn(24, 13, 5, 7)
    start, later = decoders[mode].stream(), decoders[mode].stream(clock=clock)
    close(torch.cat([*pushed(later, z, 1), later.flush()]), torch.cat([*pushed(start, z, 1), start.flush()]), 1e-4)


def test_a_constant_scene_does_not_drift(decoders, raw):
    """Frames of a still scene repeat with the ten latents of the pair and block cycle.

    The ring forgets after four latents per layer, so what the start of the stream left behind is gone after sixteen.
    """
    torch.manual_seed(3)
    z = torch.randn(24, 1, 5, 7).expand(-1, 60, -1, -1)
    shown = torch.cat(pushed(decoders["pair"].stream(), z, 10))[68:].unflatten(0, (-1, 34))
    close(shown, shown[:1].expand_as(shown), 1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_ring_equals_concatenation_and_a_second_stream_starts_clean(decoders, mode):
    torch.manual_seed(4)
    z = torch.randn(24, 20, 5, 7)
    naive = decode_pairs(decoders["pair"].layers, z.transpose(0, 1)[None])[0]
    for _ in range(2):
        stream = decoders[mode].stream()
        close(stream.push(z), naive, 1e-5)
        stream.flush()


@pytest.mark.parametrize(
    ("mode", "published"),
    [("pair", [26, 13, 8, 5, 8]), ("early_single", [30, 9, 8, 9, 8]), ("early_pair", [30, 9, 8, 9, 8])],
)
def test_frames_published_per_chunk(decoders, mode, published):
    stream = decoders[mode].stream()
    z = torch.zeros(24, 19, 2, 3)
    assert [len(frames) for frames in pushed(stream, z, [9, 3, 2, 3, 2])] == published
    assert sum(published) + len(stream.flush()) == frames_before(19)


def test_memory_does_not_grow_and_equals_its_formula(decoders, z):
    stream = decoders["early_pair"].stream()
    assert stream.cache_bytes == 0
    # a 5x7 grid: rows 4 1 and columns 4 3 make 4 windows; shifted by two, rows 2 3 and columns 2 4 1 make 6
    formula = 2 * 4 * 32 * sum(6 * 35 + 5 * count for count in (4, 6, 4, 6))
    for count in (1, 12, 13, 13):
        stream.push(z[:, :count])
        assert stream.cache_bytes == formula
    stream.flush()
    assert stream.cache_bytes == 0


def test_training_form_equals_the_stream_and_reaches_every_weight(z, raw):
    torch.manual_seed(5)
    network = CausalViT(TINY)
    clips = torch.randn(2, 8, 24, 5, 7)
    rgb = decode_pairs(network, clips, clamp=False)
    decoder = ViTDecoder(network)
    for clip, frames in zip(clips, rgb, strict=True):
        close(rgb_to_pixels(frames), decoder.stream().push(clip.transpose(0, 1)), 1e-5)
    rgb.square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())
    with pytest.raises(CodecError, match="whole pairs"):
        decode_pairs(network, clips[:, :3])


def test_blocks_agree_with_the_teachers_decoder():
    """One window, no cache, no shift, suffix at the origin: the decoder of the MiniMax-H3 video VAE."""
    vae = pytest.importorskip("diffusers.models.autoencoders.autoencoder_kl_minimax_h3")
    torch.manual_seed(6)
    native = vae.MiniMaxH3VideoViTDecoder3d(patch_size=4, num_layers=4, num_attention_heads=2, attention_head_dim=16)
    for name, weight in native.named_parameters():
        torch.nn.init.normal_(weight, std=1.0 if "norm" in name or "scale" in name else 0.15)
    config = ViTConfig(layers=4, hidden=32, heads=2, ffn=128, window=6, patch=4)
    network = CausalViT(config)
    network.load_state_dict(
        _student_names(native.state_dict())
        | {"post_quant_conv.weight": torch.randn(24, 24, 1, 1, 1) * 0.2, "post_quant_conv.bias": torch.randn(24)}
    )
    z = torch.randn(7, 24, 6, 6)
    raw = denormalise(z).transpose(0, 1)[None]
    with torch.no_grad():
        expected = native(network.post_quant_conv(raw))[0].transpose(0, 1)
        layout = Layout(config, (6, 6), 7, z.device)
        plain = layout.rope(0, 0)[0]
        plain.cos[-5:], plain.sin[-5:] = 1, 0
        same = torch.arange(len(layout.enter))
        layout.change, layout.leave = (same, same), (layout.leave[0],) * 2
        pixels = network(z, layout, (plain, plain), lambda _, q, k, v: _everything(q, k, v)).flatten(0, 1)
    assert expected.abs().max() > 0.5
    close(pixels, expected, 1e-5)


def _everything(q, k, v):
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1)


def _student_names(native):
    """Diffusers' names and row orders to those of the student file."""
    out = {}
    for name, tensor in native.items():
        name = name.replace("transformer_blocks.", "blocks.").replace("proj_in.", "x_embedder.")
        name = name.replace("ff.net.2.", "ff.w2.").replace("to_out.0.", "to_out.")
        if "ff.net.0.proj." in name:
            name, tensor = name.replace("ff.net.0.proj.", "ff.w1."), torch.cat(tensor.chunk(2)[::-1])
        out[name] = tensor
    for name in [name for name in out if ".to_q." in name]:
        parts = [out.pop(name.replace("to_q", kind)).unflatten(0, (2, -1)) for kind in ("to_q", "to_k", "to_v")]
        out[name.replace("to_q", "to_qkv")] = torch.cat(parts, dim=1).flatten(0, 1)
    return out


def test_bfloat16_narrows_the_block_linears_only_and_stays_near(file, decoders, z):
    narrow = load_decoder(file, dtype=torch.bfloat16)
    kept = {name for name, tensor in narrow.layers.state_dict().items() if tensor.dtype == torch.float32}
    assert all((".attn." in name or ".ff." in name) != (name in kept) for name in narrow.layers.state_dict())
    assert narrow.dtype == torch.bfloat16
    rgb, exact = narrow.stream().push(z[:, :12]), decoders["pair"].stream().push(z[:, :12])
    assert rgb.dtype == torch.float32
    psnr = -10 * (rgb - exact).square().mean().log10()
    assert psnr > 30
    wide, half = decoders["pair"].stream(), narrow.stream()
    wide.push(z[:, :2]), half.push(z[:, :2])
    assert wide.cache_bytes == 2 * half.cache_bytes


def test_streams_hand_out_ordinary_tensors(decoders, z):
    for decoder in decoders.values():
        assert isinstance(decoder, Decoder)
        stream = decoder.stream()
        for frames in (*pushed(stream, z[:, :3], 1), stream.flush()):
            frames.add_(1)


@pytest.mark.parametrize(
    ("change", "metadata", "says"),
    [
        (lambda w: {n: t for n, t in w.items() if n != "blocks.2.scale1"}, TINY.metadata(), "missing blocks.2.scale1"),
        (lambda w: w | {"mask_token": torch.zeros(1)}, TINY.metadata(), "unexpected mask_token"),
        (lambda w: w | {"norm_out.bias": torch.zeros(31)}, TINY.metadata(), "norm_out.bias is"),
        (lambda w: {n: t for n, t in w.items() if n != "proj_out.weight"}, TINY.metadata(), "proj_out.weight"),
        (lambda w: w | {"proj_out.weight": torch.zeros(190, 32)}, TINY.metadata(), "190 values per token"),
        (lambda w: w | {"register_tokens": torch.zeros(4)}, TINY.metadata(), "too few dimensions"),
        (lambda w: w, {"heads": "two", "window": "4"}, "whole numbers"),
        (lambda w: w, {"heads": "3", "window": "4"}, "multiple of 8"),
        (lambda w: w, {"heads": "2", "window": "5"}, "must be even"),
        (lambda w: w, {}, "empty part"),
    ],
)
def test_files_that_differ_are_refused(weights, tmp_path, change, metadata, says):
    save_file(change(weights), tmp_path / "other.safetensors", metadata=metadata)
    with pytest.raises(CodecFileError, match=f"other.safetensors: .*{says}"):
        load_decoder(tmp_path / "other.safetensors")


def test_a_decoder_file_is_no_encoder_and_modes_are_checked(file):
    with pytest.raises(CodecFileError, match="has no encoder"):
        load_encoder(file)
    with pytest.raises(CodecError, match="choose one of pair, early_single, early_pair"):
        load_decoder(file, mode="wait")


def test_bad_latents_are_refused_and_named(decoders, z):
    stream = decoders["pair"].stream()
    first = stream.push(z[:, :3])
    holed = z[:, 3:8].clone()
    holed[5, 2, 1, 1] = float("nan")
    for bad, says in (
        (z[:16], r"\[24, latents"),
        (z[:, 0], r"\[24, latents"),
        (z[:, :1, :, :0], "empty picture grid"),
        (z[:, :1, :4], "one size"),
        (holed, "Latent 5 of the stream, in chunk 1, holds NaN"),
    ):
        with pytest.raises(CodecError, match=says):
            stream.push(bad)
    both = torch.cat((first, stream.push(z[:, 3:4])))
    assert torch.equal(both, torch.cat(pushed(decoders["pair"].stream(), z[:, :4], 2)))
    stream.flush()
    with pytest.raises(CodecError, match="after flush"):
        stream.push(z[:, :1])


@pytest.mark.parametrize("grid", [(1, 1), (2, 9), (16, 16), (13, 4)])
def test_any_grid_decodes(decoders, grid):
    torch.manual_seed(7)
    z = torch.randn(24, 6, *grid)
    frames = decoders["pair"].stream().push(z)
    assert frames.shape == (18, 3, 4 * grid[0], 4 * grid[1])
    close(frames, decode_pairs(decoders["pair"].layers, z.transpose(0, 1)[None])[0], 1e-5)


def test_pair_frame_counts_follow_the_block_clock():
    counts = [b - a for a, b in pairwise(frames_before(2 * pair) for pair in range(6))]
    assert counts == [5, 8, 5, 8, 8]
