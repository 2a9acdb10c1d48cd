"""One tiny model, written in every layout the loader reads, gives diffusers' own output."""

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from streamrender_h3.nodes.loader import CheckpointError, load_h3, write_h3, write_tables
from streamrender_h3.nodes.model import FLOAT32_TENSORS, H3, OffLadderError, load_tables

CPU = {"dtype": torch.float32, "device": "cpu"}
TIMES = (0.0, 1 / 7, 0.4, 0.999)


def save(path, state, prefix="", metadata=None):
    save_file({prefix + name: tensor.contiguous() for name, tensor in state.items()}, path, metadata=metadata)
    return path


def save_shards(folder, state, stem="model", count=3, prefix=""):
    names = list(state)
    parts = [names[i::count] for i in range(count)]
    files = [f"{stem}-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    for file, part in zip(files, parts, strict=True):
        save(folder / file, {name: state[name] for name in part}, prefix)
    listed = {prefix + name: file for file, part in zip(files, parts, strict=True) for name in part}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    return [folder / file for file in files]


@pytest.fixture
def shipped(tmp_path, twin, native, grouped):
    """Name of a layout -> path to give to the loader."""

    def shipped(layout: str):
        if layout == "streamrender, one file":
            return write_h3(tmp_path / "sr.safetensors", native)[0]
        if layout == "streamrender, a shard":
            return write_h3(tmp_path / "sr.safetensors", native, shards=4)[2]
        if layout == "streamrender, the index":
            return write_h3(tmp_path / "sr.safetensors", native, shards=4)[-1]
        if layout.startswith("comfyui"):
            prefix = layout.removeprefix("comfyui ").replace("bare", "")
            return save(tmp_path / "comfy.safetensors", native, prefix)
        if layout == "minimax, a shard":
            return save_shards(tmp_path, grouped)[1]
        if layout == "minimax, one file with config.json":
            (tmp_path / "config.json").write_text(json.dumps({"_class_name": "MiniMaxH3DiTModel", "num_layers": 3}))
            return save(tmp_path / "model.safetensors", grouped)
        if layout == "grouped by metadata":
            return save(tmp_path / "model.safetensors", grouped, metadata={"qkv_layout": "grouped"})
        if layout == "diffusers, the folder":
            twin.save_pretrained(tmp_path, max_shard_size="1MB")
            return tmp_path
        if layout == "diffusers, one file":
            return save(tmp_path / "d.safetensors", twin.state_dict())
        assert layout == "fasth3, gates"
        gates = {f"transformer_blocks.{i}.attn.to_gate_compress.weight": torch.ones(128, 96) for i in range(3)}
        return save(tmp_path / "fast.safetensors", {**twin.state_dict(), **gates})

    return shipped


@pytest.mark.parametrize(
    "layout",
    [
        "streamrender, one file",
        "streamrender, a shard",
        "streamrender, the index",
        "comfyui bare",
        "comfyui diffusion_model.",
        "comfyui model.diffusion_model.",
        "minimax, a shard",
        "minimax, one file with config.json",
        "grouped by metadata",
        "diffusers, the folder",
        "diffusers, one file",
        "fasth3, gates",
    ],
)
def test_every_layout_gives_diffusers_output(layout, shipped, run, expected, error):
    loaded = load_h3(shipped(layout), **CPU)
    assert error(run(loaded), expected) < 1e-5
    assert loaded.config.layers == 3 and loaded.config.gate_compress == layout.startswith("fasth3")
    assert ("dense attention does not" in " ".join(loaded.notes)) == layout.startswith("fasth3")


def test_a_grouped_file_read_as_stacked_differs(tmp_path, grouped, run, expected, error):
    path = save(tmp_path / "model.safetensors", grouped, metadata={"qkv_layout": "grouped"})
    assert error(run(load_h3(path, qkv_order="stacked", **CPU)), expected) > 1e-2


def test_a_stacked_file_can_be_read_as_grouped_only_by_asking(tmp_path, native, run, expected, error):
    path = save(tmp_path / "model.safetensors", native)
    assert error(run(load_h3(path, **CPU)), expected) < 1e-5
    assert error(run(load_h3(path, qkv_order="grouped", **CPU)), expected) > 1e-2
    with pytest.raises(ValueError, match="per head"):
        load_h3(path, qkv_order="per head", **CPU)


def test_up_first_halves_under_native_names_differ(tmp_path, native, run, expected, error):
    swapped = {name: t.roll(len(t) // 2, 0) if "mlp.fc1" in name else t for name, t in native.items()}
    assert error(run(load_h3(save(tmp_path / "m.safetensors", swapped), **CPU)), expected) > 1e-2


def test_the_loaded_model_has_no_adaln_weights_and_the_tables_equal_the_full_model(
    tmp_path, native, inputs, run, error
):
    loaded = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], **CPU)
    assert not [name for name in loaded.model.state_dict() if "adaln" in name or "time_embedder" in name]
    assert not loaded.model.training and not any(weight.requires_grad for weight in loaded.model.parameters())
    full = H3(loaded.config)
    full.load_state_dict(native)
    loaded_full = type("Full", (), {"model": full, "modulation": loaded.modulation})
    direct = full.modulation(TIMES)
    found = loaded.modulation.tables(TIMES).at(TIMES)
    for block in range(3):
        torch.testing.assert_close(found.block(block), direct.block(block), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.final(), direct.final(), rtol=1e-6, atol=1e-6)
    assert error(run(loaded), run(loaded_full)) < 1e-6


def test_tables_are_built_once_per_set_of_times_and_refuse_others(tmp_path, native, monkeypatch):
    loaded = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], **CPU)
    tables = loaded.modulation.tables(TIMES)
    assert loaded.modulation.tables([*reversed(TIMES), -0.0]) is tables
    assert loaded.modulation.tables([0.5]) is not tables
    assert tables.identity == {"checkpoint": loaded.identity}
    with pytest.raises(OffLadderError, match=r"0\.25"):
        tables.at([0.25])


def test_adaln_projections_are_read_when_tables_are_built_and_not_before(tmp_path, native, monkeypatch):
    from streamrender_h3.nodes.loader.checkpoint import Checkpoint

    read, original = [], Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda self, name: read.append(name) or original(self, name))
    loaded = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], **CPU)
    assert read and not [name for name in read if "adaln" in name]
    loaded.modulation.tables(TIMES)
    assert len({name for name in read if "adaln_proj.linear.weight" in name}) == 4


def test_the_float32_set_stays_float32_in_a_bfloat16_model(tmp_path, native):
    loaded = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], dtype=torch.bfloat16, device="cpu")
    for name, tensor in loaded.model.state_dict().items():
        assert tensor.dtype == (torch.float32 if name in FLOAT32_TENSORS else torch.bfloat16), name
        assert torch.equal(tensor, native[name].to(tensor.dtype)), name
    tables = loaded.modulation.tables(TIMES)
    assert tables.blocks.dtype == torch.bfloat16 and tables.times.dtype == torch.float32
    assert len([note for note in loaded.notes if "widened" in note]) == 0


def test_a_file_that_stores_the_float32_set_in_bfloat16_is_widened_with_a_warning(tmp_path, native, caplog):
    rounded = {name: tensor.bfloat16() for name, tensor in native.items()}
    path = write_h3(tmp_path / "m.safetensors", rounded)[0]
    with caplog.at_level(logging.WARNING):
        loaded = load_h3(path, dtype=torch.bfloat16, device="cpu")
    assert "video_patch_proj.weight" in caplog.text and "rope.inv_freq" in caplog.text
    state = loaded.model.state_dict()
    assert all(state[name].dtype == torch.float32 for name in FLOAT32_TENSORS if name in state)
    assert torch.equal(state["rope.inv_freq"], native["rope.inv_freq"]), "the rotary frequencies are known exactly"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of memory maps")
def test_unconverted_weights_stay_in_the_memory_map(tmp_path, native):
    loaded = load_h3(write_h3(tmp_path / "m.safetensors", native)[0], **CPU)
    assert str(tmp_path) in Path("/proc/self/maps").read_text(), "the weights of a CPU model are pages of the file"
    assert torch.equal(loaded.model.blocks[1].mlp.fc2.weight, native["blocks.1.mlp.fc2.weight"])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's count of anonymous memory")
def test_the_released_model_loads_on_a_machine_with_less_memory_than_the_file(tmp_path, sparse):
    """66 GB of file, of them 40 GB of model, mapped: what has to be copied is a few megabytes."""

    def anonymous() -> int:
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024

    path = sparse.write(tmp_path / "sr.safetensors", sparse.release())
    before = anonymous()
    loaded = load_h3(path, dtype=torch.bfloat16, device="cpu")
    assert sum(tensor.nbytes for tensor in loaded.model.state_dict().values()) == 40_138_350_656
    assert anonymous() - before < 200e6


def test_a_header_of_odd_length_loads_too(tmp_path, native, run, expected, error):
    """The format's own writer pads to eight bytes; others need not, and every tensor is then misaligned."""
    path = write_h3(tmp_path / "m.safetensors", native)[0]
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].rstrip()
    header += b" " * (1 - len(header) % 2)
    assert len(header) % 2
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    loaded = load_h3(path, **CPU)
    assert error(run(loaded), expected) < 1e-5


def test_changing_a_loaded_weight_leaves_the_file_alone(tmp_path, native):
    path = write_h3(tmp_path / "m.safetensors", native)[0]
    before = path.read_bytes()
    loaded = load_h3(path, **CPU)
    loaded.model.blocks[0].mlp.fc1.weight.zero_()
    assert path.read_bytes() == before


def test_identity_tells_weights_of_the_same_shapes_apart(tmp_path, native):
    """FL2VA and Ref2VA files have the same header and the same size."""
    other = {name: tensor + 1 for name, tensor in native.items()}
    first, again, changed = (
        load_h3(write_h3(tmp_path / f"{number}.safetensors", state)[0], **CPU).identity
        for number, state in enumerate([native, native, other])
    )
    assert first == again != changed


def test_progress_counts_up_and_may_interrupt(tmp_path, native):
    path = write_h3(tmp_path / "m.safetensors", native)[0]
    seen = []
    load_h3(path, progress=lambda done, total: seen.append((done, total)), **CPU)
    assert seen == [(i + 1, len(seen)) for i in range(len(seen))]

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_h3(path, progress=stop, **CPU)


def test_written_tables_equal_the_ones_built_in_memory(tmp_path, native):
    path = write_h3(tmp_path / "m.safetensors", native)[0]
    loaded = load_h3(path, **CPU)
    write_tables(path, TIMES, tmp_path / "t.safetensors")
    tables = load_tables(tmp_path / "t.safetensors", loaded.config)
    assert torch.equal(tables.blocks, loaded.modulation.tables(TIMES).blocks)
    assert tables.identity == {"checkpoint": loaded.identity}


def test_tables_for_a_folder_that_does_not_exist_are_refused_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="no folder that can be written to"):
        write_tables(tmp_path / "absent.safetensors", TIMES, tmp_path / "nowhere" / "t.safetensors")


def test_the_writer_takes_a_module_and_refuses_one_without_adaln(tmp_path, native, run, expected, error):
    loaded = load_h3(write_h3(tmp_path / "a.safetensors", native)[0], **CPU)
    with pytest.raises(ValueError, match="adaln"):
        write_h3(tmp_path / "b.safetensors", loaded.model)
    full = H3(loaded.config)
    full.load_state_dict(native)
    files = write_h3(tmp_path / "c.safetensors", full, {"note": "made for a test"}, shards=3)
    assert [file.name for file in files] == [
        *(f"c-0000{i}-of-00003.safetensors" for i in (1, 2, 3)),
        "c.safetensors.index.json",
    ]
    again = load_h3(files[0], **CPU)
    assert again.metadata["note"] == "made for a test" and error(run(again), expected) < 1e-5


def test_a_file_that_changes_between_loading_and_building_tables_is_an_error(tmp_path, native):
    path = write_h3(tmp_path / "m.safetensors", native)[0]
    loaded = load_h3(path, **CPU)
    path.unlink()
    write_h3(path, native, {"another": "file"})
    with pytest.raises(CheckpointError, match="changed since"):
        loaded.modulation.tables(TIMES)
