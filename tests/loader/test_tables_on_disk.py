"""AdaLN tables outlive the process by content, and a model with finished tables is written one tensor at a time."""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from streamrender_h3.nodes.loader import (
    EXAMPLE_KEY,
    TableCache,
    inspect_file,
    load_h3,
    with_adapter,
    write_h3,
    write_table_checkpoint,
)
from streamrender_h3.nodes.loader.checkpoint import Checkpoint
from streamrender_h3.nodes.loader.command_options import adapter_of
from streamrender_h3.nodes.loader.stream_file import Planned, write_stream
from streamrender_h3.nodes.loader.table_checkpoint import FOR_COMFYUI, unit_curve
from streamrender_h3.nodes.model import RELEASE, OffLadderError, load_tables
from streamrender_h3.nodes.sampler import TimeGrid, tables_command

CPU = {"dtype": torch.float32, "device": "cpu"}
TIMES = (0.0, 1 / 7, 0.4, 0.999)


@pytest.fixture
def reads(monkeypatch):
    """Names of the projection weights that were read, in order."""
    seen, original = [], Checkpoint.read

    def read(self, name):
        if name.endswith("adaln_proj.linear.weight"):
            seen.append(name)
        return original(self, name)

    monkeypatch.setattr(Checkpoint, "read", read)
    return seen


# --------------------------------------------------------------------------------------------------------------- the cache


def test_a_second_process_takes_tables_from_the_cache(tmp_path, native, monkeypatch):
    file, cache = write_h3(tmp_path / "m.safetensors", native)[0], TableCache(tmp_path / "cache")
    built = load_h3(file, cache=cache, **CPU).modulation.tables(TIMES)
    monkeypatch.setattr(
        "streamrender_h3.nodes.loader.modulation_source.build_tables", None
    )  # building is a failure now
    again = load_h3(file, cache=cache, **CPU).modulation.tables([*reversed(TIMES), -0.0])
    assert torch.equal(again.blocks, built.blocks) and torch.equal(again.final, built.final)
    assert again.ladder == built.ladder


def test_the_cache_goes_by_content_not_by_name_or_layout(tmp_path, native, twin, monkeypatch):
    cache = TableCache(tmp_path / "cache")
    load_h3(write_h3(tmp_path / "a.safetensors", native)[0], cache=cache, **CPU).modulation.tables(TIMES)
    monkeypatch.setattr("streamrender_h3.nodes.loader.modulation_source.build_tables", None)
    for path in (
        write_h3(tmp_path / "renamed.safetensors", native, prefix="")[0],
        write_h3(tmp_path / "shards" / "b.safetensors", native, shards=3)[1],
    ):
        load_h3(path, cache=cache, **CPU).modulation.tables(TIMES)
    twin.save_pretrained(tmp_path / "d")
    load_h3(tmp_path / "d", cache=cache, **CPU).modulation.tables(TIMES)


@pytest.mark.parametrize(
    "change",
    [
        "time_embedder.proj_in.bias",
        "blocks.2.adaln_proj.linear.bias",
        "blocks.1.adaln_proj.linear.weight",
        "times",
        "dtype",
    ],
)
def test_whatever_tables_are_made_from_makes_other_tables(change, tmp_path, native, monkeypatch):
    cache = TableCache(tmp_path / "cache")
    load_h3(write_h3(tmp_path / "a.safetensors", native)[0], cache=cache, **CPU).modulation.tables(TIMES)
    state, times, dtype = dict(native), TIMES, torch.float32
    if change == "times":
        times = (*TIMES, 1.0)
    elif change == "dtype":
        dtype = torch.bfloat16
    elif change.endswith("bias"):  # one element of a small tensor
        state[change] = state[change].clone()
        state[change][7] += 1e-3
    else:
        state[change] = state[change] * 1.001
    other = load_h3(write_h3(tmp_path / "b.safetensors", state)[0], dtype=dtype, device="cpu", cache=cache)
    other.modulation.tables(times)
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 2


def test_weights_that_tables_do_not_depend_on_leave_them(tmp_path, native):
    cache = TableCache(tmp_path / "cache")
    for number, factor in enumerate((1.0, 2.0)):
        state = {n: t * factor if "mlp.fc1" in n else t for n, t in native.items()}
        load_h3(write_h3(tmp_path / f"{number}.safetensors", state)[0], cache=cache, **CPU).modulation.tables(TIMES)
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 1


def test_a_broken_entry_is_built_again(tmp_path, native, caplog):
    file, cache = write_h3(tmp_path / "m.safetensors", native)[0], TableCache(tmp_path / "cache")
    built = load_h3(file, cache=cache, **CPU).modulation.tables(TIMES)
    (entry,) = (tmp_path / "cache").glob("*.safetensors")
    for damage in (lambda raw: raw[:-10], lambda raw: b"", lambda raw: b"\xff" * len(raw)):
        entry.write_bytes(damage(entry.read_bytes()))
        assert torch.equal(load_h3(file, cache=cache, **CPU).modulation.tables(TIMES).blocks, built.blocks)
        assert "will be built again" in caplog.text
        caplog.clear()


def test_an_entry_of_something_else_under_this_name_is_not_used(tmp_path, native):
    cache = TableCache(tmp_path / "cache")
    first = load_h3(write_h3(tmp_path / "a.safetensors", native)[0], cache=cache, **CPU).modulation
    wrong = load_h3(
        write_h3(tmp_path / "b.safetensors", {n: t * 1.1 for n, t in native.items()})[0], cache=cache, **CPU
    ).modulation
    right, other = first.tables(TIMES), wrong.tables(TIMES)
    os.replace(cache.path(other.identity), cache.path(right.identity))
    again = load_h3(tmp_path / "a.safetensors", cache=cache, **CPU).modulation.tables(TIMES)
    assert torch.equal(again.blocks, right.blocks)


def test_the_cache_is_bounded_and_drops_what_was_used_longest_ago(tmp_path, native):
    file = write_h3(tmp_path / "m.safetensors", native)[0]
    one = TableCache(tmp_path / "cache")
    load_h3(file, cache=one, **CPU).modulation.tables([0.5])
    size = next((tmp_path / "cache").glob("*.safetensors")).stat().st_size
    cache = TableCache(tmp_path / "cache", kept_bytes=int(3.5 * size))
    entries = {}
    for number, time in enumerate((0.5, 0.25, 0.75, 0.5, 0.125)):
        tables = load_h3(file, cache=cache, **CPU).modulation.tables([time])
        entries[time] = cache.path(tables.identity)
        os.utime(entries[time], (number, number))
    assert [time for time, path in entries.items() if path.exists()] == [0.5, 0.75, 0.125]


def test_a_cache_that_cannot_be_written_costs_no_render(tmp_path, native, caplog):
    (tmp_path / "cache").write_text("a file where the folder should be")
    file = write_h3(tmp_path / "m.safetensors", native)[0]
    load_h3(file, cache=TableCache(tmp_path / "cache"), **CPU).modulation.tables(TIMES)
    assert "not cached" in caplog.text


def test_building_tells_every_layer_and_can_be_interrupted(tmp_path, native, reads):
    cache = TableCache(tmp_path / "cache")
    source = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], cache=cache, **CPU).modulation
    seen = []
    source.progress = lambda done, total: seen.append((done, total))
    source.tables(TIMES)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    source.progress = stop
    reads.clear()
    with pytest.raises(KeyboardInterrupt):
        source.tables([0.5])
    assert "blocks.2.adaln_proj.linear.weight" not in {name.removeprefix("dit.") for name in reads[-2:]}
    assert len(list((tmp_path / "cache").iterdir())) == 1, "half a build leaves nothing behind"


# -------------------------------------------------------------------------------------------- the checkpoint with tables


def test_a_checkpoint_with_tables_loads_again_and_is_smaller(tmp_path, native, run, expected, error):
    base = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], **CPU)
    written = write_table_checkpoint(base.modulation, TIMES, tmp_path / "t.safetensors")
    assert written.nbytes == written.path.stat().st_size < (tmp_path / "m.safetensors").stat().st_size
    report = inspect_file(written.path)
    assert report.loadable and report.adaln == "baked" and report.prefix == "dit." and not report.missing
    again = load_h3(written.path, **CPU)
    assert error(run(again), expected) < 1e-5
    assert torch.equal(again.modulation.tables(TIMES).blocks, base.modulation.tables(TIMES).blocks)
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, native[name]), name
    with pytest.raises(OffLadderError, match=r"0\.5"):
        again.modulation.tables([0.5])


@pytest.mark.parametrize("layout", ["diffusers", "grouped", "trim, 16 directions", "curve, fine", "baked"])
def test_every_layout_becomes_a_checkpoint_with_tables(layout, tmp_path, twin, grouped, reduced, run, expected, error):
    if layout == "diffusers":
        twin.save_pretrained(tmp_path / "m")
        path = tmp_path / "m"
    else:
        path = tmp_path / "m.safetensors"
        state = grouped if layout == "grouped" else reduced(layout)
        save_file(
            {n: t.contiguous() for n, t in state.items()}, path, {"qkv_layout": layout} if layout == "grouped" else None
        )
    written = write_table_checkpoint(load_h3(path, **CPU).modulation, TIMES, tmp_path / "t.safetensors")
    loaded = load_h3(written.path, **CPU)
    assert error(run(loaded), expected) < 1e-5 and "does not tell" not in " ".join(loaded.notes)


def test_a_curve_for_comfyui_holds_the_times_exactly(tmp_path, native, run, expected, error):
    base = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], **CPU)
    written = write_table_checkpoint(base.modulation, TIMES, tmp_path / "c.safetensors", kind=FOR_COMFYUI)
    report = inspect_file(written.path)
    assert (report.adaln, report.prefix, report.qkv_order, report.loadable) == ("curve", "", "stacked", True)
    loaded = load_h3(written.path, **CPU)
    assert error(run(loaded), expected) < 1e-5
    found, wanted = loaded.modulation.tables(TIMES), base.modulation.tables(TIMES)
    assert torch.equal(found.blocks, wanted.blocks) and torch.equal(found.final, wanted.final)
    with safe_open(written.path, framework="pt") as file:
        names = set(file.keys())
        assert "rope.inv_freq" in names and not [name for name in names if "time_embedder" in name]
        assert file.get_tensor("blocks.1.adaln_proj.linear.bias").eq(0).all()
        assert file.get_tensor("adaln_t_table").dtype == torch.float32


def test_unit_curves_keep_close_times_apart():
    for ladder, rows in ((TIMES, 1025), ((0.0, 0.999, 1.0), 4097), ((0.5, 0.50001), 524289)):
        curve = unit_curve(ladder)
        assert curve.shape == (rows, len(ladder))
        for column, time in enumerate(ladder):
            for t in (
                torch.tensor(time),
                torch.tensor(time) * (1 - 1e-7),
                (torch.tensor(time) * (1 + 1e-7)).clamp(max=1.0),
            ):
                place = t * (rows - 1)
                low = int(place.floor().clamp(max=rows - 2))
                row = torch.lerp(curve[low], curve[low + 1], place - low)
                assert torch.equal(row, torch.eye(len(ladder))[column]), (ladder, time)
    with pytest.raises(ValueError, match="too close together"):
        unit_curve((0.5, 0.5 + 1e-7))


def test_adapters_are_merged_into_what_is_written(tmp_path, native, run, error):
    g = torch.Generator().manual_seed(1)
    state = {}
    for module in ("blocks.1.mlp.fc1", "blocks.1.adaln_proj.linear", "time_embedder.proj_out"):
        out, width = native[f"{module}.weight"].shape
        state[f"{module}.lora_A.weight"] = torch.randn(4, width, generator=g) * 0.3
        state[f"{module}.lora_B.weight"] = torch.randn(out, 4, generator=g) * 0.3
    save_file(state, tmp_path / "lora.safetensors")
    base = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], **CPU)
    adapted = with_adapter(base, tmp_path / "lora.safetensors", 0.7)
    written = write_table_checkpoint(adapted.modulation, TIMES, tmp_path / "t.safetensors", adapters=adapted.adapters)
    assert error(run(load_h3(written.path, **CPU)), run(adapted)) < 1e-6
    assert error(run(base), run(adapted)) > 1e-2


def test_adaln_adapters_fold_into_finished_tables_of_ours(tmp_path, native, run, error):
    """The file keeps what the projections read, so that their changes can still be added to what they gave."""
    g = torch.Generator().manual_seed(2)
    state = {}
    for module in ("blocks.0.adaln_proj.linear", "final_layer.adaln_proj.linear", "blocks.2.mlp.fc2"):
        out, width = native[f"{module}.weight"].shape
        state[f"{module}.lora_A.weight"] = torch.randn(4, width, generator=g) * 0.3
        state[f"{module}.lora_B.weight"] = torch.randn(out, 4, generator=g) * 0.3
    state["blocks.1.adaln_proj.linear.diff_b"] = torch.randn(1728, generator=g) * 0.1
    save_file(state, tmp_path / "lora.safetensors")
    base = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], **CPU)
    written = write_table_checkpoint(base.modulation, TIMES, tmp_path / "t.safetensors")
    folded = with_adapter(load_h3(written.path, **CPU), tmp_path / "lora.safetensors", 0.7)
    assert folded.adapters[0].summary.endswith("bound 4 of 4")
    assert error(run(folded), run(with_adapter(base, tmp_path / "lora.safetensors", 0.7))) < 1e-5
    time = {f"time_embedder.proj_out.lora_{end}.weight": torch.ones(s) for end, s in (("A", (2, 96)), ("B", (48, 2)))}
    save_file({**state, **time}, tmp_path / "time.safetensors")
    bound = with_adapter(load_h3(written.path, **CPU), tmp_path / "time.safetensors").adapters[0]
    for module in ("blocks.0.adaln_proj.linear", "blocks.1.adaln_proj.linear", "time_embedder.proj_out"):
        assert module in bound.summary
    assert "4 of the modulation, which moves with the time MLP" in bound.summary and "bound 1 of 5" in bound.summary


def test_a_written_file_is_not_written_twice_and_never_replaced(tmp_path, native):
    base = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], **CPU)
    first = write_table_checkpoint(base.modulation, TIMES, tmp_path / "t.safetensors")
    before = first.path.stat().st_mtime_ns
    again = write_table_checkpoint(base.modulation, reversed(TIMES), tmp_path / "t.safetensors")
    assert again.there and not first.there and first.path.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="is there already and holds something else"):
        write_table_checkpoint(base.modulation, [0.5], tmp_path / "t.safetensors")
    with pytest.raises(ValueError, match="no folder that can be written to"):
        write_table_checkpoint(base.modulation, TIMES, tmp_path / "nowhere" / "t.safetensors")
    with pytest.raises(ValueError, match="kind is 'other'"):
        write_table_checkpoint(base.modulation, TIMES, tmp_path / "u.safetensors", kind="other")


def test_an_interrupted_write_leaves_nothing(tmp_path, native):
    base = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], **CPU)
    before = set(tmp_path.iterdir())

    def stop(done, total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_table_checkpoint(base.modulation, TIMES, tmp_path / "t.safetensors", progress=stop)
    assert set(tmp_path.iterdir()) == before


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(tmp_path):
    huge = Planned("x", torch.bfloat16, (10**6, 10**7), lambda: torch.empty(0))
    with pytest.raises(ValueError, match=r"would have 20,000,000,000,\d+ bytes; .* free"):
        write_stream(tmp_path / "x.safetensors", [huge], {})
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_writing_and_building_hold_one_tensor_at_a_time(tmp_path, sparse):
    """Twenty tensors of 20 MB are written, and four projections of 130 MB turned into tables, in little memory."""
    script = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from streamrender_h3.nodes.loader.load import modulation_of\n"
        "from streamrender_h3.nodes.loader.stream_file import Planned, write_stream\n"
        "peak = lambda: int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) * 1024\n"
        "source, start = modulation_of(sys.argv[1]), peak()\n"
        "make = lambda: torch.full((10, 10**6), 0.5, dtype=torch.bfloat16)\n"
        "write_stream(sys.argv[2], [Planned(f't{i}', torch.bfloat16, (10, 10**6), make) for i in range(20)], {})\n"
        "written = peak()\n"
        "assert source.tables([0.0, 0.4]).blocks.shape == (4, 2, 3, 6, 1344)\n"
        "print(written - start, peak() - start)\n"
    )
    small = replace(RELEASE, layers=4, hidden=1344)
    model = sparse.write(tmp_path / "m.safetensors", sparse.release(small), {EXAMPLE_KEY: "true"})
    command = [sys.executable, "-c", script, str(model), str(tmp_path / "x.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    writing, building = map(int, done.stdout.split())
    assert (tmp_path / "x.safetensors").stat().st_size > 4e8 and writing < 120e6
    assert building < 400e6, f"{building / 1e6:.0f} MB; the projections are 520 MB as they are and 1.04 GB widened"


def test_what_is_written_says_where_it_comes_from(tmp_path, native):
    base = load_h3(write_h3(tmp_path / "m.safetensors", native, {"note": "tiny"})[0], **CPU)
    path = write_table_checkpoint(base.modulation, TIMES, tmp_path / "t.safetensors").path
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    facts = json.loads(metadata["streamrender_h3.tables"])
    assert facts["checkpoint"] == base.identity and len(facts["times"]) == 4 and facts["adapters"] == []
    assert (metadata["note"], metadata["qkv_layout"], metadata["fc1_layout"]) == ("tiny", "stacked", "gate first")


# -------------------------------------------------------------------------------------------------------------- the command


def command(*words):
    parser = ArgumentParser()
    tables_command.arguments(parser)
    return tables_command.run(parser.parse_args([str(word) for word in words]))


def test_the_command_writes_tables_and_checkpoints_with_adapters(tmp_path, native, capsys):
    model = write_h3(tmp_path / "m.safetensors", native)[0]
    down, up = torch.ones(2, 48) * 0.1, torch.ones(1728, 2) * 0.1
    name = "blocks.1.adaln_proj.linear.lora_{}.weight".format
    save_file({name("A"): down, name("B"): up}, tmp_path / "lora.safetensors")
    files = {kind: tmp_path / f"{kind}.safetensors" for kind in ("alone", "whole", "curve")}
    lora = ("--lora", f"{tmp_path / 'lora.safetensors'}:0.5")
    assert command(model, "--out", files["alone"], "--checkpoint-out", files["whole"], *lora) == 0
    assert command(model, "--checkpoint-out", files["curve"], "--for-comfyui", *lora) == 0
    assert command(model, "--checkpoint-out", files["curve"], "--for-comfyui", *lora) == 0
    printed = capsys.readouterr().out
    assert printed.count("bound 1 of 1") == 3 and printed.count("was there already") == 1
    wanted = with_adapter(load_h3(model, **CPU), tmp_path / "lora.safetensors", 0.5)
    tables = wanted.modulation.tables(TimeGrid.trailing(2).h3_times())
    assert torch.equal(load_tables(files["alone"], wanted.config).blocks, tables.blocks)
    for kind in ("whole", "curve"):
        found = load_h3(files[kind], **CPU)
        assert torch.equal(found.modulation.tables(tables.ladder).blocks, tables.blocks)
        assert torch.equal(found.model.blocks[1].mlp.fc1.weight, native["blocks.1.mlp.fc1.weight"])


def test_the_command_says_what_it_lacks(tmp_path, native):
    model = write_h3(tmp_path / "m.safetensors", native)[0]
    with pytest.raises(ValueError, match="nothing to write"):
        command(model)
    with pytest.raises(ValueError, match="--for-comfyui arrived without"):
        command(model, "--out", tmp_path / "t.safetensors", "--for-comfyui")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a.safetensors", ("a.safetensors", 1.0)),
        ("a:0.5", ("a", 0.5)),
        ("C:\\a", ("C:\\a", 1.0)),
        ("a:-1", ("a", -1.0)),
    ],
)
def test_a_strength_follows_the_last_colon(text, wanted):
    path, strength = adapter_of(text)
    assert (str(path), strength) == wanted
