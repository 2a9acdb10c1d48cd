"""Latents of a whole render on disk instead of in memory, handed out as memory-mapped tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from ..schedule import AUDIO_HZ, FPS, frame_of_latent

LATENTS_PER_CYCLE = 5
CYCLE_REST = 2


def native_length(latents: int) -> int:
    """The longest length 5k+2 within `latents`: what ComfyUI's own H3 nodes can take (clips of 17k+5 frames)."""
    return max(0, (latents - CYCLE_REST) // LATENTS_PER_CYCLE) * LATENTS_PER_CYCLE + CYCLE_REST


class Fingerprint:
    """sha256 of all latents of a render in the order they were made: equal renders have equal fingerprints."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, video: Tensor, audio: Tensor) -> None:
        """Take in `video` [24, n, h, w] and `audio` [2, 32, a], float32 on the CPU."""
        for latents in (video, audio):
            self._digest.update(latents.contiguous().numpy().tobytes())

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class LatentFile:
    """Grows by one chunk at a time; `tensors` maps it afterwards. Raises `OSError` naming the folder when it cannot be written."""

    def __init__(self, video_path: Path, audio_path: Path) -> None:
        self._paths = video_path, audio_path
        self._files: tuple[BinaryIO, BinaryIO] = video_path.open("wb"), audio_path.open("wb")
        self._video_shape: tuple[int, ...] = ()
        self._audio_shape: tuple[int, ...] = ()
        self.video_latents = 0
        self.audio_latents = 0

    def add(self, video: Tensor, audio: Tensor) -> None:
        """Append `video` [24, n, h, w] and `audio` [2, 32, a], float32."""
        by_time = video.transpose(0, 1).contiguous(), audio.permute(2, 0, 1).contiguous()
        with self._named_errors():
            for file, latents in zip(self._files, by_time, strict=True):
                file.write(latents.numpy().tobytes())
        self._video_shape, self._audio_shape = tuple(by_time[0].shape[1:]), tuple(by_time[1].shape[1:])
        self.video_latents += video.shape[1]
        self.audio_latents += audio.shape[2]

    def discard(self) -> None:
        """Close and delete the files, whatever state they are in."""
        for file, path in zip(self._files, self._paths, strict=True):
            with suppress(OSError):
                file.close()
            path.unlink(missing_ok=True)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """The finished file as (video [1, 24, T, h, w], audio [1, 32, 2, A]), T of the form 5k+2 and A the sound of its frames."""
        with self._named_errors():
            for file in self._files:
                file.close()
        kept = native_length(self.video_latents)
        frames = frame_of_latent(kept)
        audio_kept = min(self.audio_latents, round(frames * AUDIO_HZ / FPS))
        video = _mapped(self._paths[0], (self.video_latents, *self._video_shape))[:kept]
        audio = _mapped(self._paths[1], (self.audio_latents, *self._audio_shape))[:audio_kept]
        return video.transpose(0, 1)[None], audio.permute(2, 1, 0)[None]

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"cannot write the latents to {self._paths[0].parent}: {error.strerror or error}; "
                "free disk space there and render again"
            ) from error


def _mapped(path: Path, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.from_file(str(path), shared=False, size=count, dtype=torch.float32).reshape(shape)
