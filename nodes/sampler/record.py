"""Where a render goes: every chunk into its files and, when it is safe there, into the journal; at the end the finished file."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from ..look import Look
from ..preview.finish import finish_video
from ..preview.formats import IMAGES, DiskFullError, VideoFileError, VideoFormat, bytes_needed, require_space
from ..preview.image_files import ImageFiles
from ..preview.video_file import VideoFile
from .journal import Journal
from .latent_file import Fingerprint, LatentFile, link_or_copy
from .looks import look_facts, look_plan
from .render import RenderedChunk, Resume, Settings
from .report import Recorded, RenderReport
from .state import RolloutState
from .watch import ChunkFigures

log = logging.getLogger("streamrender_h3")

LATENT_CHANNELS, AUDIO_CHANNELS, LATENT_PIXELS, FLOAT_BYTES = 24, 64, 16, 4


class Lengthy(Protocol):
    """Something that has as many frames as the render."""

    @property
    def frames(self) -> int: ...


class Sized(Protocol):
    """Something that has the size (height, width) of the render."""

    @property
    def size(self) -> tuple[int, int]: ...


def latent_bytes(counts: tuple[int, int], size: tuple[int, int]) -> int:
    """Bytes on disk of so many latents of video and sound."""
    cells = (size[0] // LATENT_PIXELS) * (size[1] // LATENT_PIXELS)
    return FLOAT_BYTES * (LATENT_CHANNELS * cells * counts[0] + AUDIO_CHANNELS * counts[1])


def open_output(
    form: VideoFormat, path: Path, size: tuple[int, int], metadata: dict[str, str], resume: Mapping[str, Any] | None
) -> VideoFile | ImageFiles:
    """The writer of one format."""
    if form.container == IMAGES:
        return ImageFiles(path, size, resume=resume)
    return VideoFile(path, size, metadata=metadata, form=form, resume=resume)


class Recorder:
    """Takes the chunks of one render. Use as a context: however it is left, files are closed and what was added plays.

    `resume` is what `render` needs to go on from the journal, or None for a fresh start. `outputs` are the growing files in
    the order of `targets`.
    """

    def __init__(
        self,
        journal: Journal,
        clip: Lengthy,
        look: Sized,
        settings: Recorded,
        targets: Sequence[tuple[VideoFormat, Path]],
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Raises `VideoFileError` when a file cannot be written or the disk is too full for the whole clip."""
        self.journal, self.settings = journal, settings
        self.plan: dict[int, Look] = {}
        facts: dict[str, Any] = {"fingerprint": journal.parts}
        if isinstance(look, Look) and isinstance(settings, Settings):
            self.plan = look_plan(look, settings.schedule, clip.frames)
            facts |= look_facts(self.plan, settings.schedule)
        self.report = RenderReport(settings, clip.frames, facts)
        self.outputs: list[VideoFile | ImageFiles] = []
        self._latent_paths = journal.folder / "video.f32", journal.folder / "audio.f32"
        self.resume: Resume | None = None
        self.fingerprint = Fingerprint()
        self.latents: LatentFile | None = None
        self.keep_finished = False  # whether a finished render's journal stays for the caller to remove
        self._commit_ms, self._done = 0.0, 0
        self._closed = False
        try:
            for form, _ in targets:
                form.require()
            try:
                self._open(clip, look, targets, metadata or {})
            except DiskFullError:
                raise  # what the journal holds can be continued when there is room again
            except OSError as error:
                if journal.entry is None or journal.strict:
                    raise
                log.warning(
                    "the unfinished render in %s cannot be continued (%s); starting afresh", journal.folder, error
                )
                self._close_files()
                journal.start_afresh()
                self._open(clip, look, targets, metadata or {})
        except BaseException:
            self.close(finished=False)
            raise

    def _open(
        self, clip: Lengthy, look: Sized, targets: Sequence[tuple[VideoFormat, Path]], metadata: dict[str, str]
    ) -> None:
        entry = self.journal.entry
        known = entry.facts["outputs"] if entry else [None] * len(targets)
        forms = [form for form, _ in targets]
        for (form, path), position in zip(targets, known, strict=True):
            self.outputs.append(open_output(form, path, look.size, metadata, position))
        wanted = bytes_needed(
            forms, clip.frames, look.size, latent_bytes(self.settings.latent_counts(clip.frames), look.size)
        )
        have = sum(output.bytes for output in self.outputs)
        require_space(self.journal.folder, max(0, wanted - have), f"a render of {clip.frames} frames")
        if entry is None or not isinstance(self.settings, Settings):
            self.latents = LatentFile(*self._latent_paths)
        else:
            self.latents = LatentFile(*self._latent_paths, resume=entry.facts["latents"])
            state = RolloutState.from_tensors(entry.tensors)
            self._done = state.index
            self.fingerprint = self.latents.fingerprint(map(self.settings.schedule.window_at, range(state.index)))
            self.report.restore(entry.facts["report"], entry.tensors)
            self.resume = Resume(state, self.latents.so_far()[0], self.report.frames)

    def add(self, chunk: RenderedChunk) -> ChunkFigures:
        """Write a chunk and make it safe; its figures, with what is unusual in `suspect`."""
        assert self.latents is not None  # open until close
        start = time.perf_counter()
        for output in self.outputs:
            output.add(chunk.frames)
        self.latents.add(chunk.video, chunk.audio)
        if self.journal.durable:
            for output in self.outputs:
                output.sync()
            self.latents.sync()
        self.fingerprint.add(chunk.video, chunk.audio)
        spent = 1000 * (time.perf_counter() - start) + self._commit_ms
        new_look = chunk.index > 0 and chunk.index in self.plan
        figures = self.report.add(chunk, spent, new_look=new_look)
        start = time.perf_counter()
        self._commit(chunk)
        self._commit_ms = 1000 * (time.perf_counter() - start)  # of this chunk, told with the next one
        self._done = chunk.index + 1
        return figures

    def _commit(self, chunk: RenderedChunk) -> None:
        if not self.journal.durable or self.latents is None or chunk.state is None:
            return
        values, tensors = self.report.state()
        facts: dict[str, Any] = {
            "outputs": [output.position() for output in self.outputs],
            "latents": self.latents.position(),
            "report": values,
        }
        self.journal.commit({**chunk.state.tensors(), **tensors}, facts)

    @property
    def chunks_done(self) -> int:
        """Complete chunks, those of an earlier run included."""
        return self._done

    def result(self) -> dict[str, Any]:
        """The run report as it stands."""
        return self.report.as_dict(self.fingerprint.hexdigest())

    def finish(self, output: VideoFile | ImageFiles, target: Path, metadata: Mapping[str, str]) -> None:
        """Make an ordinary file at `target` of a growing one, with `metadata` inside; images appear there too."""
        output.close()
        if isinstance(output, ImageFiles):
            if output.path != target:
                try:
                    shutil.copytree(output.path, target, copy_function=link_or_copy)
                except OSError as error:
                    shutil.rmtree(target, ignore_errors=True)
                    raise VideoFileError(
                        f"cannot write the images to {target}: {error}. All of them are in {output.path}. Free disk space"
                    ) from error
            return
        finish_video(output.path, target, output.form, metadata)

    def latents_so_far(self) -> dict[str, Tensor]:
        """video [24, T, h, w] and audio [2, 32, A] of every chunk, memory-mapped."""
        assert self.latents is not None  # open until close
        video, audio = self.latents.so_far()
        return {"video": video, "audio": audio}

    def take_latents(self, video_path: Path, audio_path: Path) -> tuple[Tensor, Tensor]:
        """The latents under other names, mapped: video [1, 24, T, h, w], audio [1, 32, 2, A]."""
        assert self.latents is not None  # open until close
        return self.latents.under(video_path, audio_path).tensors()

    def close(self, *, finished: bool, error: BaseException | None = None) -> None:
        """Close all files; the journal goes when the render is finished, else it stays for the next try."""
        if self._closed:
            return
        self._closed = True
        if error is not None:
            self.report.stop(error)
        self._close_files()
        if finished and self.keep_finished:
            self.journal.finish()
        elif finished or self.journal.durable:
            self.journal.close(finished=finished)

    def _close_files(self) -> None:
        for output in self.outputs:
            output.close()
        self.outputs = []
        if self.latents is not None:
            self.latents.close()
            self.latents = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(finished=error is None, error=error)


def start_memory_watch() -> None:
    """Count the GPU's peak from here on."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
