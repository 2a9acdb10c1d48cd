"""Sizes and names: what a checkpoint's shapes say, and what the released model must come out as."""

from dataclasses import replace

import pytest
import torch
from streamrender_h3.nodes.model import FLOAT32_TENSORS, H3, RELEASE, ConfigError, H3Config


def shapes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.fixture(scope="module")
def release() -> H3:
    return H3(RELEASE, device="meta", dtype=torch.bfloat16)


def test_release_model_has_the_published_tensors_and_bytes(release):
    state = release.state_dict()
    assert len(state) == 535
    assert sum(t.numel() for t in state.values()) == 33_122_992_912
    assert sum(t.numel() * t.element_size() for t in state.values()) == 66_280_430_144
    assert state["blocks.49.adaln_proj.linear.weight"].shape == (96768, 2688)


def test_release_table_form_is_40_gigabytes():
    state = H3(RELEASE, adaln=False, device="meta", dtype=torch.bfloat16).state_dict()
    assert sum(t.numel() * t.element_size() for t in state.values()) == 40_138_350_656
    assert not [name for name in state if "adaln" in name or "time" in name]


def test_float32_tensors_stay_float32_in_a_bf16_model(release):
    kept = {name for name, tensor in release.state_dict().items() if tensor.dtype == torch.float32}
    assert kept == set(FLOAT32_TENSORS) and len(kept) == 13
    assert {tensor.dtype for name, tensor in release.state_dict().items() if name not in kept} == {torch.bfloat16}


def test_sizes_are_read_from_shapes(release, tools):
    assert H3Config.from_shapes(shapes_of(release)) == RELEASE
    other = replace(tools.config, latent_channels=5, audio_channels=3, refiner_layers=0, layers=11)
    assert H3Config.from_shapes(shapes_of(H3(other))) == other


def test_table_form_shapes_say_that_the_time_mlp_is_gone(tools):
    config = H3Config.from_shapes(shapes_of(H3(tools.config, adaln=False)))
    assert config == replace(tools.config, freq_dim=0, time_hidden=0, time_dim=0)
    assert not config.has_time_mlp


def test_gates_are_noticed(tools):
    shapes = shapes_of(H3(tools.config)) | {"blocks.0.attn.to_gate_compress.weight": (128, 96)}
    assert H3Config.from_shapes(shapes).gate_compress


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"video_patch_proj.weight": None}, "video_patch_proj.weight is missing"),
        ({"rope.inv_freq": None}, "rope.inv_freq is missing"),
        ({"video_patch_proj.weight": (96, 95)}, "95 must be a multiple of 4"),
        ({"blocks.0.attn.qkv_proj.weight": (385, 96)}, "385 must be a multiple of 96"),
        ({"blocks.0.attn.qkv_proj.weight": (384, 64)}, "both must agree"),
        ({"condition_proj.weight": (96,)}, "2 dimension"),
        ({"rope.inv_freq": (6,)}, "rope_freqs <= 5"),
    ],
)
def test_shapes_that_are_not_h3_are_refused_by_name(change, message, tools):
    shapes = shapes_of(H3(tools.config)) | change
    shapes = {name: shape for name, shape in shapes.items() if shape is not None}
    with pytest.raises(ConfigError, match=message):
        H3Config.from_shapes(shapes)


def test_a_lost_block_is_named(tools):
    shapes = {n: s for n, s in shapes_of(H3(tools.config)).items() if not n.startswith("blocks.1.")}
    with pytest.raises(ConfigError, match="2 blocks but not number 1"):
        H3Config.from_shapes(shapes)


@pytest.mark.parametrize(
    "change", [{"heads": 0}, {"refiner_layers": -1}, {"patch": (1, 1, 1)}, {"freq_dim": 7}, {"time_dim": 0}]
)
def test_impossible_sizes_are_refused(change, tools):
    with pytest.raises(ConfigError, match=next(iter(change))):
        replace(tools.config, **change)
