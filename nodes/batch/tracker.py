"""What becomes of every job of a batch: a table of states that follows what the server says, whatever either side goes through.

The server is the authority: a job is done when a complete video with its key lies in the output folder, waiting or running
when its key is in the queue. Nothing is kept on our side, so the command can be stopped and started again at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from .client import Queue, Saved
from .graph import Job
from .prompt import WorkflowError

MOST_DEATHS = 3  # times the server may die while it renders a job before that is given up
MOST_EMPTY = 2  # times a prompt may succeed without leaving a video


class State(Enum):
    """Where a job stands. All but the first three are final."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    SKIPPED = "done before"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "not reached"

    @property
    def open(self) -> bool:
        return self in (State.WAITING, State.QUEUED, State.RUNNING)

    @property
    def good(self) -> bool:
        return self in (State.DONE, State.SKIPPED)


@dataclass
class Track:
    """One job on its way."""

    job: Job
    state: State = State.WAITING
    prompt_id: str | None = None
    deaths: int = 0
    empty: int = 0
    doubtful: bool = False  # the connection was lost since the server last knew it
    saved: Saved | None = None
    error: str = ""


class Host(Protocol):
    """The part of `Server` that a tracker needs."""

    async def queue(self) -> Queue: ...
    async def history(self, prompt_id: str) -> dict[str, Any] | None: ...
    async def saved(self, folder: str, name: str = "") -> list[Saved]: ...
    async def submit(self, job: Job) -> str: ...
    async def forget_results(self) -> None: ...


@dataclass
class Tracker:
    """The tracks of a batch. `sync` brings them up to date and submits what is missing; `tell` hears of every change."""

    tracks: Sequence[Track]
    tell: Callable[[Track], None] = field(default=lambda track: None)

    @property
    def open(self) -> list[Track]:
        return [track for track in self.tracks if track.state.open]

    async def skip_saved(self, server: Host) -> None:
        """Before anything is queued: what lies complete in the output folder is not made again."""
        for folder in {track.job.folder for track in self.tracks}:
            found = await server.saved(folder)
            for track in self.open:
                if track.job.folder == folder and (saved := complete(track.job, found)):
                    self._end(track, State.SKIPPED, saved=saved)

    def connection_lost(self) -> None:
        """Until the server has said otherwise it may have been another one's life."""
        for track in self.open:
            track.doubtful = track.prompt_id is not None

    async def sync(self, server: Host) -> None:
        """Follow the server. Raises whatever the server's methods raise when the connection is lost."""
        queue = await server.queue()
        here = {**queue.running, **queue.pending}
        remembers = any(track.prompt_id in here for track in self.open)
        missing = []
        for track in self.open:
            if track.prompt_id is None:
                self._adopt(track, here)
            if track.prompt_id in here:
                self._enter(track, State.RUNNING if track.prompt_id in queue.running else State.QUEUED)
            elif track.prompt_id is not None:
                missing.append(track)
        past = {track.prompt_id: await server.history(track.prompt_id or "") for track in missing}
        if remembers or any(past.values()):  # it is the server of before
            for track in self.open:
                track.doubtful = False
        for track in missing:
            await self._conclude(track, past[track.prompt_id], server)
        for track in self.open:
            if track.prompt_id is None:
                await self._submit(track, server)

    def _adopt(self, track: Track, here: Mapping[str, str | None]) -> None:
        """A prompt that an earlier run of the command queued is taken over."""
        taken = {other.prompt_id for other in self.tracks}
        track.prompt_id = next((i for i, key in here.items() if key == track.job.key and i not in taken), None)

    async def _conclude(self, track: Track, past: Mapping[str, Any] | None, server: Host) -> None:
        """A prompt that is no longer in the queue: finished, failed, cancelled or lost with its server."""
        problem = problem_of(past)
        if problem is not None:
            self._end(track, *problem)
            return
        found = await server.saved(track.job.folder, track.job.item.name)
        saved = complete(track.job, found)
        if saved is None and past is not None and track.job.sampler_saves:
            saved = complete(track.job, found, any_key=True)  # the sampler knows its own renders
        if saved:
            self._end(track, State.DONE, saved=saved)
        elif past is not None:
            track.empty += 1
            if track.empty >= MOST_EMPTY:
                self._end(track, State.FAILED, "the server says success, but no complete video was saved")
            else:  # from its cache: the video of an earlier run, deleted since
                await server.forget_results()
                self._again(track)
        elif not track.doubtful:
            self._end(track, State.CANCELLED, "taken out of the queue")
        else:
            track.deaths += track.state is State.RUNNING
            if track.deaths >= MOST_DEATHS:
                self._end(track, State.FAILED, f"the server died {track.deaths} times while it rendered this")
            else:
                self._again(track)

    def _again(self, track: Track) -> None:
        track.prompt_id, track.doubtful, track.state = None, False, State.WAITING

    async def _submit(self, track: Track, server: Host) -> None:
        try:
            track.prompt_id = await server.submit(track.job)
        except WorkflowError as error:
            self._end(track, State.FAILED, str(error))
        else:
            self._enter(track, State.QUEUED)

    def give_up(self, words: str) -> None:
        """Whatever is still open is not reached."""
        for track in self.open:
            self._end(track, State.LOST, words)

    def _end(self, track: Track, state: State, error: str = "", saved: Saved | None = None) -> None:
        track.error, track.saved = " ".join(error.split()), saved
        self._enter(track, state)

    def _enter(self, track: Track, state: State) -> None:
        changed, track.state = state is not track.state, state
        if changed:
            self.tell(track)


def problem_of(past: Mapping[str, Any] | None) -> tuple[State, str] | None:
    """What a history entry says went wrong; None after success and where there is no entry."""
    status = (past or {}).get("status") or {}
    for kind, data in status.get("messages") or ():
        if kind == "execution_error":
            return State.FAILED, f"node {data['node_id']} ({data['node_type']}): {data['exception_message']}"
        if kind == "execution_interrupted":
            return State.CANCELLED, "cancelled while it ran"
    if status and not status.get("completed", True):
        return State.FAILED, str(status.get("status_str", "error"))
    return None


def complete(job: Job, found: Sequence[Saved], *, any_key: bool = False) -> Saved | None:
    """The job's video among what was saved, when every one of its videos is there and whole; else None."""
    own = [saved for saved in found if saved.complete and (any_key or saved.key == job.key)]
    by_stem = [[saved for saved in own if stem_of(saved.file) == stem] for stem in job.stems]
    return by_stem[0][-1] if all(by_stem) else None


def stem_of(file: str) -> str:
    """A saved file's name without suffix and number: `clip_noon_1_00003_.mp4` and `clip_noon_1_00003.mp4` are `clip_noon_1`."""
    return file.rpartition(".")[0].rstrip("_").rpartition("_")[0]
