"""The batch in a running ComfyUI, from the first upload to the last video; patient with a server that comes and goes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .client import Disconnected, Server, clip_hash
from .errors import BatchError
from .graph import Job, Sources, find_places, make_job
from .items import Item
from .prompt import to_api
from .tracker import Track, Tracker

LISTEN_SECONDS = 10.0  # at most this long nothing is asked, whatever the server says of itself
RETRY_SECONDS = 1.0


async def make_jobs(
    server: Server,
    workflow: Mapping[str, Any],
    items: Sequence[Item],
    folder: str,
    *,
    chosen: Mapping[str, str | None],
    upload: bool,
) -> list[Job]:
    """The jobs of a batch, their pictures (and with `upload` their clips) on the server. Raises `BatchError`."""
    info = await server.object_info()
    graph = to_api(workflow, info)
    places = find_places(graph, chosen)

    def known(kind: str, name: str) -> bool:
        inputs = info.get(kind, {}).get("input", {})
        return any(name in (inputs.get(group) or {}) for group in ("required", "optional"))

    clips: dict[Path, tuple[str, str]] = {}
    pictures: dict[Path, str] = {}
    jobs, seed = [], graph[places.sampler]["inputs"].get("seed")
    for item in items:
        if item.seed is None and isinstance(seed, int):
            item = replace(item, seed=seed)
        path, picture = item.clip.path, item.look.picture_path(item.clip.name)
        if path not in clips:
            clips[path] = (await server.upload(path) if upload else str(path)), clip_hash(path)
        if picture is not None and picture not in pictures:
            pictures[picture] = await server.upload(picture)
        words = item.look.words(item.clip.name)
        sources = Sources(*clips[path], words, pictures[picture] if picture is not None else None)
        jobs.append(make_job(graph, places, item, sources, folder, known))
    return jobs


async def run_batch(server: Server, jobs: Sequence[Job], *, patience: float, tell: Callable[[Track], None]) -> Tracker:
    """Queue what is not finished yet and follow it to its end. `patience`: seconds to wait for a server that is away."""
    tracker = Tracker([Track(job) for job in jobs], tell)
    deadline, checked = time.monotonic() + patience, False
    while tracker.open:
        try:
            async with server.changes() as changes:
                if not checked:
                    await tracker.skip_saved(server)
                    checked = True
                await tracker.sync(server)
                deadline = time.monotonic() + patience
                while tracker.open:
                    await changes.wait(LISTEN_SECONDS)
                    await tracker.sync(server)
                    deadline = time.monotonic() + patience
        except Disconnected as error:
            tracker.connection_lost()
            if time.monotonic() > deadline:
                tracker.give_up(f"{error}; waited {patience:g} s")
            await asyncio.sleep(RETRY_SECONDS)
    return tracker


def read_workflow(path: Path) -> dict[str, Any]:
    """A workflow file, as saved by the editor or in API format. Raises `BatchError`."""
    try:
        workflow = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BatchError(
            f"the workflow {path} cannot be read ({error.strerror or error}); save it in the editor"
        ) from None
    except ValueError as error:
        raise BatchError(
            f"the workflow {path} is no JSON ({error}); save it in the editor with Workflow > Save"
        ) from None
    if not isinstance(workflow, dict) or not (isinstance(workflow.get("nodes"), list) or _is_api(workflow)):
        raise BatchError(f"{path} is no ComfyUI workflow; save one in the editor with Workflow > Save or Export (API)")
    return workflow


def _is_api(workflow: dict[str, Any]) -> bool:
    return bool(workflow) and all(isinstance(node, dict) and "class_type" in node for node in workflow.values())
