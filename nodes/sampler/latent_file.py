"""Latents of a whole render on disk instead of in memory, handed out as memory-mapped tensors."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..schedule import AUDIO_HZ, FPS, Window, frame_of_latent

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
    """Grows by one chunk at a time; `tensors` maps it afterwards. Raises `OSError` naming the folder when it cannot be written.

    `resume` is the `position` of earlier files at these paths to go on from; what they hold beyond is cut off.
    """

    def __init__(self, video_path: Path, audio_path: Path, resume: Mapping[str, Any] | None = None) -> None:
        self._paths = video_path, audio_path
        self._video_shape: tuple[int, ...] = ()
        self._audio_shape: tuple[int, ...] = ()
        self.video_latents = 0
        self.audio_latents = 0
        self._files: tuple[BinaryIO, ...] = ()
        with self._named_errors():
            if resume is None:
                self._files = video_path.open("wb", buffering=0), audio_path.open("wb", buffering=0)
            else:
                self._go_on(resume)

    def add(self, video: Tensor, audio: Tensor) -> None:
        """Append `video` [24, n, h, w] and `audio` [2, 32, a], float32."""
        by_time = video.transpose(0, 1).contiguous(), audio.permute(2, 0, 1).contiguous()
        with self._named_errors():
            for file, latents in zip(self._files, by_time, strict=True):
                left = memoryview(latents.numpy().tobytes())
                while left:
                    left = left[file.write(left) :]
        self._video_shape, self._audio_shape = tuple(by_time[0].shape[1:]), tuple(by_time[1].shape[1:])
        self.video_latents += video.shape[1]
        self.audio_latents += audio.shape[2]

    def sync(self) -> None:
        """Force what was added onto the disk."""
        with self._named_errors():
            for file in self._files:
                os.fsync(file.fileno())

    def position(self) -> dict[str, Any]:
        """How much is in the files, for `resume`."""
        return {
            "video": [self.video_latents, *self._video_shape],
            "audio": [self.audio_latents, *self._audio_shape],
        }

    def under(self, video_path: Path, audio_path: Path) -> LatentFile:
        """The same latents under other names, closed; these files stay. No second copy where the disk has links."""
        self.close()
        with self._named_errors():
            for path, target in zip(self._paths, (video_path, audio_path), strict=True):
                link_or_copy(path, target)
        other = copy.copy(self)
        other._paths = video_path, audio_path
        return other

    def close(self) -> None:
        """Close the files and leave them."""
        for file in self._files:
            with suppress(OSError):
                file.close()

    def so_far(self) -> tuple[Tensor, Tensor]:
        """Everything added, memory-mapped: video [24, T, h, w] and audio [2, 32, A]."""
        video = _mapped(self._paths[0], (self.video_latents, *self._video_shape))
        audio = _mapped(self._paths[1], (self.audio_latents, *self._audio_shape))
        return video.transpose(0, 1), audio.permute(1, 2, 0)

    def fingerprint(self, windows: Iterable[Window]) -> Fingerprint:
        """The fingerprint of the chunks in the files; `windows` are theirs, in order."""
        found = Fingerprint()
        if self.video_latents:
            video, audio = self.so_far()
            for window in windows:
                heard = slice(window.audio_commit.start, window.audio_commit.stop)
                found.add(video[:, window.latents.start : window.latents.stop], audio[:, :, heard])
        return found

    def _go_on(self, position: Mapping[str, Any]) -> None:
        shapes = tuple(position["video"]), tuple(position["audio"])
        files = []
        for path, shape in zip(self._paths, shapes, strict=True):
            length = torch.Size(shape).numel() * torch.float32.itemsize
            if path.stat().st_size < length:
                raise OSError(f"{path.name} is shorter than the journal counts")
            files.append(path.open("r+b", buffering=0))
            files[-1].truncate(length)
            files[-1].seek(length)
        self._files = tuple(files)
        (self.video_latents, *video), (self.audio_latents, *audio) = shapes
        self._video_shape, self._audio_shape = tuple(video), tuple(audio)

    def discard(self) -> None:
        """Close and delete the files, whatever state they are in."""
        self.close()
        for path in self._paths:
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


def link_or_copy(path: str | Path, target: str | Path) -> None:
    """`target` becomes a second name of the file, or a copy where the disk cannot do that."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def _mapped(path: Path, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.from_file(str(path), shared=False, size=count, dtype=torch.float32).reshape(shape)
