"""Low-rank, curve and baked checkpoints give the modulation their formulas say, and the full model's output with it."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from streamrender_h3.nodes.loader import CheckpointError, inspect_file, load_h3
from streamrender_h3.nodes.model import OffLadderError, TableError, load_tables, save_tables

CPU = {"dtype": torch.float32, "device": "cpu"}
TIMES = (0.0, 1 / 7, 0.4, 0.999)


def save(path, state, metadata=None):
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path, metadata=metadata)
    return path


def shards(folder, state, stem, count, prefix=""):
    names = list(state)
    files = [f"{stem}-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    for i, file in enumerate(files):
        save(folder / file, {prefix + name: state[name] for name in names[i::count]})
    listed = {prefix + name: files[i % count] for i, name in enumerate(names)}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    return folder / files[0]


@pytest.mark.parametrize(
    ("name", "form", "tolerance"),
    [
        ("trim, all directions", "low rank", 1e-5),
        ("trim, 16 directions", "low rank", 1e-5),
        ("curve, fine", "curve", 1e-5),
        ("curve, four times", "curve", 1e-5),
        ("curve, 8 coordinates", "curve", 2e-3),  # factors in fp16 keep three digits
        ("baked", "baked", 1e-5),
        ("baked over pruned", "baked", 1e-5),
    ],
)
def test_every_reduced_form_gives_diffusers_output(name, form, tolerance, tmp_path, reduced, run, expected, error):
    path = save(tmp_path / "m.safetensors", reduced(name))
    loaded = load_h3(path, **CPU)
    assert error(run(loaded), expected) < tolerance
    report = inspect_file(path)
    assert report.loadable and report.adaln == form and report.gates == (0 if form == "curve" else 3)


@pytest.mark.parametrize("name", ["trim, all directions", "trim, 16 directions", "curve, 8 coordinates"])
def test_reduced_forms_are_evaluated_exactly(name, tmp_path, reduced, native, formulas):
    """Tables against the form's own formula in float64, at times between the points of the grid too."""
    state, times = reduced(name), (0.0, 0.3337, 1 / 7, 0.999, 1.0)
    loaded = load_h3(save(tmp_path / "m.safetensors", state), **CPU)
    found = loaded.modulation.tables(times)
    if "curve" in name:
        table = state["adaln_t_table"].double()
        places = torch.tensor(found.ladder).double() * (len(table) - 1)
        lower = places.floor().long().clamp(max=len(table) - 2)
        read = table[lower] + (places - lower)[:, None] * (table[lower + 1] - table[lower])
        weights = {f"blocks.{i}": f"blocks.{i}.adaln_proj.linear" for i in range(3)}
    else:
        read = formulas.embedded(native, found.ladder) @ state["adaln_basis.weight"].double().T
        weights = {f"blocks.{i}": f"transformer_blocks.{i}.adaln_proj.linear" for i in range(3)}
    for i, module in enumerate(weights.values()):
        wanted = read @ state[f"{module}.weight"].double().T + state[f"{module}.bias"].double()
        torch.testing.assert_close(found.blocks[i].flatten(1).double(), wanted, rtol=1e-5, atol=2e-6)


def test_a_curve_does_not_apply_a_second_silu(tmp_path, reduced, native, formulas):
    state = reduced("curve, fine")
    loaded = load_h3(save(tmp_path / "m.safetensors", state), **CPU)
    found = loaded.modulation.tables([0.4]).blocks[1].flatten(1)
    right = formulas.projected(native, formulas.embedded(native, [0.4]))["blocks.1"]
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)
    twice = formulas.embedded(native, [0.4])
    wrong = formulas.projected(native, twice * torch.sigmoid(twice))["blocks.1"]
    assert (found.double() - wrong).abs().max() > 1e-2


def test_baked_tables_hold_their_times_and_no_others(tmp_path, reduced, run, expected, error):
    loaded = load_h3(save(tmp_path / "m.safetensors", reduced("baked")), **CPU)
    assert loaded.modulation.times == tuple(torch.tensor(TIMES).tolist())
    assert "only the times in them" in " ".join(loaded.notes)
    with pytest.raises(OffLadderError, match=r"holds finished AdaLN tables .* time 0\.5 was asked for") as caught:
        loaded.modulation.tables([0.0, 0.5])
    assert "m.safetensors" in str(caught.value) and "number of steps" in str(caught.value)


def test_a_time_off_by_a_hundred_thousandth_is_another_time(tmp_path, reduced):
    loaded = load_h3(save(tmp_path / "m.safetensors", reduced("baked")), **CPU)
    loaded.modulation.tables([0.4])
    with pytest.raises(OffLadderError):
        loaded.modulation.tables([0.40001])


def test_bf16_tables_of_a_pack_reach_a_bf16_model_bit_by_bit(tmp_path, reduced):
    state = {n: t.bfloat16() if n.endswith(".adaln") else t for n, t in reduced("baked").items()}
    loaded = load_h3(save(tmp_path / "m.safetensors", state), dtype=torch.bfloat16, device="cpu")
    found = loaded.modulation.tables(TIMES)
    order = [0, 2, 1, 3]  # rows of the file in ascending order of times
    for i in range(3):
        assert torch.equal(found.blocks[i].flatten(1), state[f"h3.fasth3.blocks.{i}.adaln"][order])
    assert torch.equal(found.final.flatten(1), state["h3.fasth3.final.adaln"][order])


@pytest.mark.parametrize("pick", ["folder", "index", "first shard", "one file"])
@pytest.mark.parametrize("name", ["trim, all directions", "curve, four times"])
def test_reduced_forms_come_in_shards_too(pick, name, tmp_path, reduced, run, expected, error):
    state = reduced(name)
    if pick == "one file":
        path = save(tmp_path / "m.safetensors", state)
    else:
        first = shards(tmp_path, state, "diffusion_pytorch_model" if "trim" in name else "pruned", 3)
        index = next(tmp_path.glob("*.index.json"))
        path = {"folder": tmp_path, "index": index, "first shard": first}[pick]
    assert error(run(load_h3(path, **CPU)), expected) < 1e-5


@pytest.mark.parametrize("stem", ["streamrender_h3", "model"])
@pytest.mark.parametrize("prefix", ["dit.", ""])
def test_nine_streamrender_shards_with_either_prefix(stem, prefix, tmp_path, native, run, expected, error):
    first = shards(tmp_path, native, stem, 9, prefix)
    loaded = load_h3(first, **CPU)
    assert error(run(loaded), expected) < 1e-5
    assert ("does not tell" in " ".join(loaded.notes)) == (prefix == ""), (
        "a prefix tells the order, its absence does not"
    )
    assert error(run(load_h3(first, qkv_order="grouped", **CPU)), expected) > 1e-2


def test_names_that_fastvideo_uses_in_memory(tmp_path, twin, run, expected, error):
    renamed = {}
    for name, tensor in twin.state_dict().items():
        for theirs, ours in (
            ("time_embedder.linear_1", "time_embedder.fc_in"),
            ("time_embedder.linear_2", "time_embedder.fc_out"),
            ("attn.to_out.0", "attn.to_out"),
            ("ff.net.0.proj", "ff.fc_in"),
            ("ff.net.2", "ff.fc_out"),
        ):
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    loaded = load_h3(save(tmp_path / "m.safetensors", renamed), **CPU)
    assert loaded.layout == "FastVideo names" and error(run(loaded), expected) < 1e-5


@pytest.mark.parametrize("family", ["native", "diffusers"])
def test_the_wrong_order_of_halves_differs_and_can_be_chosen(family, tmp_path, twin, native, run, expected, error):
    state, fc1, own, other = {
        "native": (native, "mlp.fc1", "gate first", "up first"),
        "diffusers": (twin.state_dict(), "ff.net.0.proj", "up first", "gate first"),
    }[family]
    swapped = {name: t.roll(len(t) // 2, 0) if fc1 in name else t for name, t in state.items()}
    path = save(tmp_path / "m.safetensors", swapped)
    assert error(run(load_h3(path, **CPU)), expected) > 1e-2
    assert error(run(load_h3(path, gate_order=own, **CPU)), expected) > 1e-2
    assert error(run(load_h3(path, gate_order=other, **CPU)), expected) < 1e-5
    with pytest.raises(ValueError, match="gate_order is 'gate'"):
        load_h3(path, gate_order="gate", **CPU)


def test_ungrouping_twice_is_not_ungrouping_once(tmp_path, native, grouped, run, expected, error):
    """Grouped rows handed to a loader as stacked, and stacked ones as grouped, both differ from the reference."""
    for state, wrong in ((grouped, "stacked"), (native, "grouped")):
        path = save(tmp_path / "m.safetensors", state)
        assert error(run(load_h3(path, qkv_order=wrong, **CPU)), expected) > 1e-2


# ------------------------------------------------------------------------------------------------ tables in their own file


@pytest.fixture
def sidecars(tmp_path, native, formulas):
    """Writes tables of TIMES in one of three spellings, optionally off by some amount; returns the file."""

    def write(spelling: str, off: float = 0.0, path=None):
        path = path or tmp_path / "adaln_tables.safetensors"
        outputs = formulas.projected(native, formulas.embedded(native, TIMES))
        blocks = torch.stack([outputs[f"blocks.{i}"] for i in range(3)]).float()  # [L, n, rows]
        blocks[0, 2, 5] += off
        final = outputs["final_layer"].float()
        if spelling == "plans":  # two plans, the second longer than its times
            places = torch.tensor([[0, 3, 0], [0, 1, 3]])
            places = torch.cat([places, torch.tensor([[2, 3, 0]])])
            state = {
                "plan_timesteps": torch.tensor(TIMES)[places],
                "plan_lengths": torch.tensor([2, 3, 2]),
                "block_params": blocks.transpose(0, 1)[places],
                "final_params": final[places],
            }
            metadata = {"format_version": "2", "model_variant": "ref2va"}
        elif spelling == "ours":
            state = {
                "adaln.times": torch.tensor(TIMES),
                "adaln.blocks": blocks.view(3, 4, 3, 6, 96),
                "adaln.final": final.view(4, 2, 96),
            }
            metadata = {"format": "streamrender-h3 adaln tables 1", "identity": "{}"}
        else:
            state = {f"h3.fasth3.blocks.{i}.adaln": blocks[i] for i in range(3)}
            state |= {"h3.fasth3.times": torch.tensor(TIMES), "h3.fasth3.final.adaln": final}
            metadata = None
        return save(path, state, metadata)

    return write


def bare(native):
    return {name: t for name, t in native.items() if "adaln" not in name and "time_embedder" not in name}


@pytest.mark.parametrize("spelling", ["ours", "plans", "fasth3"])
def test_a_model_without_modulation_takes_the_tables_beside_it(
    spelling, tmp_path, native, sidecars, run, expected, error
):
    path = save(tmp_path / "m.safetensors", bare(native))
    with pytest.raises(CheckpointError, match=r"no AdaLN projections .* not exactly one file of tables"):
        load_h3(path, **CPU)
    sidecars(spelling)
    loaded = load_h3(path, **CPU)
    assert error(run(loaded), expected) < 1e-5 and "adaln_tables.safetensors" in " ".join(loaded.notes)
    sidecars(spelling, path=tmp_path / "second.safetensors")
    with pytest.raises(CheckpointError, match="not exactly one"):
        load_h3(path, **CPU)
    assert error(run(load_h3(path, tables=tmp_path / "second.safetensors", **CPU)), expected) < 1e-5


@pytest.mark.parametrize("spelling", ["ours", "plans", "fasth3"])
@pytest.mark.parametrize("form", ["full", "trim, 16 directions", "curve, fine"])
def test_given_tables_are_compared_with_the_projections(spelling, form, tmp_path, native, reduced, sidecars):
    path = save(tmp_path / "m.safetensors", native if form == "full" else reduced(form))
    for off in (0.0, 1e-5):
        loaded = load_h3(path, tables=sidecars(spelling, off), **CPU)
        assert loaded.modulation.times is not None
    with pytest.raises(TableError) as caught:
        load_h3(path, tables=sidecars(spelling, 1e-2), **CPU)
    told = re.search(r"tensor adaln.blocks, block 0 holds (\S+) at time (\S+); expected is (\S+),", str(caught.value))
    assert told and "adaln_tables.safetensors" in str(caught.value)
    assert abs(float(told[1]) - float(told[3]) - 1e-2) < 1e-5 and abs(float(told[2]) - 0.4) < 1e-6


def test_rounded_tables_are_accepted(tmp_path, native, sidecars):
    path, table = save(tmp_path / "m.safetensors", native), sidecars("ours")
    state = {n: t if "times" in n else t.bfloat16() for n, t in load_file(table).items()}
    save(table, state, {"format": "streamrender-h3 adaln tables 1", "identity": "{}"})
    load_h3(path, tables=table, dtype=torch.bfloat16, device="cpu")


def test_tables_of_another_model_are_refused(tmp_path, native, sidecars):
    path, table = save(tmp_path / "m.safetensors", native), sidecars("ours")
    state = load_file(table)
    save(table, {**state, "adaln.blocks": state["adaln.blocks"][:2]})
    with pytest.raises(TableError, match="2 blocks of width 96 arrived; the model has 3"):
        load_h3(path, tables=table, **CPU)
    save(table, {**state, "adaln.blocks": state["adaln.blocks"][..., :64]})
    with pytest.raises(TableError, match="needs"):
        load_h3(path, tables=table, **CPU)
    with pytest.raises(CheckpointError, match="no file of AdaLN tables"):
        load_h3(path, tables=path, **CPU)


def test_tables_that_were_written_can_be_given_again(tmp_path, native, run, expected, error):
    path = save(tmp_path / "m.safetensors", native)
    save_tables(load_h3(path, **CPU).modulation.tables(TIMES), tmp_path / "t.safetensors")
    loaded = load_h3(path, tables=tmp_path / "t.safetensors", **CPU)
    assert error(run(loaded), expected) < 1e-5
    assert torch.equal(
        loaded.modulation.tables(TIMES).blocks, load_tables(tmp_path / "t.safetensors", loaded.config).blocks
    )
