"""Writes a tiny Qwen3-VL folder in the real file format: random weights, a tokenizer trained on our own text.

It stands in for the 66 GB text encoder where the graph must run on two CPU cores. The weights are drawn so that the
states are useful without training: residual rows keep unit-like RMS, attention is sharp enough to carry content between
rows, and the vision tower keeps colour and place, so different prompts and pictures give clearly different rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ...nodes.look.prompt import (
    EXAMPLE,
    EXAMPLE_CLASSES,
    RACING_COLOURS,
    RETENTION,
    SECTIONS,
    TASKS,
    build_prompt,
)

PATCH, MERGE, TEMPORAL, CHANNELS = 16, 2, 2, 3
HEAD_DIM, VISION_HEADS, VISION_HIDDEN, VISION_DEPTH = 32, 2, 32, 2
PLACES = 256  # learned vision positions, a 16x16 grid resampled to every picture
VOCABULARY = 1536
SPECIAL = ("<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
# The pre-tokenizer of the Qwen2 family; transformers rebuilds it from the class name, so it must be the same here.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LEXICON = """
morning noon afternoon evening night dawn dusk sunrise sunset midnight golden hour blue hour overcast cloudy clear sunny
rain rainy drizzle storm thunder lightning fog foggy mist misty haze snow snowy ice icy frost wind windy dust dusty heat
spring summer autumn winter desert forest mountain valley coast beach harbor city town village farm field meadow hills
asphalt concrete gravel sand dirt mud cobblestone tarmac painted wet dry cracked smooth rough glossy matte shiny rusty
road edge kerb curb lane line lines marking shoulder bridge tunnel corner bend straight hill crest junction roundabout
terrain grass vegetation tree trees pine pines birch oak palm palms bush bushes hedge flowers leaves rock rocks cliff
barrier guard rail rails fence wall tires stands grandstand crowd spectators building buildings house houses lodge barn
tower factory garage hotel billboard boards advertising sign signs banner lamp lamps street light lights neon windows
sky cloud clouds sun moon stars horizon aurora rainbow hero car player opponent cars rival rivals truck van bus coupe
sedan hatchback rally racing wagon roadster buggy wheels rims roof wing spoiler hood bumper tailgate number stripes
red orange yellow green olive cyan blue steel navy purple violet magenta pink white black grey gray silver gold brown
beige cream teal turquoise bronze copper dark light pale bright deep warm cool vivid muted pastel monochrome sepia
photoreal cinematic film grain anime watercolor oil painting sketch clay toy model miniature retro vintage modern
futuristic cyberpunk noir stylized realistic soft hard contrast shadow shadows reflection reflections glow bloom lens
flare blur motion sharp detail texture materials camera shot frame video picture drive chase follow trails behind above
engine turbo gears exhaust pops tires hiss squeal skid wind birds rain thunder crowd cheering music voices silence hum
"""


def write_qwen(
    folder: str | Path,
    seed: int,
    *,
    hidden_text: int = 96,
    layers: int = 4,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Write ``config.json``, ``preprocessor_config.json``, the tokenizer files and ``model.safetensors`` to ``folder``.

    ``hidden_text`` is the width of the text states (the ``text_dim`` of the transformer they condition), at least 32;
    ``layers`` counts decoder layers, at least 3 because the two DeepStack features enter after the
    first two. The same arguments give byte-identical files. Returns the folder.
    """
    if hidden_text < HEAD_DIM:
        raise ValueError(f"hidden_text is {hidden_text}; at least {HEAD_DIM} is needed, for example 96.")
    if layers <= VISION_DEPTH:
        raise ValueError(f"layers is {layers}; at least {VISION_DEPTH + 1} are needed to take in the picture features.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    ids = _write_tokenizer(folder)
    vocabulary = math.ceil((max(ids.values()) + 1) / 64) * 64
    _write_json(folder / "config.json", _config(hidden_text, layers, vocabulary, ids))
    _write_json(folder / "preprocessor_config.json", _preprocessor())
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: tensor.to(dtype).contiguous() for name, tensor in _weights(hidden_text, layers, vocabulary, generator)
    }
    # One metadata key only: the writer does not keep the order of several, and the file would differ from run to run.
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _config(hidden: int, layers: int, vocabulary: int, ids: dict[str, int]) -> dict:
    heads = hidden // HEAD_DIM
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": _kv_heads(heads),
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5_000_000,
            # Sections sum to half a head; 6, 5, 5 interleaves evenly as 24, 20, 20 does in the full model.
            "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]},
            "use_cache": False,
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": VISION_DEPTH,
            "hidden_size": VISION_HIDDEN,
            "intermediate_size": 2 * VISION_HIDDEN,
            "num_heads": VISION_HEADS,
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": CHANNELS,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": TEMPORAL,
            "num_position_embeddings": PLACES,
            "out_hidden_size": hidden,
            "deepstack_visual_indexes": list(range(VISION_DEPTH)),
        },
    }


def _preprocessor() -> dict:
    return {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": TEMPORAL,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    }


def _kv_heads(heads: int) -> int:
    return heads // 2 if heads % 2 == 0 else heads


def _weights(hidden: int, layers: int, vocabulary: int, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by its native name, drawn in this order; the gains give rows of RMS near 1 at the last layer."""

    def normal(*shape: int, gain: float = 1.0, fan_in: int = 1) -> Tensor:
        return torch.randn(shape, generator=generator) * (gain / math.sqrt(fan_in))

    heads = hidden // HEAD_DIM
    kv, wide, inner = _kv_heads(heads) * HEAD_DIM, heads * HEAD_DIM, 3 * hidden
    text = "model.language_model."
    yield text + "embed_tokens.weight", normal(vocabulary, hidden, gain=0.7)
    for layer in range(layers):
        block = f"{text}layers.{layer}."
        yield block + "input_layernorm.weight", torch.ones(hidden)
        yield block + "self_attn.q_proj.weight", normal(wide, hidden, fan_in=hidden)
        yield block + "self_attn.k_proj.weight", normal(kv, hidden, fan_in=hidden)
        yield block + "self_attn.v_proj.weight", normal(kv, hidden, fan_in=hidden)
        yield block + "self_attn.o_proj.weight", normal(hidden, wide, gain=0.5, fan_in=wide)
        # Unit q and k norms would average over a thousand rows; a gain of sqrt(3) each picks out a few of them.
        yield block + "self_attn.q_norm.weight", torch.full((HEAD_DIM,), math.sqrt(3.0))
        yield block + "self_attn.k_norm.weight", torch.full((HEAD_DIM,), math.sqrt(3.0))
        yield block + "post_attention_layernorm.weight", torch.ones(hidden)
        yield block + "mlp.gate_proj.weight", normal(inner, hidden, fan_in=hidden)
        yield block + "mlp.up_proj.weight", normal(inner, hidden, fan_in=hidden)
        yield block + "mlp.down_proj.weight", normal(hidden, inner, gain=0.6, fan_in=inner)
    yield text + "norm.weight", torch.ones(hidden)

    seen, merged = VISION_HIDDEN, VISION_HIDDEN * MERGE * MERGE
    vision = "model.visual."
    features = CHANNELS * TEMPORAL * PATCH * PATCH
    # Fan-in counts one frame: the picture is doubled in time, so its two halves always agree.
    pixels = normal(seen, CHANNELS, TEMPORAL, PATCH, PATCH, fan_in=features)
    # Flat areas matter most in a picture: the mean colour of a patch gets weights that do not cancel over its pixels.
    colour = normal(seen, CHANNELS, 1, 1, 1, gain=1.2, fan_in=CHANNELS) / (TEMPORAL * PATCH * PATCH)
    yield vision + "patch_embed.proj.weight", pixels + colour
    yield vision + "patch_embed.proj.bias", normal(seen, gain=0.1)
    yield vision + "pos_embed.weight", normal(PLACES, seen, gain=0.4)
    for layer in range(VISION_DEPTH):
        block = f"{vision}blocks.{layer}."
        yield block + "norm1.weight", torch.ones(seen)
        yield block + "norm1.bias", torch.zeros(seen)
        yield block + "attn.qkv.weight", normal(3 * seen, seen, gain=1.5, fan_in=seen)
        yield block + "attn.qkv.bias", torch.zeros(3 * seen)
        yield block + "attn.proj.weight", normal(seen, seen, gain=0.4, fan_in=seen)
        yield block + "attn.proj.bias", torch.zeros(seen)
        yield block + "norm2.weight", torch.ones(seen)
        yield block + "norm2.bias", torch.zeros(seen)
        yield block + "mlp.linear_fc1.weight", normal(2 * seen, seen, fan_in=seen)
        yield block + "mlp.linear_fc1.bias", torch.zeros(2 * seen)
        yield block + "mlp.linear_fc2.weight", normal(seen, 2 * seen, gain=0.6, fan_in=2 * seen)
        yield block + "mlp.linear_fc2.bias", torch.zeros(seen)
    mergers = [(f"{vision}merger.", seen, 1.2)]
    mergers += [(f"{vision}deepstack_merger_list.{index}.", merged, 0.5) for index in range(VISION_DEPTH)]
    for name, norm, gain in mergers:
        yield name + "norm.weight", torch.ones(norm)
        yield name + "norm.bias", torch.zeros(norm)
        yield name + "linear_fc1.weight", normal(merged, merged, fan_in=merged)
        yield name + "linear_fc1.bias", torch.zeros(merged)
        yield name + "linear_fc2.weight", normal(hidden, merged, gain=gain, fan_in=merged)
        yield name + "linear_fc2.bias", torch.zeros(hidden)


def _corpus() -> list[str]:
    """Our own text: the example prompt, its frame without rivals, and the words people describe drives with."""
    prompts = [build_prompt(EXAMPLE, EXAMPLE_CLASSES), build_prompt(EXAMPLE, {"road": "purple", "hero_car": "red"})]
    names = ", ".join([*RACING_COLOURS, *RACING_COLOURS.values(), *SECTIONS, *TASKS, *RETENTION]).replace("_", " _")
    words = " ".join(LEXICON.split())
    # A label must stay two ids for its word and one each for the rest, as in the full vocabulary ("<Picture 1>: " is
    # six ids), so the bracket is cut off the word before counting.
    text = [prompt.replace("<", "<\n") for prompt in prompts] * 3
    return [*text, *[names, words, "<\nPicture 1>: "] * 4]


def _write_tokenizer(folder: Path) -> dict[str, int]:
    """Train a byte-level BPE on the corpus, write the two tokenizer files, return the ids of the special tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS), behavior="isolated", invert=False)
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, spelled])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    ids = {token: vocabulary[token] for token in SPECIAL}
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "model_max_length": 32768,
        "additional_special_tokens": list(SPECIAL[1:]),
        "added_tokens_decoder": {
            str(ids[token]): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in SPECIAL
        },
    }
    _write_json(folder / "tokenizer_config.json", settings)
    return ids


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
