"""The render's random stream: numbers drawn ahead are the same numbers, and its state does not know of them."""

import torch
from streamrender_h3.nodes.sampler.noise import Noise
from streamrender_h3.nodes.sampler.rollout import Rollout
from streamrender_h3.nodes.schedule import RELEASE

SHAPES = [(24, 3, 4, 6), (2, 32, 7), (5,)]


def test_drawing_ahead_changes_no_number_and_no_state():
    plain, ahead = Noise(3), Noise(3)
    expected = [plain.draw(*shape) for shape in SHAPES]
    start = ahead.state()
    ahead.prepare(SHAPES)
    assert torch.equal(ahead.state(), start)
    first = ahead.draw(*SHAPES[0])
    middle = ahead.state()
    again = Noise(99)
    again.restore(middle)
    rest = [ahead.draw(*shape) for shape in SHAPES[1:]]
    assert all(torch.equal(a, b) for a, b in zip([first, *rest], expected, strict=True))
    assert all(torch.equal(again.draw(*shape), b) for shape, b in zip(SHAPES[1:], expected[1:], strict=True))


def test_another_shape_than_expected_draws_again_from_the_same_place():
    plain, ahead = Noise(3), Noise(3)
    ahead.prepare(SHAPES)
    for shape in [(7, 2), (24, 3, 4, 6), (1,)]:
        assert torch.equal(ahead.draw(*shape), plain.draw(*shape))


def test_a_rollout_finds_all_its_noise_drawn_ahead(monkeypatch):
    """The shapes foreseen are those asked for: after chunk 0 nothing is drawn while a chunk waits."""
    waited = []
    draw = Noise.draw

    def watched(self, *shape):
        waited.append((rollout.next_window.index, bool(self._ready) and self._ready[0][1].shape == shape))
        return draw(self, *shape)

    def predict(window, latents, step):
        return latents.video[:, -len(window.latents) :], latents.audio[:, :, -len(window.audio_new) :]

    from streamrender_h3.nodes.sampler import TimeGrid

    picture = torch.zeros(24, 1, 4, 6)
    rollout = Rollout(RELEASE, TimeGrid.trailing(2), predict, picture, audio_channels=32, seed=1, freeze_sink=True)
    monkeypatch.setattr(Noise, "draw", watched)
    for _ in range(8):
        rollout.step(torch.zeros(24, len(rollout.next_window.latents), 4, 4))
    assert len(waited) == 8 * 4
    assert all(ready == (chunk > 0) for chunk, ready in waited)
