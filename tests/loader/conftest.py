"""A tiny H3 with random weights, twice: as diffusers' own class, and as canonical tensors, converted by loops that
share nothing with the loader. Default initialisation hides layout errors, so every weight is drawn large."""

import json
import struct
from pathlib import Path

import pytest
import torch
from diffusers import MiniMaxH3Transformer3DModel
from streamrender_h3.nodes.model import RELEASE, H3Config, PackedRows, modulation_rows

TINY = {
    "num_attention_heads": 4,
    "attention_head_dim": 32,
    "hidden_size": 96,
    "num_layers": 3,
    "num_refiner_layers": 2,
    "ffn_dim": 160,
    "text_dim": 80,
    "freq_dim": 256,
    "time_embed_hidden_dim": 96,
    "time_embed_dim": 48,
    "rope_freq_dim": 4,
}
TIMES = (0.0, 1 / 7, 0.4, 0.999)


@pytest.fixture(scope="session")
def twin() -> MiniMaxH3Transformer3DModel:
    """diffusers' class with large random weights."""
    model = MiniMaxH3Transformer3DModel(**TINY).eval().requires_grad_(False)
    g = torch.Generator().manual_seed(5)
    for name, weight in model.named_parameters():
        norm = weight.ndim == 1 and not name.endswith("bias")
        weight.copy_(torch.randn(weight.shape, generator=g) * (0.1 if norm else 0.08) + float(norm))
    return model


@pytest.fixture(scope="session")
def native(twin) -> dict[str, torch.Tensor]:
    """The same weights in canonical names and row orders, with rope.inv_freq."""
    renamed = (
        ("token_refiner.refiner_blocks", "token_refiner.blocks"),
        ("transformer_blocks", "blocks"),
        ("audio_proj_in", "audio_patch_proj"),
        ("audio_proj_out", "final_layer.audio_out"),
        ("context_embedder", "condition_proj"),
        ("time_embedder.linear_1", "time_embedder.proj_in"),
        ("time_embedder.linear_2", "time_embedder.proj_out"),
        ("norm_out.norm", "final_layer.norm"),
        ("norm_out.linear", "final_layer.adaln_proj.linear"),
        ("attn.norm_q", "attn.q_norm"),
        ("attn.norm_k", "attn.k_norm"),
        ("attn.to_out.0", "attn.out_proj"),
        ("ff.net.0.proj", "mlp.fc1"),
        ("ff.net.2", "mlp.fc2"),
    )
    given, state = twin.state_dict(), {}
    for name, tensor in given.items():
        if ".to_k." in name or ".to_v." in name:
            continue
        if ".to_q." in name:
            tensor = torch.cat([given[name.replace("to_q", f"to_{part}")] for part in "qkv"])
            name = name.replace("to_q", "qkv_proj")
        if "ff.net.0.proj" in name:
            half = len(tensor) // 2
            tensor = torch.cat([tensor[half:], tensor[:half]])
        for theirs, ours in renamed:
            name = name.replace(theirs, ours)
        if name.startswith("proj_"):
            name = name.replace("proj_in", "video_patch_proj").replace("proj_out", "final_layer.video_out")
        state[name] = tensor.clone()
    state["rope.inv_freq"] = torch.tensor([10000.0 ** (-2 * i / 8) for i in range(4)])
    return state


@pytest.fixture(scope="session")
def grouped(native) -> dict[str, torch.Tensor]:
    """The canonical tensors with qkv rows per head, as MiniMax publishes them."""
    state = dict(native)
    for name in [name for name in state if "qkv_proj" in name]:
        q, k, v = state[name].chunk(3)
        heads = [part[32 * head : 32 * head + 32] for head in range(4) for part in (q, k, v)]
        state[name] = torch.cat(heads)
    return state


@pytest.fixture(scope="session")
def inputs() -> dict[str, torch.Tensor]:
    """Rows in the order text, picture and reference, audio, video, with mixed tags and four times."""
    g = torch.Generator().manual_seed(6)
    counts = {"text": (6, 80), "before": (5, 96), "audio": (4, 32), "video": (8, 96)}
    rows = {name: torch.randn(*shape, generator=g) for name, shape in counts.items()}
    tags = torch.tensor([0, 0, 1, 1, 1, 1] + [0] * 5 + [2] * 4 + [0] * 8)
    time_index = torch.tensor([1] * 6 + [3] * 5 + [3, 2, 2, 2] + [3] * 2 + [1] * 4 + [0] * 2)
    positions = torch.rand(23, 3, generator=g, dtype=torch.float64) * 30
    return {**rows, "tags": tags, "time_index": time_index, "positions": positions}


@pytest.fixture(scope="session")
def expected(twin, inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Velocities of all video and audio rows by diffusers' class."""
    places = torch.arange(23).split([6, 5, 4, 8])
    visual = torch.cat([inputs["before"], inputs["video"]])
    video, audio = twin(
        visual[None],
        inputs["audio"][None],
        inputs["text"][None],
        torch.tensor(TIMES),
        inputs["time_index"],
        inputs["tags"],
        inputs["positions"],
        torch.cat([places[1], places[3]]),
        places[2],
        places[0],
        return_dict=False,
    )
    return video[0, 5:], audio[0]


@pytest.fixture(scope="session")
def run(inputs):
    """Velocities of a loaded model over the same rows."""

    @torch.no_grad()
    def run(loaded) -> tuple[torch.Tensor, torch.Tensor]:
        model = loaded.model
        rows = PackedRows(
            text=model.refine_text(inputs["text"]),
            before=inputs["before"],
            audio=inputs["audio"],
            video=inputs["video"],
            rope=model.rope(inputs["positions"]),
            modulation_row=modulation_rows(inputs["time_index"], inputs["tags"]),
            time_index=inputs["time_index"],
            predict_video=slice(None),
            predict_audio=slice(None),
        )
        return model(rows, loaded.modulation.tables(TIMES).at(TIMES))

    return run


@pytest.fixture(scope="session")
def error():
    """Relative error of both velocities together."""

    def error(found, wanted) -> float:
        found, wanted = (torch.cat([part.flatten() for part in parts]).double() for parts in (found, wanted))
        return ((found - wanted).norm() / wanted.norm()).item()

    return error


def release_shapes(config: H3Config = RELEASE) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (dtype, shape) of every tensor of a merged StreamRender checkpoint, from the published sizes."""
    d, inner, f, t = config.hidden, config.heads * config.head_dim, config.ffn, config.time_dim
    block = {
        "norm1.weight": (d,),
        "norm2.weight": (d,),
        "attn.qkv_proj.weight": (3 * inner, d),
        "attn.q_norm.weight": (config.head_dim,),
        "attn.k_norm.weight": (config.head_dim,),
        "attn.out_proj.weight": (d, inner),
        "mlp.fc1.weight": (2 * f, d),
        "mlp.fc2.weight": (d, f),
    }
    adaln = {"adaln_proj.linear.weight": (18 * d, t), "adaln_proj.linear.bias": (18 * d,)}
    outer = {
        "condition_proj.weight": (d, config.text_dim),
        "condition_proj.bias": (d,),
        "token_refiner.final_norm.weight": (d,),
        "final_layer.norm.weight": (d,),
        "final_layer.adaln_proj.linear.weight": (2 * d, t),
        "final_layer.adaln_proj.linear.bias": (2 * d,),
    }
    single = {
        "video_patch_proj": (d, 96),
        "audio_patch_proj": (d, 32),
        "time_embedder.proj_in": (config.time_hidden, config.freq_dim),
        "time_embedder.proj_out": (t, config.time_hidden),
        "final_layer.video_out": (96, d),
        "final_layer.audio_out": (32, d),
    }
    names = {name: ("BF16", shape) for name, shape in outer.items()}
    for name, shape in single.items():
        names |= {f"{name}.weight": ("F32", shape), f"{name}.bias": ("F32", shape[:1])}
    names["rope.inv_freq"] = ("F32", (config.rope_freqs,))
    for i in range(config.refiner_layers):
        names |= {f"token_refiner.blocks.{i}.{name}": ("BF16", shape) for name, shape in block.items()}
    for i in range(config.layers):
        names |= {f"blocks.{i}.{name}": ("BF16", shape) for name, shape in {**block, **adaln}.items()}
    return {f"dit.{name}": entry for name, entry in names.items()}


def write_sparse(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str] | None = None):
    """A safetensors file with a true header and a hole for data: 66 GB of it take a few kilobytes of disk."""
    size = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1, "I64": 8}
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape) in tensors.items():
        count = size[dtype]
        for length in shape:
            count *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + count]}
        offset += count
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + offset)
    return path


@pytest.fixture
def sparse():
    """`write_sparse` and `release_shapes` for the test files."""

    class Sparse:
        write = staticmethod(write_sparse)
        release = staticmethod(release_shapes)

    return Sparse
