"""What has been saved: run reports and jobs read back from the videos in the output folder, for whoever wants to skip them."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import host
from ..preview.finish import REPORT_KEY, read_metadata
from .client import SAVED_ROUTE
from .graph import JOB

if TYPE_CHECKING:
    from aiohttp import web

POOL = ThreadPoolExecutor(1, thread_name_prefix="streamrender_h3 saved videos")
SUFFIXES = (".mp4", ".mov", ".mkv")


def saved_videos(folder: Path, name: str = "") -> list[dict[str, Any]]:
    """The videos of a folder whose names begin with `name`, by number: file, key of the job, complete, frames, seconds."""
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in SUFFIXES and path.name.startswith(name):
            metadata = read_metadata(path)
            if metadata is None:
                continue  # unfinished, or no video
            job, report = _parsed(metadata.get(JOB)), _parsed(metadata.get(REPORT_KEY))
            found.append(
                {
                    "file": path.name,
                    "key": job.get("key"),
                    "complete": bool(report.get("complete", not report)),
                    "frames": report.get("frames"),
                    "seconds": report.get("render_seconds"),
                }
            )
    return found


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def routes() -> dict[str, Any]:
    """Path -> handler, for GET."""
    return {SAVED_ROUTE: _answer}


async def _answer(request: web.Request) -> web.Response:
    from aiohttp import web

    folder = host.output_subfolder(request.query.get("folder", ""))
    if folder is None:
        raise web.HTTPNotFound(text="no such folder")
    files = await asyncio.get_running_loop().run_in_executor(POOL, saved_videos, folder, request.query.get("name", ""))
    return web.json_response({"files": files}, headers={"Cache-Control": "no-store"})
