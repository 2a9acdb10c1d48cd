"""Where the files of the sampler node go: the growing video in the journal, the finished one, what is left of a stopped render."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from .. import host
from ..preview import Unwatched, playable_frames, read_report
from ..preview.finish import finish_video, metadata_of
from ..preview.formats import H264, VideoFormat, format_named
from .fingerprint import Parts
from .journal import Journal, open_in, work_in
from .record import Recorder

log = logging.getLogger(host.PACK)

RENDER, PARTIAL = "render", "partial"


def output_forms(name: str) -> list[VideoFormat]:
    """What is written: an MP4 first, which the output is and the host can save; another format comes beside it."""
    form = format_named(name)
    return [form] if form.browser else [H264, form]


def finished_before(name: str, parts: Parts, forms: Sequence[VideoFormat]) -> tuple[Path, dict[str, Any]] | None:
    """(video, its run report) of a complete render of the very same parts, kept under `name` in all of its formats; or None."""
    for path in reversed(host.output_files(name)):
        if path.suffix == forms[0].suffix and all(path.with_name(path.stem + form.suffix).exists() for form in forms):
            report = read_report(path)
            if report and report.get("complete") and report.get("fingerprint") == parts:
                return path, report
    return None


def write_finished(
    recorder: Recorder,
    metadata: tuple[Any, dict[str, Any]],
    report: dict[str, Any],
    name: str,
    temporary: Path,
    save: bool,
) -> Path:
    """Finish every format: the others in the output folder, then the video, with `save` beside them, else at `temporary`."""
    about, video = metadata_of(*metadata, report), temporary
    first, *others = recorder.outputs
    kept = [*others, *([first] if save else [])]
    with host.output_place(name or RENDER, "") if kept else nullcontext(temporary) as place:
        for output in kept:
            target = place.with_name(place.name + output.form.suffix)
            recorder.finish(output, target, about)
            log.info("the render is in %s", target)
            video = target if output is first else video
    if not save:
        recorder.finish(first, temporary, about)
    return video


def open_journal(parts: Parts, resume: bool) -> Journal:
    """The render's journal in the host's user folder; without `resume`, or where there can be none, a temporary folder."""
    if resume:
        with suppress(OSError):
            return open_in(host.cache_folder("journals"), parts, host.temporary_folder)
        log.warning("H3 Stream Sampler keeps no journal: the host's user folder cannot be written")
    return work_in(host.temporary_folder(), parts)


def latent_paths(path: Path) -> tuple[Path, Path]:
    """Where the latents of the video at `path` go."""
    return path.with_suffix(".video.f32"), path.with_suffix(".audio.f32")


@contextmanager
def kept_on_failure(
    recorder: Recorder,
    growing: tuple[VideoFormat, Path],
    metadata: tuple[Any, dict[str, Any]],
    preview: Unwatched,
    name: str,
) -> Iterator[Path]:
    """The path for the finished video. When the render is cancelled or fails, the frames done so far become a file in the
    output folder, the journal stays, everything else goes.
    """
    finished = host.temporary_file(".mp4")
    try:
        yield finished
    except BaseException as error:
        recorder.close(finished=False, error=error)
        for path in (finished, *latent_paths(finished)):
            path.unlink(missing_ok=True)
        if growing[1].is_file():
            about = metadata_of(*metadata, recorder.result())
            preview.file = keep_playable(*growing, about, f"{name}_{PARTIAL}" if name else PARTIAL)
        if not recorder.journal.durable and preview.file != growing[1]:
            recorder.journal.remove()
        raise


def keep_playable(form: VideoFormat, path: Path, metadata: dict[str, str], name: str) -> Path | None:
    """An ordinary file in the output folder of what an unfinished video holds, and a log line that names it."""
    frames = playable_frames(path)
    if not frames:
        return None
    try:
        with host.output_place(name, form.suffix) as kept:
            finish_video(path, kept, form, metadata)
    except OSError as error:
        log.warning("could not copy what is done to the output folder: %s", error)
        kept = path
    log.warning("the render stopped early; its first %d frames are in %s", frames, kept)
    return kept
