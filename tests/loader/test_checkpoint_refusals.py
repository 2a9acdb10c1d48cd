"""Every way a checkpoint can be wrong is refused before tensor data is read, with file, finding, need and remedy."""

import json
import re
import struct
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from streamrender_h3.nodes.loader import (
    EXAMPLE_KEY,
    CheckpointError,
    inspect_file,
    load_h3,
    open_checkpoint,
    read_header,
    write_h3,
)
from streamrender_h3.nodes.loader.checkpoint import Checkpoint
from streamrender_h3.nodes.model import RELEASE

CPU = {"dtype": torch.float32, "device": "cpu"}


@pytest.fixture(autouse=True)
def no_tensor_data(monkeypatch):
    """A refusal comes from headers: reading a tensor here is a failure of its own."""

    def read(self, name):
        raise AssertionError(f"tensor {name} was read")

    monkeypatch.setattr(Checkpoint, "read", read)


@pytest.fixture
def refused():
    """Loads and returns the error after checking that it has all its parts."""

    def refused(path, *words, at=None) -> CheckpointError:
        with pytest.raises(CheckpointError) as caught:
            load_h3(path, **CPU)
        error = caught.value
        assert str(error) == f"{at or path}: {error.found}. Needed: {error.needed}. {error.remedy}"
        assert error.found and error.needed and error.remedy.endswith(".")
        for word in words:
            assert word in str(error), f"{word!r} is not in: {error}"
        return error

    return refused


@pytest.fixture
def whole(tmp_path, native):
    return write_h3(tmp_path / "whole.safetensors", native)[0]


def rewrite(path, change):
    """Let `change(header dict)` edit the header of a file; the data stays."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


# -------------------------------------------------------------------------------------------------------- damaged files


def test_one_byte_too_few(whole, refused):
    raw = whole.read_bytes()
    whole.write_bytes(raw[:-1])
    error = refused(whole, f"{len(raw) - 1:,}", f"{len(raw):,}", "(1 are missing)", "Download the file again")
    assert "ends inside tensor 'dit." in error.found


def test_one_byte_too_many(whole, refused):
    whole.write_bytes(whole.read_bytes() + b"\0")
    refused(whole, "1 are too many")


def test_corrupt_json(whole, refused):
    raw = bytearray(whole.read_bytes())
    raw[9] = ord("!")
    whole.write_bytes(raw)
    refused(whole, "not valid JSON", "Download the file again")


def test_header_longer_than_the_file(whole, refused):
    raw = whole.read_bytes()
    whole.write_bytes(struct.pack("<Q", len(raw) - 7) + raw[8:])
    refused(whole, f"claims {len(raw) - 7:,} bytes", f"at most {len(raw) - 8:,} bytes")


def test_cut_inside_the_header(whole, refused):
    whole.write_bytes(whole.read_bytes()[:100])
    refused(whole, "the file has 100", "cut")


@pytest.mark.parametrize(("content", "word"), [(b"", "empty"), (b"\x10\0\0", "only 3 bytes")])
def test_empty_file(tmp_path, refused, content, word):
    path = tmp_path / "empty.safetensors"
    path.write_bytes(content)
    refused(path, word)


@pytest.mark.parametrize(
    "damage",
    [
        {"dtype": "F33"},
        {"shape": [7]},
        {"shape": [-1, 4]},
        {"shape": "96"},
        {"data_offsets": [0]},
        {"data_offsets": [True, 4]},
        {"note": 1},
    ],
    ids=str,
)
def test_header_entry_that_contradicts_itself(whole, refused, damage):
    rewrite(whole, lambda header: header["dit.blocks.1.norm1.weight"].update(damage))
    refused(whole, "'dit.blocks.1.norm1.weight'", "damaged")


def test_tensors_that_overlap(whole, refused):
    def overlap(header):
        entry = header["dit.blocks.1.norm2.weight"]
        entry["data_offsets"] = header["dit.blocks.1.norm1.weight"]["data_offsets"]

    rewrite(whole, overlap)
    refused(whole, "end to end")


def test_a_name_twice(tmp_path, refused):
    entry = '"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    text = f"{{{entry}, {entry}}}".encode()
    path = tmp_path / "twice.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 4)
    refused(path, "'a' twice")


# ----------------------------------------------------------------------------------------------- paths, shards, folders


@pytest.mark.parametrize("name", ["model.ckpt", "model.pt", "model.bin", "model.pth", "model.gguf", "model"])
def test_other_file_types_are_refused_unopened(tmp_path, refused, name):
    error = refused(tmp_path / name, ".safetensors")  # the file does not even exist
    assert "file type" in error.found


def test_no_such_file(tmp_path, refused):
    refused(tmp_path / "absent.safetensors", "no such file", "Check the path")


def test_missing_shard(tmp_path, native, refused):
    files = write_h3(tmp_path / "m.safetensors", native, shards=3)
    with safe_open(files[1], framework="pt") as file:
        held = list(file.keys())
    files[1].unlink()
    error = refused(files[0], files[1].name, "all 3 shards", f"Download {files[1].name}", at=files[1])
    named = re.search(r"lists it for tensor '(\S+)' and (\d+) more", error.found)
    assert named and named[1] in held and int(named[2]) == len(held) - 1


def test_missing_index(tmp_path, native, refused):
    files = write_h3(tmp_path / "m.safetensors", native, shards=3)
    files[-1].unlink()
    refused(files[0], "m.safetensors.index.json", "Download")


def test_shard_cut_by_one_byte(tmp_path, native, refused):
    files = write_h3(tmp_path / "m.safetensors", native, shards=3)
    files[2].write_bytes(files[2].read_bytes()[:-1])
    refused(files[0], "are missing)", at=files[2])


def edit_index(index, change):
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.write_text(json.dumps(content))


def test_index_names_a_tensor_that_is_not_there(tmp_path, native, refused):
    files = write_h3(tmp_path / "m.safetensors", native, shards=2)
    edit_index(files[-1], lambda listed: listed.update({"dit.blocks.9.norm1.weight": files[1].name}))
    refused(files[-1], "'dit.blocks.9.norm1.weight' is not in the shard", "again", at=files[1])


def test_shard_holds_a_tensor_the_index_does_not_list(tmp_path, native, refused):
    files = write_h3(tmp_path / "m.safetensors", native, shards=2)
    edit_index(files[-1], lambda listed: listed.pop("dit.blocks.0.norm1.weight"))
    refused(files[-1], "'dit.blocks.0.norm1.weight'", "does not list", at=files[0])


@pytest.mark.parametrize("file", ["../m.safetensors", "/m.safetensors", "a\\b.safetensors"])
def test_index_that_reaches_outside_its_folder(tmp_path, native, refused, file):
    files = write_h3(tmp_path / "m.safetensors", native, shards=2)
    edit_index(files[-1], lambda listed: listed.update({"x": file}))
    refused(files[-1], file, "own folder")


def test_index_of_pickle_files_is_refused(tmp_path, native, refused):
    files = write_h3(tmp_path / "m.safetensors", native, shards=2)
    edit_index(files[-1], lambda listed: listed.update({"x": "m.bin"}))
    refused(files[-1], ".bin", at=tmp_path / "m.bin")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_corrupt_index(tmp_path, native, refused, text):
    files = write_h3(tmp_path / "m.safetensors", native, shards=2)
    files[-1].write_text(text)
    refused(files[-1], "Download the index again")


def test_folder_without_safetensors(tmp_path, refused):
    refused(tmp_path, "no .safetensors file")
    (tmp_path / "transformer_ref").mkdir()
    (tmp_path / "transformer_ref" / "a.safetensors").write_bytes(b"")
    refused(tmp_path, "transformer_ref/")


def test_folder_with_two_models(tmp_path, native, refused):
    write_h3(tmp_path / "a.safetensors", native)
    write_h3(tmp_path / "b.safetensors", native)
    refused(tmp_path, "a.safetensors, b.safetensors", "Pick one")


def test_folder_with_one_file_or_one_set_opens(tmp_path, native):
    write_h3(tmp_path / "one" / "a.safetensors", native)
    write_h3(tmp_path / "set" / "a.safetensors", native, shards=2)
    assert not open_checkpoint(tmp_path / "one").sharded
    assert open_checkpoint(tmp_path / "set").sharded


# -------------------------------------------------------------------------------------------------- not the right model


def save(path, state, metadata=None):
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path, metadata=metadata)
    return path


def test_a_tae_is_not_an_h3_model(tmp_path, refused):
    names = {"encoder.0.weight": (8, 12, 3, 3), "decoder.1.weight": (8, 24, 3, 3), "decoder.22.weight": (12, 8, 3, 3)}
    path = save(tmp_path / "taeh3.safetensors", {name: torch.zeros(shape) for name, shape in names.items()})
    refused(path, "TAE", "Load H3 Encoder")


def test_an_unknown_file_is_not_an_h3_model(tmp_path, refused):
    refused(save(tmp_path / "x.safetensors", {"some.weight": torch.zeros(2)}), "some.weight", "Pick an H3")


def test_a_file_without_tensors_is_not_an_h3_model(tmp_path, refused):
    refused(save(tmp_path / "x.safetensors", {}), "holds no tensors")


@pytest.mark.parametrize(
    "name",
    [
        "blocks.1.mlp.fc2.weight",
        "video_patch_proj.weight",
        "blocks.0.attn.qkv_proj.weight",
        "final_layer.adaln_proj.linear.bias",
        "blocks.2.adaln_proj.linear.bias",
    ],
)
def test_a_missing_tensor(tmp_path, native, refused, name):
    state = {f"dit.{key}": tensor for key, tensor in native.items() if key != name}
    refused(save(tmp_path / "m.safetensors", state), f"1 missing tensor: dit.{name}", "exactly the 65 tensors")


def test_a_missing_tensor_of_diffusers_is_named_as_diffusers_does(tmp_path, twin, refused):
    state = {name: t for name, t in twin.state_dict().items() if name != "transformer_blocks.1.attn.to_k.weight"}
    path = save(tmp_path / "m.safetensors", state)
    refused(
        path, "1 missing tensor: transformer_blocks.1.attn.to_k.weight", "exactly the 74 tensors", "diffusers names"
    )


def test_an_extra_tensor(tmp_path, native, refused):
    path = save(tmp_path / "m.safetensors", {**native, "blocks.0.attn.extra.weight": torch.zeros(3)})
    refused(path, "1 unexpected tensor: blocks.0.attn.extra.weight")


@pytest.mark.parametrize("name", ["blocks.1.mlp.fc2.weight", "token_refiner.blocks.1.norm1.weight", "rope.inv_freq"])
def test_a_wrong_shape(tmp_path, native, refused, name):
    state = {**native, name: torch.zeros(7, 5)}
    wanted = list(native[name].shape)
    path = save(tmp_path / "m.safetensors", state)
    if name == "rope.inv_freq":  # carries a size itself
        refused(path, name, "(7, 5)")
    else:
        refused(path, f"{name} is [7, 5] instead of {wanted}")


def test_a_hole_in_the_block_numbers(tmp_path, native, refused):
    state = {name.replace("blocks.2.", "blocks.3."): t for name, t in native.items() if "refiner" not in name}
    state |= {name: t for name, t in native.items() if "refiner" in name}
    refused(save(tmp_path / "m.safetensors", state), "3 blocks 'blocks.N' up to number 3, but no number 2")


def test_gates_in_some_blocks_only(tmp_path, native, refused):
    path = save(tmp_path / "m.safetensors", {**native, "blocks.0.attn.to_gate_compress.weight": torch.zeros(128, 96)})
    refused(path, "2 missing tensors: blocks.1.attn.to_gate_compress.weight")


def test_config_json_that_promises_more_blocks(tmp_path, twin, refused):
    twin.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_layers": 4}))
    refused(tmp_path, "3 blocks and 2 refiner blocks", "4 and 2")


def test_a_streamrender_file_of_release_width_has_fifty_blocks_unless_it_says_it_is_an_example(
    tmp_path, sparse, refused
):
    tensors = sparse.release(replace(RELEASE, layers=42))
    path = sparse.write(tmp_path / "sr.safetensors", tensors)
    refused(path, "42 blocks", "StreamRender-H3 has 50 and 2")
    sparse.write(path, tensors, {EXAMPLE_KEY: "true"})
    with pytest.raises(AssertionError, match="was read"):  # past every refusal, on to the data
        load_h3(path, **CPU)


@pytest.mark.parametrize("layout", ["dit.", "", "diffusion_model.", "MiniMax shards", "diffusers", "trim", "curve"])
def test_forty_nine_blocks_are_refused_in_every_layout(layout, tmp_path, sparse, refused):
    """The file, a tensor that is not there, how many blocks there are and how many there must be."""
    tensors = {n.removeprefix("dit."): e for n, e in sparse.release(replace(RELEASE, layers=49)).items()}
    prefix, first, wanted = "", "blocks.49.norm1.weight", "MiniMax-H3 has 50 and 2"
    if layout in ("diffusers", "trim"):
        tensors, first = _as_diffusers(tensors), "transformer_blocks.49.norm1.weight"
        if layout == "trim":
            tensors["adaln_basis.weight"] = ("F32", (16, 2688))
            tensors |= {
                n: ("F32", (s[0], 16)) for n, (_, s) in tensors.items() if n.endswith("linear.weight") and len(s) > 1
            }
            first, wanted = "transformer_blocks.42.norm1.weight", "FastH3 Trim has 42 and 2"
    elif layout == "curve":
        tensors = {n: e for n, e in tensors.items() if "time_embedder" not in n} | {"adaln_t_table": ("F32", (1025, 8))}
        tensors |= {n: ("BF16", (s[0], 8)) for n, (_, s) in tensors.items() if n.endswith("adaln_proj.linear.weight")}
    elif layout == "MiniMax shards":
        (tmp_path / "config.json").write_text('{"_class_name": "MiniMaxH3DiTModel", "num_layers": 50}')
        wanted = "the model of its config.json has 50 and 2"
    else:
        prefix, wanted = layout, "StreamRender-H3 has 50 and 2" if layout == "dit." else wanted
    path = sparse.write(tmp_path / "m.safetensors", {prefix + n: e for n, e in tensors.items()})
    error = refused(path, "the model has 49 blocks and 2 refiner blocks", wanted, f"'{prefix}{first}' is")
    assert ("one too many" if layout == "trim" else "not there") in error.found


def _as_diffusers(tensors):
    """Names and shapes of the release in diffusers' spelling."""
    renamed = {
        "video_patch_proj": "proj_in",
        "audio_patch_proj": "audio_proj_in",
        "condition_proj": "context_embedder",
        "time_embedder.proj_in": "time_embedder.linear_1",
        "time_embedder.proj_out": "time_embedder.linear_2",
        "final_layer.norm": "norm_out.norm",
        "final_layer.adaln_proj.linear": "norm_out.linear",
        "final_layer.video_out": "proj_out",
        "final_layer.audio_out": "audio_proj_out",
        "attn.q_norm": "attn.norm_q",
        "attn.k_norm": "attn.norm_k",
        "attn.out_proj": "attn.to_out.0",
        "mlp.fc1": "ff.net.0.proj",
        "mlp.fc2": "ff.net.2",
    }
    state = {}
    for name, (dtype, shape) in tensors.items():
        module, _, kind = name.rpartition(".")
        stack = next((s for s in ("token_refiner.blocks", "blocks") if module.startswith(s + ".")), "")
        theirs = {"token_refiner.blocks": "token_refiner.refiner_blocks", "blocks": "transformer_blocks", "": ""}[stack]
        number, _, rest = module.removeprefix(stack + ".").partition(".") if stack else ("", "", module)
        base = f"{theirs}.{number}." if stack else ""
        if rest == "attn.qkv_proj":
            state |= {f"{base}attn.to_{x}.{kind}": (dtype, (shape[0] // 3, shape[1])) for x in "qkv"}
        elif name != "rope.inv_freq":
            state[f"{base}{renamed.get(rest, rest)}.{kind}"] = (dtype, shape)
    return state


def test_the_trimmed_model_of_forty_two_blocks_is_whole(tmp_path, sparse):
    tensors = _as_diffusers({n.removeprefix("dit."): e for n, e in sparse.release(replace(RELEASE, layers=42)).items()})
    tensors["adaln_basis.weight"] = ("F32", (16, 2688))
    tensors |= {n: ("F32", (s[0], 16)) for n, (_, s) in tensors.items() if n.endswith("linear.weight") and len(s) > 1}
    tensors |= {f"transformer_blocks.{i}.attn.to_gate_compress.weight": ("BF16", (7168, 5376)) for i in range(42)}
    report = inspect_file(sparse.write(tmp_path / "m.safetensors", tensors))
    assert report.loadable, report.reason
    assert (report.parameters, report.adaln, report.gates) == (18_688_516_864, "low rank", 42)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (
            {"adaln_t_table": torch.zeros(1025, 8)},
            ("blocks.0.adaln_proj.linear.weight is [1728, 48] instead of [1728, 8]",),
        ),
        ({"h3.fasth3.times": torch.zeros(4)}, ("4 missing tensors: h3.fasth3.blocks.0.adaln",)),
        ({"adaln_basis.weight": torch.zeros(16, 48)}, ("linear.weight is [192, 48] instead of [192, 16]",)),
        ({"adaln_basis.weight": torch.zeros(48, 40)}, ("adaln_basis.weight is [48, 40] instead of [48, 48]",)),
    ],
    ids=["curve", "baked", "low rank", "basis"],
)
def test_a_form_of_which_only_a_part_is_there_lists_the_rest(tmp_path, native, refused, extra, words):
    refused(save(tmp_path / "m.safetensors", {**native, **extra}), *words)


# ---------------------------------------------------------------------------------- forms that are recognised, not read


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"h3.transformer_input_major.version": torch.zeros(1)}, "lie transposed"),
        ({"scaled_fp8": torch.zeros(2)}, "scaled fp8"),
        ({"blocks.0.mlp.fc1.weight_scale_2": torch.zeros(())}, "ModelOpt NVFP4"),
        ({"blocks.0.mlp.fc1.weight_packed": torch.zeros(4, dtype=torch.uint8)}, "compressed-tensors NVFP4"),
        ({"blocks.0.mlp.fc1.weight": torch.zeros(320, 96).to(torch.float8_e4m3fn)}, "F8_E4M3"),
        ({"final_layer.video_out.weight": torch.zeros(4 * 96, 96)}, "4 output heads"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_form_that_is_not_read_is_refused_by_name(tmp_path, native, refused, extra, word):
    path = save(tmp_path / "m.safetensors", {**native, **extra})
    error = refused(path, word, "Use the full")
    assert "missing" not in error.found


def test_quantisation_that_only_the_metadata_tells(tmp_path, native, refused):
    refused(
        save(tmp_path / "m.safetensors", native, {"_quantization_metadata": "{}"}),
        "_quantization_metadata cannot be read",
    )


def test_a_model_without_adaln_projections_is_refused(tmp_path, native, refused):
    state = {name: tensor for name, tensor in native.items() if "adaln" not in name}
    refused(save(tmp_path / "m.safetensors", state), "no AdaLN projections")


def test_read_header_reports_places_and_metadata(whole, native):
    header = read_header(whole)
    info = header.tensors["dit.blocks.0.mlp.fc1.weight"]
    assert (info.dtype, info.shape, info.nbytes, info.parameters) == ("F32", (320, 96), 122880, 30720)
    data = whole.read_bytes()[info.start : info.stop]
    assert torch.equal(
        torch.frombuffer(bytearray(data), dtype=torch.float32).view(320, 96), native["blocks.0.mlp.fc1.weight"]
    )
    assert header.metadata["qkv_layout"] == "stacked"
