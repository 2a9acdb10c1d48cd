"""Dequantised weights against the published formulas, decoded here bit by bit in double precision."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file
from streamrender_h3.nodes.loader.checkpoint import open_checkpoint
from streamrender_h3.nodes.loader.header import CheckpointError
from streamrender_h3.nodes.loader.quant import arrange, dequantise, quantise_fp8, tile_scales, untile_scales
from streamrender_h3.nodes.loader.quant_checkpoint import without_codes

ROWS, COLUMNS = 256, 128


def e4m3(byte):
    """1 sign, 4 exponent (bias 7), 3 mantissa bits; 0x7f is NaN."""
    sign, exponent, mantissa = -1.0 if byte & 0x80 else 1.0, byte >> 3 & 15, byte & 7
    if byte & 0x7F == 0x7F:
        return float("nan")
    return sign * (mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def e5m2(byte):
    """1 sign, 5 exponent (bias 15), 2 mantissa bits."""
    sign, exponent, mantissa = -1.0 if byte & 0x80 else 1.0, byte >> 2 & 31, byte & 3
    return sign * (mantissa / 4 * 2**-14 if exponent == 0 else (1 + mantissa / 4) * 2.0 ** (exponent - 15))


def e2m1(code):
    """1 sign, 2 exponent (bias 1), 1 mantissa bit."""
    sign, exponent, mantissa = -1.0 if code & 8 else 1.0, code >> 1 & 3, code & 1
    return sign * (mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1))


def table(function, bytes_):
    """`function` of every byte of a uint8 tensor, float64."""
    values = torch.tensor([function(code) for code in range(256)], dtype=torch.float64)
    return values[bytes_.long()]


def once(values):
    """float64 rounded to float32 once."""
    return values.to(torch.float32)


def place(r, c, columns):
    """Where the block scale (r, c) lies in 128 x 4 tiles, by the published formula; `columns` padded to 4."""
    return ((r // 128) * (columns // 4) + c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4


@pytest.fixture
def stored(tmp_path):
    """Write tensors to a file and open it with its codes hidden."""

    def stored(tensors, metadata=None, name="model.safetensors"):
        save_file(tensors, tmp_path / name, metadata=metadata)
        return without_codes(open_checkpoint(tmp_path / name))

    return stored


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def fp8_bytes(seed, rows=ROWS, columns=COLUMNS):
    codes = torch.randint(0, 256, (rows, columns), generator=generator(seed), dtype=torch.uint8)
    return torch.where(codes & 0x7F == 0x7F, codes - 1, codes)


def about(**settings):
    return torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)


# ------------------------------------------------------------------------------------------------------------------ fp8


@pytest.mark.parametrize(
    ("word", "dtype", "decode", "mask"),
    [
        ("float8_e4m3fn", torch.float8_e4m3fn, e4m3, 0xFF),
        ("float8_e5m2", torch.float8_e5m2, e5m2, 0xBF),  # without the exponents of infinity and NaN
    ],
)
def test_comfyui_fp8_is_code_times_one_scale(stored, word, dtype, decode, mask):
    codes = fp8_bytes(1) & mask
    scale = torch.tensor(0.0371)
    opened = stored(
        {
            "blocks.0.mlp.fc2.weight": codes.view(dtype),
            "blocks.0.mlp.fc2.weight_scale": scale,
            "blocks.0.mlp.fc2.input_scale": torch.tensor(2.0),
            "blocks.0.mlp.fc2.comfy_quant": about(format=word),
            "blocks.0.norm1.weight": torch.ones(4),
        }
    )
    assert set(opened.tensors) == {"blocks.0.mlp.fc2.weight", "blocks.0.norm1.weight"}
    assert opened.tensors["blocks.0.mlp.fc2.weight"].shape == (ROWS, COLUMNS)
    expected = once(table(decode, codes) * scale.double())
    assert torch.equal(opened.read("blocks.0.mlp.fc2.weight"), expected)
    assert word in opened.storage and "ComfyUI" in opened.storage


def test_the_description_may_stand_in_the_metadata(stored):
    codes, scale = fp8_bytes(2), torch.tensor([0.5])
    metadata = {"_quantization_metadata": json.dumps({"layers": {"a.b": {"format": "float8_e4m3fn"}}})}
    opened = stored(
        {
            "model.diffusion_model.a.b.weight": codes.view(torch.float8_e4m3fn),
            "model.diffusion_model.a.b.weight_scale": scale,
        },
        metadata,
    )
    assert torch.equal(opened.read("model.diffusion_model.a.b.weight"), once(table(e4m3, codes) * 0.5))


def test_legacy_scaled_fp8_and_its_marker(stored):
    codes, scale = fp8_bytes(3), torch.tensor(0.11)
    opened = stored(
        {
            "scaled_fp8": torch.zeros(2).to(torch.float8_e4m3fn),
            "a.weight": codes.view(torch.float8_e4m3fn),
            "a.scale_weight": scale,
            "a.scale_input": torch.tensor(1.0),
        }
    )
    assert set(opened.tensors) == {"a.weight"}
    assert torch.equal(opened.read("a.weight"), once(table(e4m3, codes) * scale.double()))
    assert opened.packed("a.weight").exact_matmul  # two elements in the marker


@pytest.mark.parametrize("shape", [(ROWS, 1), (ROWS,)])
def test_fastvideo_fp8_has_one_scale_per_row(stored, shape):
    codes, scale = fp8_bytes(4), torch.rand(ROWS, generator=generator(4)) + 0.01
    opened = stored({"a.weight": codes.view(torch.float8_e4m3fn), "a.weight_scale": scale.view(shape)})
    assert torch.equal(opened.read("a.weight"), once(table(e4m3, codes) * scale.double()[:, None]))


# ---------------------------------------------------------------------------------------------------------------- nvfp4


@pytest.fixture
def four_bits():
    """A random nvfp4 weight: 4-bit codes [rows, columns], block scale bytes [rows, columns / 16], one scale, the weight."""
    codes = torch.randint(0, 16, (ROWS, COLUMNS), generator=generator(5), dtype=torch.uint8)
    blocks = fp8_bytes(6, ROWS, COLUMNS // 16) & 0x7F
    blocks = torch.where(blocks == 0x7F, 0x7E, blocks)
    scale = torch.tensor(0.00173)
    weight = table(e2m1, codes) * table(e4m3, blocks).repeat_interleave(16, dim=1)
    return codes, blocks, scale, once(weight * scale.double())


def tiled(blocks):
    flat = torch.zeros(blocks.numel(), dtype=torch.uint8)
    for r in range(ROWS):
        for c in range(COLUMNS // 16):
            flat[place(r, c, COLUMNS // 16)] = blocks[r, c]
    return flat.view(blocks.shape)


def test_nvfp4_of_three_publishers_is_the_same_weight(stored, four_bits):
    codes, blocks, scale, expected = four_bits
    low_first = codes[:, 0::2] | codes[:, 1::2] << 4
    high_first = codes[:, 0::2] << 4 | codes[:, 1::2]
    comfy = stored(
        {
            "a.weight": high_first,
            "a.weight_scale": tiled(blocks).view(torch.float8_e4m3fn),
            "a.weight_scale_2": scale,
            "a.comfy_quant": about(format="nvfp4"),
        },
        name="comfy.safetensors",
    )
    modelopt = stored(
        {
            "a.weight": low_first,
            "a.weight_scale": blocks.view(torch.float8_e4m3fn),
            "a.weight_scale_2": scale,
            "a.input_scale": torch.tensor(0.5),
        },
        name="modelopt.safetensors",
    )
    fastvideo = stored(
        {
            "transformer_blocks.0.ff.fc_in::_nvfp4_weight": low_first,
            "transformer_blocks.0.ff.fc_in::_nvfp4_weight_scale": tiled(blocks),
            "transformer_blocks.0.ff.fc_in::_nvfp4_alpha": scale,
            "transformer_blocks.0.ff.fc_in::_weight_global_sf": (1 / scale).bfloat16(),
            "transformer_blocks.0.norm1.weight": torch.ones(4),
        },
        name="fastvideo.safetensors",
    )
    names = {"a.weight": (comfy, modelopt), "transformer_blocks.0.ff.net.0.proj.weight": (fastvideo,)}
    for name, files in names.items():
        for opened in files:
            assert torch.equal(opened.read(name), expected), opened.storage
    assert torch.equal(low_first << 4 | low_first >> 4, high_first)


def test_the_other_nibble_order_or_untiled_scales_would_be_seen(stored, four_bits):
    codes, blocks, scale, expected = four_bits
    low_first = codes[:, 0::2] | codes[:, 1::2] << 4
    wrong = stored(
        {"a.weight": low_first, "a.weight_scale": tiled(blocks).view(torch.float8_e4m3fn), "a.weight_scale_2": scale}
    )
    assert not torch.equal(wrong.read("a.weight"), expected)


def test_factors_on_the_input_are_multiplied_in(stored, four_bits):
    codes, blocks, scale, expected = four_bits
    factors = torch.rand(COLUMNS, generator=generator(7)) + 0.5
    opened = stored(
        {
            "a.weight": codes[:, 0::2] << 4 | codes[:, 1::2],
            "a.weight_scale": tiled(blocks).view(torch.float8_e4m3fn),
            "a.weight_scale_2": scale,
            "a.pre_quant_scale": factors,
            "a.comfy_quant": about(format="nvfp4"),
        }
    )
    assert torch.equal(opened.read("a.weight"), expected * factors)


@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (130, 5), (31, 9)])
def test_tiles_and_back(shape):
    scales = torch.randint(0, 256, shape, generator=generator(8), dtype=torch.uint8)
    flat = tile_scales(scales)
    padded = -(-shape[1] // 4) * 4
    assert flat.numel() == -(-shape[0] // 128) * 128 * padded
    assert all(flat[place(r, c, padded)] == scales[r, c] for r in range(shape[0]) for c in range(shape[1]))
    assert torch.equal(untile_scales(flat, *shape), scales)


# ---------------------------------------------------------------------------------------------------------- mxfp8, int8


def test_mxfp8_scales_are_powers_of_two(stored):
    codes = fp8_bytes(9)
    exponents = torch.randint(100, 140, (ROWS, COLUMNS // 32), generator=generator(9), dtype=torch.uint8)
    exponents[0, 0] = 0  # 2^-127, below the normal float32 numbers
    flat = torch.zeros(ROWS * COLUMNS // 32, dtype=torch.uint8)
    for r in range(ROWS):
        for c in range(COLUMNS // 32):
            flat[place(r, c, COLUMNS // 32)] = exponents[r, c]
    opened = stored(
        {
            "a.weight": codes.view(torch.float8_e4m3fn),
            "a.weight_scale": flat.view(ROWS, -1),
            "a.comfy_quant": about(format="mxfp8"),
        }
    )
    powers = torch.pow(2.0, exponents.double() - 127).repeat_interleave(32, dim=1)
    assert torch.equal(opened.read("a.weight"), once(table(e4m3, codes) * powers))


def hadamard(size):
    """Kronecker powers of the regular matrix of order 4, entries +-1/2 each time."""
    four = [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]
    matrix = [[1.0]]
    while len(matrix) < size:
        matrix = [[a * b / 2 for a in row for b in other] for row in matrix for other in four]
    return torch.tensor(matrix, dtype=torch.float64)


@pytest.mark.parametrize("group", [0, 16, 64])
def test_int8_convrot_is_turned_back(stored, group):
    codes = torch.randint(-127, 128, (ROWS, COLUMNS), generator=generator(10), dtype=torch.int8)
    scale = torch.rand(ROWS, 1, generator=generator(11)) * 0.01 + 1e-4
    settings = {"format": "int8_tensorwise", **({"convrot": True, "convrot_groupsize": group} if group else {})}
    opened = stored({"a.weight": codes, "a.weight_scale": scale, "a.comfy_quant": about(**settings)})
    rotated = codes.double() * scale.double()
    if group:
        h = hadamard(group)
        assert torch.equal(h, h.T) and torch.allclose(h @ h, torch.eye(group, dtype=torch.float64))
        rotated = (rotated.view(ROWS, -1, group) @ h).view(ROWS, COLUMNS)
    assert torch.equal(opened.read("a.weight"), once(rotated))


# --------------------------------------------------------------------------------------------------------- rows, errors


def test_rows_join_and_move_like_those_of_the_plain_weight(stored):
    parts = {}
    for part, seed in (("q", 20), ("k", 21), ("v", 22)):
        parts |= {
            f"{part}.weight": fp8_bytes(seed).view(torch.float8_e4m3fn),
            f"{part}.weight_scale": torch.tensor(0.01 * seed),
        }
    opened = stored(parts)
    packed = [opened.packed(f"{part}.weight") for part in "qkv"]
    order = torch.randperm(3 * ROWS, generator=generator(23))
    joined = arrange(packed, lambda tensors: torch.cat(list(tensors))[order])
    assert torch.equal(dequantise(joined), torch.cat([opened.read(f"{part}.weight") for part in "qkv"])[order])


def test_rounding_to_bf16_happens_once(stored):
    opened = stored({"a.weight": fp8_bytes(30).view(torch.float8_e4m3fn), "a.weight_scale": torch.tensor(0.0173)})
    packed = opened.packed("a.weight")
    assert torch.equal(dequantise(packed, torch.bfloat16), dequantise(packed).to(torch.bfloat16))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            {"a.weight": torch.zeros(4, 8, dtype=torch.uint8), "a.comfy_quant": about(format="convrot_w4a4")},
            "convrot_w4a4",
        ),
        ({"a.weight": torch.zeros(4, 8, dtype=torch.int8), "a.comfy_quant": about(format="float8_e4m3fn")}, "I8"),
        (
            {"a.weight": torch.zeros(4, 8, dtype=torch.int8), "a.comfy_quant": torch.tensor([1, 2], dtype=torch.uint8)},
            "JSON",
        ),
        ({"a.weight": torch.zeros(4, 8)}, "'a.weight' is F32"),
        ({"a::_nvfp4_weight": torch.zeros(4, dtype=torch.uint8)}, "_nvfp4_weight' is U8"),
    ],
)
def test_a_format_that_is_not_read_is_named(stored, tensors, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        stored({**tensors, "a.weight_scale": torch.ones(4)})
    assert "'a" in str(caught.value) and "unquantised" in caught.value.remedy


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"a.weight_scale": torch.ones(3)}, "4 rows"),
        ({}, "scale is missing"),
    ],
)
def test_scales_that_do_not_fit_are_named_when_the_weight_is_read(stored, parts, words):
    opened = stored(
        {"a.weight": torch.zeros(4, 8, dtype=torch.int8), "a.comfy_quant": about(format="int8_tensorwise"), **parts}
    )
    with pytest.raises(CheckpointError, match=words):
        opened.read("a.weight")


def test_fastvideo_keeps_its_codes_beside_the_shards(tmp_path, four_bits):
    codes, blocks, scale, expected = four_bits
    module = "transformer_blocks.0.attn.to_out"
    save_file({"transformer_blocks.0.norm1.weight": torch.ones(4)}, tmp_path / "diffusion_pytorch_model.safetensors")
    save_file(
        {
            f"{module}::_nvfp4_weight": codes[:, 0::2] | codes[:, 1::2] << 4,
            f"{module}::_nvfp4_weight_scale": tiled(blocks),
            f"{module}::_nvfp4_alpha": scale,
        },
        tmp_path / "nvfp4_weights.safetensors",
    )
    for picked in ("diffusion_pytorch_model.safetensors", "nvfp4_weights.safetensors"):
        opened = without_codes(open_checkpoint(tmp_path / picked))
        assert set(opened.tensors) == {"transformer_blocks.0.norm1.weight", f"{module}.0.weight"}
        assert torch.equal(opened.read(f"{module}.0.weight"), expected)


def test_a_plain_checkpoint_comes_back_as_it_is(tmp_path):
    save_file({"a.weight": torch.ones(4, 4)}, tmp_path / "plain.safetensors")
    checkpoint = open_checkpoint(tmp_path / "plain.safetensors")
    assert without_codes(checkpoint) is checkpoint and checkpoint.storage == ""


# ----------------------------------------------------------------------------------------------------- quantise on load


def test_quantise_on_load_puts_the_largest_of_every_row_at_448():
    weight = torch.randn(300, 64, generator=generator(40)) * torch.logspace(-4, 2, 300)[:, None]
    weight[7] = 0
    packed = quantise_fp8(weight.to(torch.bfloat16))
    plain = weight.to(torch.bfloat16).double()
    for row in (0, 7, 150, 299):
        largest = plain[row].abs().max()
        scale = struct.unpack("<f", struct.pack("<f", packed.scale[row, 0].item()))[0]
        assert scale == (once(largest / 448).item() if largest else 1.0)
    assert packed.codes[7].float().abs().max() == 0
    assert packed.codes.float().abs().amax(dim=1)[[0, 150, 299]].eq(448).all()
    back = dequantise(packed).double()
    assert ((back - plain).norm() / plain.norm()).item() < 0.03
    assert torch.equal(back, once(packed.codes.double() * packed.scale.double()).double())
