"""The forward pass against an independent implementation, diffusers' MiniMaxH3Transformer3DModel, on random weights."""

from dataclasses import replace

import diffusers
import pytest
import torch
from streamrender_h3.nodes.model import H3, H3Config


def diffusers_twin(config: H3Config, tools) -> torch.nn.Module:
    model = diffusers.MiniMaxH3Transformer3DModel(
        num_attention_heads=config.heads,
        attention_head_dim=config.head_dim,
        hidden_size=config.hidden,
        num_layers=config.layers,
        num_refiner_layers=config.refiner_layers,
        ffn_dim=config.ffn,
        in_channels=config.latent_channels,
        audio_in_channels=config.audio_channels,
        text_dim=config.text_dim,
        freq_dim=config.freq_dim,
        time_embed_hidden_dim=config.time_hidden,
        time_embed_dim=config.time_dim,
        rope_freq_dim=config.rope_freqs,
    ).eval()
    tools.randomise(model)
    return model


def native_state(source: torch.nn.Module, *, swap_halves: bool = True) -> dict[str, torch.Tensor]:
    """diffusers names and layouts -> native ones, written for this test alone."""
    given = dict(source.state_dict())
    outer = {
        "proj_in": "video_patch_proj",
        "audio_proj_in": "audio_patch_proj",
        "context_embedder": "condition_proj",
        "time_embedder.linear_1": "time_embedder.proj_in",
        "time_embedder.linear_2": "time_embedder.proj_out",
        "norm_out.linear": "final_layer.adaln_proj.linear",
        "norm_out.norm": "final_layer.norm",
        "proj_out": "final_layer.video_out",
        "audio_proj_out": "final_layer.audio_out",
        "token_refiner.final_norm": "token_refiner.final_norm",
    }
    state = {}
    for theirs, ours in outer.items():
        for kind in ("weight", "bias"):
            if f"{theirs}.{kind}" in given:
                state[f"{ours}.{kind}"] = given.pop(f"{theirs}.{kind}")
    inner = {
        "norm1.weight": "norm1.weight",
        "norm2.weight": "norm2.weight",
        "attn.norm_q.weight": "attn.q_norm.weight",
        "attn.norm_k.weight": "attn.k_norm.weight",
        "attn.to_out.0.weight": "attn.out_proj.weight",
        "ff.net.2.weight": "mlp.fc2.weight",
        "adaln_proj.linear.weight": "adaln_proj.linear.weight",
        "adaln_proj.linear.bias": "adaln_proj.linear.bias",
    }
    for theirs, ours in (("transformer_blocks", "blocks"), ("token_refiner.refiner_blocks", "token_refiner.blocks")):
        number = 0
        while f"{theirs}.{number}.norm1.weight" in given:
            block, twin = f"{theirs}.{number}.", f"{ours}.{number}."
            for name, new in inner.items():
                if block + name in given:
                    state[twin + new] = given.pop(block + name)
            qkv = [given.pop(f"{block}attn.to_{x}.weight") for x in "qkv"]
            state[twin + "attn.qkv_proj.weight"] = torch.cat(qkv)
            up, gate = given.pop(block + "ff.net.0.proj.weight").chunk(2)
            state[twin + "mlp.fc1.weight"] = torch.cat([gate, up] if swap_halves else [up, gate])
            number += 1
    assert not given
    return state


@torch.no_grad()
def theirs(model, packing, times):
    """The velocities of all audio and video rows; the twin finds its rows by index, not by segment."""
    counts = [len(x) for x in (packing.text, packing.picture, packing.reference, packing.audio, packing.video)]
    text, picture, reference, audio, video = torch.arange(sum(counts)).split(counts)
    visual = torch.cat([picture, reference, video])
    out_video, out_audio = model(
        torch.cat([packing.picture, packing.reference, packing.video])[None],
        packing.audio[None],
        packing.text[None],
        torch.tensor(times, dtype=torch.float32),
        packing.time_index,
        packing.tags,
        packing.positions,
        visual,
        audio,
        text,
        return_dict=False,
    )
    return out_video[0, -len(video) :], out_audio[0]


@torch.no_grad()
def ours(config, state, packing, times, **changes):
    model = H3(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["rope.inv_freq"] and not unexpected
    return model(packing.rows(model, **changes), model.modulation(times))


SIZES = {
    "spec": {},
    "whole head rotates": {"heads": 2, "head_dim": 48, "hidden": 64, "rope_freqs": 8},
    "three odd heads": {"heads": 3, "head_dim": 20, "hidden": 40, "rope_freqs": 3, "ffn": 56, "layers": 1},
    "release head": {"heads": 1, "head_dim": 128, "rope_freqs": 16, "layers": 2},
    "inner narrower than hidden": {"heads": 2, "head_dim": 16, "rope_freqs": 2},
    "no refiner": {"refiner_layers": 0},
    "other channels": {"latent_channels": 5, "audio_channels": 7, "freq_dim": 64, "refiner_layers": 1},
}


@pytest.mark.parametrize("size", SIZES)
def test_forward_equals_diffusers_at_every_size(size, tools):
    config = replace(tools.config, **SIZES[size])
    twin, packing = diffusers_twin(config, tools), tools.make_packing(config)
    wanted = theirs(twin, packing, tools.times)
    found = ours(config, native_state(twin), packing, tools.times)
    assert len(packing.time_index.unique()) == 4 and len(packing.tags[:7].unique()) == 2
    assert tools.relative_error(found[0], wanted[0]) <= 1e-5
    assert tools.relative_error(found[1], wanted[1]) <= 1e-5


@pytest.mark.parametrize(
    "layout",
    [
        {"grid": (3, 5), "reference": (5, 1), "latents": 4},
        {"grid": (1, 1), "reference": (1, 1), "sounds": 1, "words": 1},
        {"grid": (7, 3), "reference": (3, 3), "sounds": 9, "words": 13, "latents": 2},
    ],
)
def test_forward_equals_diffusers_on_odd_grids(layout, tools):
    twin, packing = diffusers_twin(tools.config, tools), tools.make_packing(tools.config, **layout, seed=3)
    wanted = theirs(twin, packing, tools.times)
    found = ours(tools.config, native_state(twin), packing, tools.times)
    assert max(tools.relative_error(a, b) for a, b in zip(found, wanted, strict=True)) <= 1e-5


def test_text_refiner_equals_diffusers(tools, packing):
    twin = diffusers_twin(tools.config, tools)
    model = H3(tools.config)
    model.load_state_dict(native_state(twin), strict=False)
    with torch.no_grad():
        wanted = twin.token_refiner(twin.context_embedder(packing.text[None]))[0]
        assert tools.relative_error(model.refine_text(packing.text), wanted) <= 1e-5


def scrambled_qkv(state, config):
    """What a second un-grouping does to weights that are stacked already."""
    return {
        name: weight.view(config.heads, 3, config.head_dim, -1).transpose(0, 1).reshape(weight.shape)
        if name.endswith("qkv_proj.weight")
        else weight
        for name, weight in state.items()
    }


def rolled_modalities(state, config):
    return {
        name: value.roll(len(value) // 3, 0) if name.startswith("blocks.") and "adaln" in name else value
        for name, value in state.items()
    }


def scale_before_shift(state, config):
    return {
        name: value.roll(config.hidden, 0) if name.startswith("final_layer.adaln") else value
        for name, value in state.items()
    }


@pytest.mark.parametrize("damage", [scrambled_qkv, rolled_modalities, scale_before_shift])
def test_a_wrong_weight_layout_is_seen(damage, tools, packing):
    twin = diffusers_twin(tools.config, tools)
    wanted = theirs(twin, packing, tools.times)
    found = ours(tools.config, damage(native_state(twin), tools.config), packing, tools.times)
    assert tools.relative_error(found[0], wanted[0]) > 1e-2


def test_value_first_mlp_halves_are_seen(tools, packing):
    twin = diffusers_twin(tools.config, tools)
    wanted = theirs(twin, packing, tools.times)
    found = ours(tools.config, native_state(twin, swap_halves=False), packing, tools.times)
    assert tools.relative_error(found[0], wanted[0]) > 1e-2


def test_vision_tokens_taken_for_words_are_seen(tools, packing):
    twin = diffusers_twin(tools.config, tools)
    wanted = theirs(twin, packing, tools.times)
    row = packing.time_index * 3 + packing.tags.where(torch.arange(len(packing.tags)) >= 7, torch.tensor(1))
    found = ours(tools.config, native_state(twin), packing, tools.times, modulation_row=row)
    assert tools.relative_error(found[0], wanted[0]) > 1e-4
