"""The prefix bank in fp8: what it stores, what it costs in accuracy, and that it halves the bytes."""

import pytest
import torch
from streamrender_h3.nodes.sampler import PREFIX, Network, Rollout, TimeGrid
from streamrender_h3.nodes.sampler.bank import PrefixBank
from streamrender_h3.nodes.sampler.bank_fp8 import NarrowRows
from streamrender_h3.nodes.schedule import RELEASE


def relative(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def test_rows_are_code_times_scale_with_one_rounding():
    x = torch.randn(40, 5, 128, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 40)[:, None, None]
    rows = NarrowRows.of(x)
    assert rows.codes.dtype == torch.float8_e4m3fn and rows.scale.shape == (40, 5, 1)
    for dtype in (torch.float32, torch.bfloat16):
        wide = torch.empty(x.shape, dtype=dtype)
        rows.into(wide)
        assert torch.equal(wide, (rows.codes.double() * rows.scale.double()).to(dtype))
    largest = rows.codes.float().abs().amax(dim=-1)
    assert (largest <= 448).all() and (largest >= 440).all()  # the scale is rounded up by at most 2^-7


def test_rows_of_zeros_and_single_peaks_survive():
    x = torch.zeros(3, 2, 128)
    x[1, 0, 7], x[2, 1, 3] = 5.0, -1e-3
    wide = torch.empty_like(x)
    NarrowRows.of(x).into(wide)
    assert torch.equal(wide[0], x[0])
    assert torch.allclose(wide, x, rtol=2**-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_of_gaussian_rows_is_that_of_three_mantissa_bits(dtype):
    x = torch.randn(64, 8, 128, generator=torch.Generator().manual_seed(1)).to(dtype)
    wide = torch.empty_like(x)
    NarrowRows.of(x).into(wide)
    assert 0.01 < relative(wide, x) < 0.03


@pytest.fixture
def chunks(full_model, tables_for, conditions):
    """Latents of three chunks with a plain and an fp8 bank, and the banks."""

    def roll(fp8):
        grid, bank = TimeGrid.trailing(2), PrefixBank("fp8" if fp8 else "split")
        network = Network(full_model, tables_for(grid), conditions, grid, attention=PREFIX, bank=bank)
        rollout = Rollout(RELEASE, grid, network, conditions.picture, audio_channels=32, seed=3, freeze_sink=True)
        generator = torch.Generator().manual_seed(9)
        height, width = conditions.geometry.reference
        latents = [
            rollout.step(torch.randn(24, len(rollout.next_window.latents), height, width, generator=generator)).video
            for _ in range(3)
        ]
        return latents, bank

    return roll(False), roll(True)


def test_chunks_through_the_fp8_bank_stay_within_a_forwards_tolerance(chunks):
    (plain, _), (fp8, _) = chunks
    assert torch.equal(plain[0], fp8[0])  # the bootstrap has no bank
    for one, other in zip(plain[1:], fp8[1:], strict=True):
        error = relative(other, one)
        assert 0 < error < 1e-2  # what a bf16 prefix may differ from its recomputation


def test_the_fp8_bank_takes_little_more_than_a_quarter_of_fp32(chunks):
    (_, plain), (_, fp8) = chunks
    assert fp8.prefills == plain.prefills == 2
    head_dim = 32
    assert fp8.nbytes / plain.nbytes == pytest.approx((head_dim + 2) / (4 * head_dim))


def test_layers_out_of_order_are_refused():
    recorder = PrefixBank("fp8").recorder("text", 0, 4)
    with pytest.raises(RuntimeError, match="in order"):
        recorder.extend(1, torch.zeros(1, 1, 8), torch.zeros(1, 1, 8))
