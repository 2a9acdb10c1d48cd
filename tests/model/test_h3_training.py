"""The same code trains, in batches, under autocast and under torch.compile; and runs in bf16."""

import pytest
import torch
from streamrender_h3.nodes.model import H3, PackedRows, Rope, build_tables


def stacked(one: PackedRows, two: PackedRows) -> PackedRows:
    """Two windows of one layout as a batch, each with its own values, positions and times."""

    def both(name):
        return torch.stack([getattr(one, name), getattr(two, name)])

    names = ("text", "before", "audio", "video", "modulation_row", "time_index")
    rope = Rope(torch.stack([one.rope.cos, two.rope.cos]), torch.stack([one.rope.sin, two.rope.sin]))
    return PackedRows(
        **{name: both(name) for name in names}, rope=rope, predict_video=slice(15, None), predict_audio=slice(None)
    )


def loss_of(model, rows, times):
    video, audio = model(rows, model.modulation(times))
    return video.square().mean() + (audio - 1).square().mean()


def test_every_parameter_learns(tiny, packing, tools):
    before = loss_of(tiny, packing.rows(tiny), tools.times)
    before.backward()
    silent = [name for name, p in tiny.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []
    torch.optim.SGD(tiny.parameters(), lr=1e-3).step()
    assert loss_of(tiny, packing.rows(tiny), tools.times) < before


def test_gradients_agree_with_finite_differences(tiny, packing, tools):
    model = H3(tools.replace(tools.config, layers=1, refiner_layers=1), dtype=torch.float32)
    tools.randomise(model)
    small = tools.make_packing(model.config, grid=(1, 2), reference=(1, 1), sounds=2, words=3)
    weight = model.blocks[0].attn.k_norm.weight
    loss_of(model, small.rows(model), tools.times).backward()
    with torch.no_grad():
        step = 1e-2 * torch.sign(weight.grad)
        expected = (weight.grad * step).sum().item()
        weight += step
        above = loss_of(model, small.rows(model), tools.times)
        weight -= 2 * step
        below = loss_of(model, small.rows(model), tools.times)
    assert (above - below).item() / 2 == pytest.approx(expected, rel=0.02)


def test_autocast_keeps_heads_and_times_in_float32(tiny, packing, tools):
    wanted = tiny(packing.rows(tiny), tiny.modulation(tools.times))
    seen = {}
    for name in ("video_patch_proj", "time_embedder.proj_in", "final_layer.video_out", "blocks.0.mlp.fc1"):
        tiny.get_submodule(name).register_forward_hook(lambda _, __, out, name=name: seen.__setitem__(name, out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        found = tiny(packing.rows(tiny), tiny.modulation(tools.times))
        loss = found[0].square().mean()
    loss.backward()
    assert seen.pop("blocks.0.mlp.fc1") == torch.bfloat16
    assert set(seen.values()) == {torch.float32}
    assert found[0].dtype == found[1].dtype == torch.float32
    assert 0 < tools.relative_error(found[0], wanted[0]) < 0.05
    assert {p.grad.dtype for p in tiny.parameters() if p.grad is not None} == {torch.float32}


@torch.no_grad()
def test_bf16_model_stays_near_float32_and_answers_in_float32(tiny, packing, tools):
    model = H3(tiny.config, dtype=torch.bfloat16)
    model.load_state_dict(tiny.state_dict())
    rows = packing.rows(model)
    assert rows.rope.cos.dtype == rows.text.dtype == torch.bfloat16
    found = model(rows, model.modulation(tools.times))
    wanted = tiny(packing.rows(tiny), tiny.modulation(tools.times))
    assert found[0].dtype == torch.float32
    assert 0 < tools.relative_error(found[0], wanted[0]) < 0.05


@torch.no_grad()
def test_a_batch_equals_its_members_alone(tiny, packing, tools):
    other = tools.make_packing(tiny.config, seed=9)
    other.positions = other.positions + 2
    other.time_index = (other.time_index + 1) % 4
    modulation = tiny.modulation(tools.times)
    singles = [tiny(p.rows(tiny, predict_video=slice(15, None)), modulation) for p in (packing, other)]
    video, audio = tiny(stacked(packing.rows(tiny), other.rows(tiny)), modulation)
    assert video.shape == (2, 30, 96) and audio.shape == (2, 10, 32)
    for n, (alone_video, alone_audio) in enumerate(singles):
        assert tools.relative_error(video[n], alone_video) <= 1e-5
        assert tools.relative_error(audio[n], alone_audio) <= 1e-5


@torch.no_grad()
def test_a_batch_may_share_one_layout_and_carry_one_mask_each(tiny, packing, tools):
    modulation, rows = tiny.modulation(tools.times), packing.rows(tiny)
    values = {name: torch.stack([getattr(rows, name)] * 2) for name in ("text", "before", "audio", "video")}
    masks = torch.stack(
        [~packing.prefix[:, None] | packing.prefix, torch.ones(len(packing.prefix), len(packing.prefix)) > 0]
    )
    video, _ = tiny(packing.rows(tiny, **values), modulation, visible=masks)
    for n in range(2):
        assert tools.relative_error(video[n], tiny(rows, modulation, visible=masks[n])[0]) <= 1e-5


def test_the_forward_is_one_graph(tiny, packing, tools):
    """No graph break, hence no branch on data: the eager backend only traces."""
    tables = build_tables(tiny.state_dict().__getitem__, tiny.config, tools.times, torch.float32)
    rows, modulation = packing.rows(tiny), tables.at(tools.times)
    compiled = torch.compile(tiny, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(rows, modulation), tiny(rows, modulation))
