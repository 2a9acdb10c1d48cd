"""Blocks that are copied to the device when they run: the same numbers, bit for bit, two blocks' memory, no leftovers."""

import pytest
import torch
from safetensors.torch import save_file
from streamrender_h3.kernels.block_stream import BlockStreamer, HostBlocks
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.loader.placement import file_sources, place, spread
from streamrender_h3.nodes.loader.quant_linear import QuantLinear
from torch import nn

CPU = torch.device("cpu")


@pytest.fixture
def loaded(tmp_path, native):
    """A tiny model from a file, its weights memory-mapped."""

    def loaded(**options):
        save_file(native, tmp_path / "model.safetensors")
        return load_h3(tmp_path / "model.safetensors", dtype=torch.float32, device="cpu", **options)

    return loaded


def stack(count=5):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)) for _ in range(count)]
    return nn.ModuleList(blocks).requires_grad_(False)


def run_through(blocks, x):
    for block in blocks:
        x = block(x)
    return x


@pytest.mark.parametrize("resident", [0, 1, 2])
@pytest.mark.parametrize("lock", [True, False])
def test_a_streamed_model_equals_the_resident_one_bit_for_bit(loaded, run, resident, lock):
    model = loaded()
    expected = run(model)
    placed = place(model.model, CPU, resident, lock=lock)
    assert (len(placed.resident), len(placed.streamed)) == (resident, 3 - resident)
    for _ in range(3):
        found = run(model)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    placed.close()
    assert all(torch.equal(one, other) for one, other in zip(run(model), expected, strict=True))


def test_a_streamed_quantised_model_equals_the_resident_one(loaded, run):
    model = loaded(weights="fp8")
    expected = run(model)
    place(model.model, CPU, 0)
    assert isinstance(model.model.blocks[0].mlp.fc1, QuantLinear)
    assert all(torch.equal(one, other) for one, other in zip(run(model), expected, strict=True))


def test_weights_really_come_through_the_staging_areas():
    """While a block runs its parameters lie in one of two areas; afterwards they are on the host again."""
    blocks, seen = stack(), []
    home = [one.data_ptr() for one in blocks.parameters()]
    for block in blocks:
        block.register_forward_hook(lambda module, *_: seen.append(next(module.parameters()).data_ptr()))
    streamer = BlockStreamer(blocks, CPU, everything=True)
    x = torch.randn(3, 16)
    run_through(blocks, x)
    assert len(set(seen)) == 2 and not set(seen) & set(home)
    assert [one.data_ptr() for one in blocks.parameters()] == home
    assert streamer.streamed == (0, 1, 2, 3, 4)
    assert streamer.nbytes == sum(one.nbytes for one in blocks.parameters())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_blocks_in_inference_mode(count):
    blocks = stack(count)
    x = torch.randn(3, 16)
    expected = run_through(blocks, x)
    BlockStreamer(blocks, CPU, everything=True)
    with torch.inference_mode():
        for _ in range(3):
            assert torch.equal(run_through(blocks, x), expected)


def test_a_run_that_is_broken_off_does_not_disturb_the_next():
    blocks = stack()
    x = torch.randn(3, 16)
    expected = run_through(blocks, x)
    BlockStreamer(blocks, CPU, everything=True)
    home = [one.data_ptr() for one in blocks[2].parameters()]

    class Cancelled(Exception):
        pass

    def cancel(*_):
        raise Cancelled

    hook = blocks[2][1].register_forward_hook(cancel)
    with pytest.raises(Cancelled):
        run_through(blocks, x)
    hook.remove()
    assert [one.data_ptr() for one in blocks[2].parameters()] == home
    assert torch.equal(run_through(blocks, x), expected)
    assert torch.equal(blocks[3](x), blocks[3](x))  # out of turn


def test_only_parameters_off_the_device_are_streamed():
    """As in a host that leaves single layers in host memory."""
    blocks = stack(3)
    blocks[1][0].to("meta")
    streamer = BlockStreamer(blocks, torch.device("cpu"))
    assert streamer.streamed == (1,) and streamer.nbytes == (16 * 16 + 16) * 4


def test_nothing_is_streamed_when_everything_is_there():
    streamer = BlockStreamer(stack(), CPU)
    assert streamer.streamed == () and streamer.area_bytes == 0


def test_host_blocks_hold_every_kind_of_number_aligned():
    block = nn.Module()
    tensors = {"a": torch.randn(5), "b": torch.randn(3, 7).bfloat16(), "c": torch.randn(2, 3).to(torch.float8_e4m3fn)}
    tensors["d"] = torch.tensor([1, 2, 3], dtype=torch.uint8)
    for name, tensor in tensors.items():
        block.register_parameter(name, nn.Parameter(tensor.clone(), requires_grad=False))
    host = HostBlocks()
    host.take(block)
    assert host.nbytes == 4 * 256
    for name, tensor in tensors.items():
        one = getattr(block, name)
        assert one.dtype == tensor.dtype and one.data_ptr() % 4 == 0
        assert torch.equal(one.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    ("layers", "count", "expected"), [(5, 0, ()), (5, 9, (0, 1, 2, 3, 4)), (50, 2, (12, 37)), (4, 2, (1, 3))]
)
def test_resident_blocks_are_spread_evenly(layers, count, expected):
    assert spread(layers, count) == expected


@pytest.mark.parametrize("count", range(51))
def test_spreading_keeps_the_count(count):
    assert len(spread(50, count)) == count


def test_bytes_come_from_the_file_only_where_it_holds_them_as_they_are(loaded, native, tmp_path):
    model = loaded()
    sources = file_sources(model)
    assert set(sources) == {name for name, _ in model.model.named_parameters()}
    span = sources["blocks.1.mlp.fc2.weight"]
    raw = span.path.read_bytes()[span.start : span.start + span.nbytes]
    assert torch.equal(
        torch.frombuffer(bytearray(raw), dtype=torch.float32), native["blocks.1.mlp.fc2.weight"].flatten()
    )
    narrow = load_h3(tmp_path / "model.safetensors", dtype=torch.bfloat16, device="cpu")
    assert set(file_sources(narrow)) == {
        name for name, one in narrow.model.named_parameters() if one.dtype == torch.float32
    }
    grouped = load_h3(tmp_path / "model.safetensors", dtype=torch.float32, device="cpu", qkv_order="grouped")
    assert not any("qkv_proj" in name for name in file_sources(grouped) if "token_refiner" not in name)
    assert "blocks.0.mlp.fc1.weight" not in file_sources(loaded(weights="fp8"))
