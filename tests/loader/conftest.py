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


# -------------------------------------------------------------------- reduced forms of the modulation, from their formulas


def embedded(native: dict[str, torch.Tensor], times) -> torch.Tensor:
    """What full AdaLN projections read, float64 [n, 48]: cosines first, unscaled time, two layers, a SiLU at the end."""
    t = torch.tensor(times, dtype=torch.float32).double()
    angles = t[:, None] * torch.exp(-torch.log(torch.tensor(10000.0)).double() * torch.arange(128).double() / 128)
    x = torch.cat([angles.cos(), angles.sin()], 1)
    for layer, act in (("proj_in", True), ("proj_out", True)):
        x = x @ native[f"time_embedder.{layer}.weight"].double().T + native[f"time_embedder.{layer}.bias"].double()
        x = x * torch.sigmoid(x) if act else x
    return x


def projected(native: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Finished outputs of every projection, float64: "blocks.0" .. and "final_layer" -> [n, rows]."""
    layers = [*(f"blocks.{i}" for i in range(3)), "final_layer"]
    name = "{}.adaln_proj.linear.{}".format
    return {
        layer: x @ native[name(layer, "weight")].double().T + native[name(layer, "bias")].double() for layer in layers
    }


@pytest.fixture(scope="session")
def formulas():
    """`embedded` and `projected` for the test files."""

    class Formulas:
        embedded = staticmethod(embedded)
        projected = staticmethod(projected)

    return Formulas


@pytest.fixture(scope="session")
def reduced(twin, native):
    """Name of a reduced form -> its tensors as publishers write them, and `times` it holds (None for all)."""
    adaln = [*(f"blocks.{i}.adaln_proj.linear" for i in range(3)), "final_layer.adaln_proj.linear"]
    pruned = {name: t for name, t in native.items() if "time_embedder" not in name}

    def gates(prefix: str, module: str) -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(9)
        return {f"{prefix}.{i}.attn.{module}.weight": torch.randn(128, 96, generator=g) for i in range(3)}

    def trim(rank: int) -> dict[str, torch.Tensor]:
        """FastH3 Trim: diffusers names, directions of the curve of u(t), full biases, gates in all blocks."""
        samples = embedded(native, torch.linspace(0, 1, 4096).tolist())
        basis = torch.linalg.svd(samples, full_matrices=False).Vh[:rank]
        state = {**twin.state_dict(), **gates("transformer_blocks", "to_gate_compress")}
        state["adaln_basis.weight"] = basis.float()
        for name in [*(f"transformer_blocks.{i}.adaln_proj.linear.weight" for i in range(3)), "norm_out.linear.weight"]:
            state[name] = (state[name].double() @ basis.T).float()
        return state

    def curve(points: int, rank: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """ComfyUI's pruned form: coordinates of u(t) on a grid, the projections onto the same directions."""
        samples = embedded(native, torch.linspace(0, 1, points).tolist())
        basis = torch.linalg.svd(samples, full_matrices=False).Vh[:rank]
        state = {**pruned, "adaln_t_table": (samples @ basis.T).float()}
        for name in adaln:
            state[f"{name}.weight"] = (native[f"{name}.weight"].double() @ basis.T).to(dtype)
        return state

    def ladder() -> dict[str, torch.Tensor]:
        """A curve that holds four times exactly: unit vectors beside them, finished outputs as columns, no bias."""
        table = torch.zeros(1025, len(TIMES))
        for column, t in enumerate(TIMES):
            row = min(int(torch.tensor(t, dtype=torch.float32) * 1024), 1023)
            table[row, column] = table[row + 1, column] = 1.0
        state = {**pruned, "adaln_t_table": table}
        for layer, outputs in projected(native, embedded(native, TIMES)).items():
            state[f"{layer}.adaln_proj.linear.weight"] = outputs.T.float().contiguous()
            state[f"{layer}.adaln_proj.linear.bias"] = torch.zeros(outputs.shape[1])
        return state

    def baked(left_over: bool) -> dict[str, torch.Tensor]:
        """A FastH3 pack: rows in the order of the steps, some twice; gates under another name."""
        order = (0.0, 0.4, 1 / 7, 0.999, 0.0)
        state = {name: t for name, t in pruned.items() if "adaln" not in name}
        state |= gates("blocks", "vsa_gate")
        state["h3.fasth3.times"] = torch.tensor(order, dtype=torch.float32)
        state["h3.fasth3.version"] = state["h3.fasth3.steps"] = torch.tensor([2], dtype=torch.uint32)
        state["h3.fasth3.vsa.sparsity"] = torch.tensor([0.9])
        for layer, outputs in projected(native, embedded(native, order)).items():
            state["h3.fasth3.final.adaln" if layer == "final_layer" else f"h3.fasth3.{layer}.adaln"] = outputs.float()
        if left_over:  # converters fill in a pruned file and leave its own modulation where it was
            state |= {name: torch.zeros(4, 8) for name in ("adaln_t_table", "blocks.0.adaln_proj.linear.weight")}
        return {name: t.clone() for name, t in state.items()}

    forms = {
        "trim, all directions": lambda: trim(48),
        "trim, 16 directions": lambda: trim(16),
        "curve, 8 coordinates": lambda: curve(1025, 8, torch.float16),
        "curve, fine": lambda: curve(4097, 48, torch.float32),
        "curve, four times": ladder,
        "baked": lambda: baked(False),
        "baked over pruned": lambda: baked(True),
    }
    return lambda name: forms[name]()
