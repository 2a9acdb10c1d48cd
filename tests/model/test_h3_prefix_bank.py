"""Prefix rows that see only each other can be run once and kept: the bank equals the masked whole."""

import torch
from streamrender_h3.nodes.model import H3


class Recorder:
    def __init__(self):
        self.kept = []

    def extend(self, layer, k, v):
        assert layer == len(self.kept)
        self.kept.append((k.clone(), v.clone()))
        return k, v


class Replay:
    def __init__(self, kept):
        self.kept = kept

    def extend(self, layer, k, v):
        return tuple(torch.cat([old, new], dim=-3) for old, new in zip(self.kept[layer], (k, v), strict=True))


def part(rows, which: torch.Tensor, **predict):
    """The rows where `which` is true, as a pass of their own."""
    text, before, audio, video = which.split(rows.segments)
    index = which.nonzero()[:, 0]
    return type(rows)(
        text=rows.text[text],
        before=rows.before[before],
        audio=rows.audio[audio],
        video=rows.video[video],
        rope=rows.rope[index],
        modulation_row=rows.modulation_row[index],
        time_index=rows.time_index[index],
        **predict,
    )


@torch.no_grad()
def test_prefill_and_moving_rows_equal_the_masked_forward(tiny, packing, tools):
    modulation, prefix = tiny.modulation(tools.times), packing.prefix
    rows = packing.rows(tiny)
    visible = ~prefix[:, None] | prefix[None, :]  # a prefix row sees the prefix, a moving row sees everything
    wanted_video, wanted_audio = tiny(rows, modulation, visible=visible)

    recorder = Recorder()
    empty_video, empty_audio = tiny(part(rows, prefix), modulation, bank=recorder)
    assert empty_video.shape == (0, 96) and empty_audio.shape == (0, 32)
    moving = part(rows, ~prefix, predict_video=slice(None), predict_audio=slice(None))
    assert moving.text.shape[0] == 0
    video, audio = tiny(moving, modulation, bank=Replay(recorder.kept))

    _, _, audio_prefix, video_prefix = prefix.split(rows.segments)
    assert tools.relative_error(video, wanted_video[~video_prefix]) <= 1e-5
    assert tools.relative_error(audio, wanted_audio[~audio_prefix]) <= 1e-5

    dense_video, _ = tiny(rows, modulation)
    assert tools.relative_error(dense_video, wanted_video) > 1e-4  # the mask is felt
    without, _ = tiny(moving, modulation)
    assert tools.relative_error(without, wanted_video[~video_prefix]) > 1e-4  # and so is the bank


@torch.no_grad()
def test_a_prefix_may_be_kept_from_another_set_of_times(tiny, packing, tools):
    """The prefix pass knows fewer times than the moving pass; only the time of a row matters, not its place."""
    rows, prefix = packing.rows(tiny), packing.prefix
    recorder = Recorder()
    own = [tools.times[i] for i in packing.time_index[prefix].unique().tolist()]
    place = {index: n for n, index in enumerate(packing.time_index[prefix].unique().tolist())}
    index = torch.tensor([place[i] for i in packing.time_index[prefix].tolist()])
    first = part(rows, prefix)
    renumbered = type(first)(
        text=first.text,
        before=first.before,
        audio=first.audio,
        video=first.video,
        rope=first.rope,
        modulation_row=index * 3 + packing.tags[prefix],
        time_index=index,
    )
    tiny(renumbered, tiny.modulation(own), bank=recorder)
    again = Recorder()
    tiny(first, tiny.modulation(tools.times), bank=again)
    for kept, wanted in zip(recorder.kept, again.kept, strict=True):
        torch.testing.assert_close(kept, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_only_wanted_rows_are_predicted(tiny, packing, tools):
    modulation = tiny.modulation(tools.times)
    video, audio = tiny(packing.rows(tiny), modulation)
    index = torch.tensor([1, 6, 3])
    some, one = tiny(packing.rows(tiny, predict_video=slice(15, 30), predict_audio=index), modulation)
    torch.testing.assert_close(some, video[15:30])
    torch.testing.assert_close(one, audio[index])
    none, _ = tiny(packing.rows(tiny, predict_video=None), modulation)
    assert none.shape == (0, 96) and none.dtype == torch.float32


def test_rows_that_do_not_add_up_are_refused(tiny, packing):
    rows = packing.rows(tiny)
    try:
        packing.rows(tiny, time_index=rows.time_index[1:])
    except ValueError as error:
        assert f"{len(rows.time_index)} rows" in str(error) and "time_index" in str(error)
    else:
        raise AssertionError("a short time_index went unnoticed")


def test_text_of_another_encoder_is_refused(tools):
    model = H3(tools.config)
    try:
        model.refine_text(torch.zeros(3, 81))
    except ValueError as error:
        assert "81 wide" in str(error) and "80 wide" in str(error)
    else:
        raise AssertionError("text of a wrong width went unnoticed")
