"""Products on quantised weights: within the published tolerances of the plain product, and of the dequantised one."""

import sys

import pytest
import torch
import torch.nn.functional as F
from streamrender_h3.kernels import quant_matmul
from streamrender_h3.nodes.loader.quant import FP8, INT8, NVFP4, QuantWeight, dequantise, quantise_fp8, tile_scales
from streamrender_h3.nodes.loader.quant_linear import QUANTISED_LAYERS, QuantLinear, install, quantise_model
from streamrender_h3.nodes.model import H3, H3Config

TINY = H3Config(
    hidden=96, layers=3, refiner_layers=2, heads=4, head_dim=32, ffn=160, text_dim=80, freq_dim=256, time_hidden=96,
    time_dim=48, rope_freqs=4,
)  # fmt: skip


def relative(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.fixture(scope="module")
def gaussian():
    """Rows [64, 512] and a weight [384, 512], bf16."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(64, 512, generator=g).bfloat16(), torch.randn(384, 512, generator=g).bfloat16()


def test_fp8_rows_times_fp8_weight_stay_within_the_tolerance(gaussian):
    """Relative error at most 0.045 (0.0375 was measured); torch computes `_scaled_mm` on the CPU too, slowly."""
    x, weight = gaussian
    packed = quantise_fp8(weight)
    found = quant_matmul.fp8_linear(x, packed.codes, packed.scale)
    assert found.dtype == torch.bfloat16
    assert 0.02 < relative(found, F.linear(x.double(), weight.double())) < 0.045
    rows, scale = quant_matmul.fp8_rows(x)
    dequantised = F.linear(rows.double() * scale.double(), dequantise(packed).double())
    assert relative(found, dequantised) < 3e-3  # bf16 output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_without_a_product_dequantises_its_weight(gaussian, dtype, caplog):
    x, weight = gaussian
    layer = QuantLinear(quantise_fp8(weight))
    found = layer(x.to(dtype).view(4, 16, 512))
    assert found.shape == (4, 16, 384) and found.dtype == dtype
    assert torch.equal(found.view(64, 384), F.linear(x.to(dtype), dequantise(layer.packed, dtype)))
    assert relative(found.view(64, 384), F.linear(x.double(), weight.double())) < 0.045


def test_what_was_decided_is_in_the_log_with_the_reason(gaussian, caplog):
    from streamrender_h3.nodes.loader import quant_linear

    quant_linear._decide.cache_clear()
    x, weight = gaussian
    layer = QuantLinear(quantise_fp8(weight))
    with caplog.at_level("WARNING"):
        layer(x)
        layer(x)
    lines = [record.getMessage() for record in caplog.records if "dequantised" in record.getMessage()]
    assert len(lines) == 1 and "fp8 weights on cpu" in lines[0]


def nvfp4_of(weight):
    """A weight in nvfp4 by nearest code, with block scales amax / 6."""
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    scale = weight.float().abs().max() / (6 * 448)
    groups = weight.float().unflatten(1, (-1, 16))
    blocks = (groups.abs().amax(-1) / 6 / scale).clamp(max=448).to(torch.float8_e4m3fn)
    ratio = groups / (blocks.float() * scale).unsqueeze(-1)
    nearest = (ratio.abs().unsqueeze(-1) - levels).abs().argmin(-1)
    codes = (nearest + 8 * (ratio < 0)).flatten(1).to(torch.uint8)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return QuantWeight(NVFP4, packed, scale.view(1, 1).expand(len(weight), 1).contiguous(), blocks)


def test_nvfp4_weights_with_plain_rows_stay_within_the_tolerance(gaussian):
    x, weight = gaussian
    layer = QuantLinear(nvfp4_of(weight))
    assert layer.one_scale
    assert 0.05 < relative(layer(x), F.linear(x.double(), weight.double())) < 0.115


def test_int8_weights_per_row_stay_within_the_tolerance(gaussian):
    x, weight = gaussian
    scale = weight.float().abs().amax(dim=1, keepdim=True) / 127
    layer = QuantLinear(QuantWeight(INT8, (weight.float() / scale).round().to(torch.int8), scale))
    assert relative(layer(x.float()), F.linear(x.double(), weight.double())) < 0.016


# ------------------------------------------------------------------------------------------------------------- packages


@pytest.fixture
def kitchen():
    """comfy-kitchen with its portable backend."""
    package = pytest.importorskip("comfy_kitchen", reason="comfy-kitchen is not installed")
    package.disable_backend("cuda")
    return package


def test_comfy_kitchen_reads_the_same_nvfp4_weight(kitchen, gaussian):
    """Its codes and tiles through our formula; it multiplies the scales first, so the last bit of float32 may differ."""
    _, weight = gaussian
    scale = weight.float().abs().max() / (6 * 448)
    codes, blocks = kitchen.quantize_nvfp4(weight, scale)
    theirs = kitchen.dequantize_nvfp4(codes, scale, blocks, torch.float32)
    rows, columns = weight.shape
    from streamrender_h3.nodes.loader.quant import swap_nibbles, untile_scales

    untiled = untile_scales(blocks, rows, columns // 16).view(torch.float8_e4m3fn)
    packed = QuantWeight(NVFP4, swap_nibbles(codes), scale.view(1, 1).expand(rows, 1), untiled)
    torch.testing.assert_close(dequantise(packed), theirs, rtol=2**-22, atol=0)
    assert torch.equal(tile_scales(untiled), blocks.contiguous().view(torch.uint8).flatten())


def test_comfy_kitchen_turns_back_the_same_rotation(kitchen):
    from comfy_kitchen.tensor import QuantizedTensor

    weight = torch.randn(128, 512, generator=torch.Generator().manual_seed(2))
    theirs = QuantizedTensor.from_float(
        weight, "TensorWiseINT8Layout", per_channel=True, convrot=True, convrot_groupsize=256
    )
    packed = QuantWeight(INT8, theirs._qdata, theirs._params.scale.view(-1, 1).float(), rotation=256)
    assert relative(dequantise(packed), theirs.dequantize()) < 1e-6
    assert relative(dequantise(packed), weight) < 0.016


def test_comfy_kitchens_int8_product_is_that_of_the_dequantised_weight(kitchen, gaussian):
    x, weight = gaussian
    scale = weight.float().abs().amax(dim=1, keepdim=True) / 127
    codes = (weight.float() / scale).round().to(torch.int8)
    found = quant_matmul.int8_linear(x, codes, scale)
    assert relative(found, F.linear(x.double(), weight.double())) < 0.016


# --------------------------------------------------------------------------------------------------------------- trials


def test_a_method_is_only_used_where_it_was_tried(monkeypatch):
    assert quant_matmul.verdict("fp8", "cpu") == (False, "cpu has no unit for it")
    assert not quant_matmul.verdict("mxfp8", "cpu").works
    method = quant_matmul.METHODS["fp8"]
    assert quant_matmul.trial_error(method, "cpu") < method.tolerance
    wrong = method._replace(trial=lambda x, weight: F.linear(x, weight) * 1.1)
    assert quant_matmul.trial_error(wrong, "cpu") > method.tolerance


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (lambda x, weight: F.linear(x, weight) * 1.1, "off by 0.1"),
        (lambda x, weight: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_method_that_fails_its_trial_gives_the_reason(monkeypatch, trial, words):
    wrong = quant_matmul.METHODS["fp8"]._replace(trial=trial)
    monkeypatch.setitem(quant_matmul.METHODS, "fp8", wrong)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(quant_matmul, "trial_error", lambda method, device: TRIAL(method, "cpu"))
    quant_matmul.verdict.cache_clear()
    works, reason = quant_matmul.verdict("fp8", "cuda:7")
    quant_matmul.verdict.cache_clear()
    assert not works and words in reason


TRIAL = quant_matmul.trial_error


def test_an_old_device_is_told_what_it_lacks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    quant_matmul.verdict.cache_clear()
    works, reason = quant_matmul.verdict("fp8", "cuda:6")
    quant_matmul.verdict.cache_clear()
    assert not works and "8.9" in reason and "8.6" in reason


# ------------------------------------------------------------------------------------------------------- whole networks


def test_quantise_on_load_takes_the_four_large_layers_of_every_block():
    model = H3(TINY, adaln=False).eval().requires_grad_(False)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    assert quantise_model(model) == 12
    for index in range(3):
        for layer in QUANTISED_LAYERS:
            name = f"blocks.{index}.{layer}"
            module = model.get_submodule(name)
            assert isinstance(module, QuantLinear)
            assert torch.equal(dequantise(module.packed), dequantise(quantise_fp8(before[f"{name}.weight"])))
    assert quantise_model(model) == 0
    assert isinstance(model.token_refiner.blocks[0].mlp.fc1, torch.nn.Linear)


def test_codes_are_parameters_that_move_and_count():
    model = torch.nn.Sequential(torch.nn.Linear(32, 48, bias=False))
    install(model, "0", quantise_fp8(model[0].weight.detach()))
    assert {name for name, _ in model.named_parameters()} == {"0.weight", "0.scale"}
    assert sum(one.nbytes for one in model.parameters()) == 32 * 48 + 48 * 4
    assert model[0].bias is None and model[0].kind == FP8
    assert not any(one.requires_grad for one in model.parameters())


def test_the_pack_does_not_need_comfy_kitchen():
    import subprocess

    code = "import sys; import streamrender_h3.nodes.loader.quant_linear; sys.exit('comfy_kitchen' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
