"""The rollout: chunk after chunk of latents from noise, each seeing the sink, the recent past and its own map latents."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..schedule import Schedule, Window
from .finite import require_finite_step
from .grids import CLEAN_SIGMA, TimeGrid
from .history import History, gather, join
from .noise import Noise, picture_noise
from .pack import WindowLatents
from .state import RolloutState, Snapshot


class Predictor(Protocol):
    """Predicts clean latents of the new frames of a window; the rollout's only view of the network."""

    def __call__(self, window: Window, latents: WindowLatents, step: int) -> tuple[Tensor, Tensor]:
        """(x0 video `[24, new, h, w]`, x0 audio `[2, 32, new]`), float32."""
        ...


@dataclass(frozen=True)
class Chunk:
    """New latents of one step of the stream, final."""

    window: Window
    video: Tensor  # [24, new, h, w] float32
    audio: Tensor  # [2, 32, committed] float32
    step_ms: tuple[float, ...]


def with_noise(clean: Tensor, noise: Tensor) -> Tensor:
    """Near-clean conditioning: `0.999*clean + 0.001*noise`."""
    return (1.0 - CLEAN_SIGMA) * clean + CLEAN_SIGMA * noise


def put_first(whole: Tensor, part: Tensor, dim: int) -> Tensor:
    """`whole` with its first entries along `dim` replaced by `part`."""
    count = part.shape[dim]
    return torch.cat([part, whole.narrow(dim, count, whole.shape[dim] - count)], dim)


def put_last(whole: Tensor, part: Tensor, dim: int) -> Tensor:
    """`whole` with its last entries along `dim` replaced by `part`."""
    return torch.cat([whole.narrow(dim, 0, whole.shape[dim] - part.shape[dim]), part], dim)


class Rollout:
    """One stream: owns history, noise and the frozen sink. `step` takes the next chunk's map latents and returns its latents."""

    def __init__(
        self,
        schedule: Schedule,
        grid: TimeGrid,
        predict: Predictor,
        picture: Tensor,
        *,
        audio_channels: int,
        seed: int,
        freeze_sink: bool,
        on_step: Callable[[int, int], None] = lambda chunk, step: None,
    ) -> None:
        """`picture` is the clean latent [24, 1, h, w]; `freeze_sink` goes with the prefix bank.

        `on_step(chunk, step)` runs after every forward and may raise to stop.
        """
        self._schedule, self._grid, self._predict = schedule, grid, predict
        self._audio_channels, self._freeze_sink, self._on_step = audio_channels, freeze_sink, on_step
        self._noise = Noise(seed, picture.device)
        self._picture_noise = picture_noise(seed, tuple(picture.shape)).to(picture.device)
        self._picture = with_noise(picture, self._picture_noise)
        self._history = History()
        self._snapshot: Snapshot | None = None
        self._index = 0

    @property
    def next_window(self) -> Window:
        return self._schedule.window_at(self._index)

    def change_look(self, predict: Predictor, picture: Tensor) -> None:
        """From the next chunk on predict with other conditions; history, frozen sink and noise go on."""
        self._predict, self._picture = predict, with_noise(picture, self._picture_noise)

    def state(self) -> RolloutState:
        """What the next chunk depends on. Cheap: tensors are shared, none is ever changed in place."""
        history = self._history
        return RolloutState(
            self._index,
            self._noise.state(),
            dict(history.video),
            dict(history.reference),
            dict(history.audio),
            self._snapshot,
        )

    def restore(self, state: RolloutState) -> None:
        """Go on from `state`, whose tensors are on the render's device."""
        self._index, self._snapshot = state.index, state.snapshot
        self._noise.restore(state.noise)
        self._history.video = dict(state.video)
        self._history.reference = dict(state.reference)
        self._history.audio = dict(state.audio)

    @torch.inference_mode()
    def step(self, reference: Tensor) -> Chunk:
        """Denoise the next chunk. `reference` [24, new, h', w'] float32: exactly the latents `next_window` asks for."""
        window = self.next_window
        if reference.shape[1] != len(window.latents):
            raise ValueError(
                f"chunk {window.index} got {reference.shape[1]} map latents and needs {len(window.latents)}; "
                "encode the frames of the window the schedule names next"
            )
        for_video, for_audio, *_ = self._shapes(window, reference)
        x_video, x_audio = self._noise.draw(*for_video), self._noise.draw(*for_audio)
        latents = self._condition(window, reference)

        step_ms = []
        for step in range(self._grid.steps):
            start = time.perf_counter()
            latents = replace(
                latents, video=put_last(latents.video, x_video, 1), audio=put_last(latents.audio, x_audio, 2)
            )
            x0_video, x0_audio = self._predict(window, latents, step)
            if step == 0:
                self._noise.prepare(self._shapes(self._schedule.window_at(self._index + 1), reference))
            require_finite_step(x0_video, x0_audio, step, self._grid.steps, window.index)
            x_video, x_audio = self._grid.ddim(step, x0_video, x_video, x0_audio, x_audio)
            self._on_step(window.index, step)
            step_ms.append(1000 * (time.perf_counter() - start))

        self._history.add(window, x_video, x_audio, reference)
        committed = gather(self._history.audio, window.audio_commit, x_audio[:, :, 0], dim=2)
        self._history.forget(window)
        self._index += 1
        return Chunk(window, x_video, committed, tuple(step_ms))

    def _shapes(self, window: Window, reference: Tensor) -> list[tuple[int, ...]]:
        """Shapes of the noise that a chunk draws, in its order."""
        channels, side = self._picture.shape[0], tuple(self._picture.shape[-2:])
        return [
            (channels, len(window.latents), *side),
            (2, self._audio_channels, len(window.audio_new)),
            (channels, len(window.window_latents), *side),
            (reference.shape[0], len(window.reference_latents), *reference.shape[-2:]),
        ]

    def _condition(self, window: Window, reference: Tensor) -> WindowLatents:
        """History, map and sound of a window with their 0.001 of noise; the current latents are still to be filled in."""
        history = self._history
        past = gather(history.video, window.window_latents, torch.zeros_like(self._picture[:, 0]), dim=1)
        video = with_noise(past, self._noise.draw(*past.shape))
        maps = join(window.reference_latents, history.reference, window.latents.start, reference)
        maps = with_noise(maps, self._noise.draw(*maps.shape))
        audio = gather(history.audio, window.audio_window, video.new_zeros(2, self._audio_channels), dim=2)
        if self._freeze_sink and not window.is_bootstrap:
            sink = len(window.sink_latents)
            if self._snapshot is None:
                self._snapshot = Snapshot(video[:, :sink], audio[:, :, : window.audio_sink], maps[:, :sink])
            video, maps, audio = (
                put_first(video, self._snapshot.video, 1),
                put_first(maps, self._snapshot.reference, 1),
                put_first(audio, self._snapshot.audio, 2),
            )
        return WindowLatents(picture=self._picture, reference=maps, video=video, audio=audio)
