"""The end of a video file: from the growing form to an ordinary, seekable file with what made it inside, nothing coded again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .formats import VideoFileError, VideoFormat, require_space
from .video_file import sync_folder

REPORT_KEY = "streamrender_h3"
MOVFLAGS = "use_metadata_tags+faststart"  # our own keys are kept, and the index stands in front of the frames


def metadata_of(prompt: Any = None, extra: Mapping[str, Any] | None = None, report: Any = None) -> dict[str, str]:
    """Metadata as the host's Save Video writes it (prompt, workflow and the like, as JSON), and the report of the render."""
    found = {"prompt": prompt, **(extra or {}), REPORT_KEY: report}
    return {key: json.dumps(value) for key, value in found.items() if value is not None}


def finish_video(source: Path, target: Path, form: VideoFormat, metadata: Mapping[str, str]) -> None:
    """Copy the packets of the growing file `source` into an ordinary file at `target`, whole or not at all.

    Raises `VideoFileError`; `source` is left as it is.
    """
    import av

    partial = target.with_name(f"{target.stem}.part{form.suffix}")
    options = {"movflags": MOVFLAGS} if form.boxed else {}
    try:
        require_space(target.parent, source.stat().st_size, f"the finished file {target.name}")
        with av.open(str(source)) as old, av.open(str(partial), "w", format=form.container, options=options) as new:
            new.metadata.update(dict(metadata))
            stream: Any = old.streams.video[0]
            copy: Any = _copied(new, stream)
            copy.codec_context.codec_tag = stream.codec_context.codec_tag
            copy.time_base = stream.time_base
            for packet in old.demux(stream):
                if packet.dts is not None and packet.size:
                    packet.stream = copy
                    new.mux(packet)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
        sync_folder(target.parent)
    except (OSError, av.FFmpegError) as error:
        with suppress(OSError):
            partial.unlink()
        raise VideoFileError(
            f"cannot write the finished video {target}: {getattr(error, 'strerror', None) or error}. "
            f"All frames are in {source}, which plays. Free disk space or choose a folder you may write to"
        ) from error


def _copied(container: Any, stream: Any) -> Any:
    if hasattr(container, "add_stream_from_template"):
        return container.add_stream_from_template(stream, opaque=True)
    return container.add_stream(template=stream)  # PyAV before 14


def read_metadata(path: Path) -> dict[str, str] | None:
    """Everything written into a finished video by name in small letters, or None for a file that cannot be read."""
    import av

    try:
        with av.open(str(path)) as container:
            return {key.lower(): value for key, value in container.metadata.items()}
    except (av.FFmpegError, OSError, ValueError):
        return None


def read_report(path: Path) -> dict[str, Any] | None:
    """The run report inside a finished video, or None when there is none: an unfinished file, or another's."""
    found = (read_metadata(path) or {}).get(REPORT_KEY)
    try:
        report = json.loads(found) if found else None
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
