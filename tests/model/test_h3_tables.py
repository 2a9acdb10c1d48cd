"""AdaLN tables: equal to the projections they replace, and silent about nothing."""

import math
import re

import pytest
import torch
from safetensors.torch import save_file
from streamrender_h3.nodes.model import (
    H3,
    AdaLNTables,
    ConfigError,
    OffLadderError,
    TableError,
    build_tables,
    canonical_time,
    load_tables,
    save_tables,
)

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


def table_form(full: H3) -> H3:
    """The same weights without any AdaLN projection or time MLP."""
    small = H3(full.config, adaln=False, dtype=full.dtype)
    left_over = small.load_state_dict(full.state_dict(), strict=False)
    assert not left_over.missing_keys
    assert all("adaln_proj" in name or "time_embedder" in name for name in left_over.unexpected_keys)
    return small


def make_tables(model: H3, times, **options) -> AdaLNTables:
    return build_tables(model.state_dict().__getitem__, model.config, times, model.dtype, **options)


def test_table_forward_equals_full_forward(tiny, packing, tools):
    tables = make_tables(tiny, tools.times)
    small = table_form(tiny)
    wanted = tiny(packing.rows(tiny), tiny.modulation(tools.times))
    found = small(packing.rows(small), tables.at(tools.times))
    assert max(tools.relative_error(a, b) for a, b in zip(found, wanted, strict=True)) <= 1e-6


def test_some_times_of_the_ladder_give_the_rows_of_these_times(tiny, tools):
    modulation = make_tables(tiny, tools.times).at([0.999, 0.0, 0.999])
    wanted = tiny.modulation([0.0, 0.999])
    assert modulation.times == wanted.times == (0.0, canonical_time(0.999))
    assert modulation.block(2).shape == (2 * 3, 6, tiny.config.hidden)
    torch.testing.assert_close(modulation.block(2), wanted.block(2), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(modulation.final(), wanted.final(), rtol=1e-5, atol=1e-6)


def test_bf16_tables_are_within_one_unit_of_the_bf16_model(tiny, tools):
    model = H3(tiny.config, dtype=torch.bfloat16)
    model.load_state_dict(tiny.state_dict())
    tables, direct = make_tables(model, tools.times), model.modulation(tools.times)
    modulation = tables.at(tools.times)
    assert tables.blocks.dtype == tables.final.dtype == torch.bfloat16
    pairs = [(modulation.block(i), direct.block(i)) for i in range(3)] + [(modulation.final(), direct.final())]
    for found, wanted in pairs:
        found, wanted = found.double(), wanted.double()
        unit = torch.exp2(torch.floor(torch.log2(wanted.abs().clamp(min=1e-3))) - 7)
        assert ((found - wanted).abs() <= unit).all()


def test_a_float32_file_gives_the_tables_of_the_bf16_model(tiny, tools):
    """The weights are rounded as the model would round them, then multiplied."""
    model = H3(tiny.config, dtype=torch.bfloat16)
    model.load_state_dict(tiny.state_dict())
    wanted = make_tables(model, tools.times)
    found = build_tables(tiny.state_dict().__getitem__, tiny.config, tools.times, torch.bfloat16)
    assert torch.equal(found.blocks, wanted.blocks) and torch.equal(found.final, wanted.final)


def test_activation_comes_before_the_cast(tiny, tools):
    """Rounding the embedded time first and activating afterwards moves the tables by more than one unit somewhere."""
    model = H3(tiny.config, dtype=torch.bfloat16)
    model.load_state_dict(tiny.state_dict())
    captured = []
    model.blocks[0].adaln_proj.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0]))
    model.modulation(tools.times).block(0)
    embedded = []
    model.time_embedder.proj_out.register_forward_hook(lambda _, __, out: embedded.append(out))
    model.modulation(tools.times)
    silu = torch.nn.functional.silu
    assert torch.equal(captured[0], silu(embedded[0]).bfloat16())
    assert not torch.equal(captured[0], silu(embedded[0].bfloat16()))


@pytest.mark.parametrize("time", [0.5, math.nextafter(0.4, 1) + 3e-8, 1.0, 0.9990001])
def test_a_time_off_the_ladder_is_an_error_naming_it_and_the_ladder(tiny, tools, time):
    tables = make_tables(tiny, tools.times)
    with pytest.raises(OffLadderError, match=re.escape(repr(canonical_time(time)))) as error:
        tables.at([0.0, time])
    assert all(repr(known) in str(error.value) for known in tables.ladder)


def test_doubles_and_float32_of_one_time_are_the_same_time(tiny):
    tables = make_tables(tiny, [1 / 7, 1 - 6 / 7, torch.tensor(1 / 7).item()])
    assert tables.ladder == (canonical_time(1 / 7),)
    assert tables.at([1 / 7]).times == tables.ladder


def test_minus_zero_is_zero(tiny):
    assert math.copysign(1, canonical_time(-0.0)) == 1
    tables = make_tables(tiny, [-0.0, 0.0, 1.0])
    assert tables.ladder == (0.0, 1.0)
    assert math.copysign(1, tables.times[0].item()) == 1
    assert tables.at([-0.0]).times == (0.0,)
    assert tiny.modulation([-0.0, 0.0]).block(0).shape[0] == 3


def test_no_time_is_not_a_time(tiny):
    with pytest.raises(ValueError, match="nan"):
        make_tables(tiny, [0.0, float("nan")])


def test_projections_are_asked_for_once_and_one_at_a_time(tiny, tools):
    state, asked = tiny.state_dict(), []

    def tensor(name):
        asked.append(name)
        return state[name]

    build_tables(tensor, tiny.config, tools.times, torch.float32)
    projections = [name for name in asked if name.endswith("adaln_proj.linear.weight")]
    assert projections == [
        f"{part}.adaln_proj.linear.weight" for part in ("blocks.0", "blocks.1", "blocks.2", "final_layer")
    ]


def test_tables_survive_the_file(tiny, tools, tmp_path):
    tables = make_tables(tiny, tools.times, identity={"checkpoint": "abc", "lora": "none"})
    save_tables(tables, tmp_path / "t.safetensors")
    again = load_tables(tmp_path / "t.safetensors", tiny.config)
    assert again.ladder == tables.ladder and again.identity == {"checkpoint": "abc", "lora": "none"}
    assert torch.equal(again.blocks, tables.blocks) and torch.equal(again.final, tables.final)


def test_tables_of_another_model_or_another_file_are_refused(tiny, tools, tmp_path):
    tables = make_tables(tiny, tools.times)
    save_tables(tables, tmp_path / "t.safetensors")
    with pytest.raises(TableError, match="3 blocks of width 96 arrived"):
        load_tables(tmp_path / "t.safetensors", tools.replace(tiny.config, layers=2))
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(TableError, match="says its format is None"):
        load_tables(tmp_path / "x.safetensors", tiny.config)
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "t.safetensors").read_bytes()[:-10])
    with pytest.raises(TableError, match="cannot be read"):
        load_tables(tmp_path / "cut.safetensors", tiny.config)
    with pytest.raises(TableError, match="ascending and distinct"):
        AdaLNTables(tables.times.flip(0), tables.blocks, tables.final)
    with pytest.raises(TableError, match="for 2 times"):
        AdaLNTables(tables.times[:2], tables.blocks, tables.final)


def test_a_model_without_projections_says_what_it_needs(tiny, tools):
    with pytest.raises(ConfigError, match="Look the times up"):
        table_form(tiny).modulation([0.0])
    bare = tools.replace(tiny.config, freq_dim=0, time_hidden=0, time_dim=0)
    with pytest.raises(ConfigError, match="adaln=False"):
        H3(bare)
    with pytest.raises(ConfigError, match="full form"):
        build_tables(tiny.state_dict().__getitem__, bare, [0.0], torch.float32)
    H3(bare, adaln=False)
