"""The states of a batch against a server of paper: finished, failed, cancelled, lost, or queued by an earlier run."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from streamrender_h3.nodes.batch import ClipSpec, Item, LookSpec, queue_run
from streamrender_h3.nodes.batch.client import Disconnected, Queue, Saved
from streamrender_h3.nodes.batch.graph import Job
from streamrender_h3.nodes.batch.prompt import WorkflowError
from streamrender_h3.nodes.batch.queue_run import run_batch
from streamrender_h3.nodes.batch.table import as_text, exit_code, rows
from streamrender_h3.nodes.batch.tracker import MOST_DEATHS, State, Track, Tracker, stem_of

SUCCESS = {"status": {"completed": True, "status_str": "success", "messages": [["execution_start", {}]]}}
ERROR = {"node_id": "4", "node_type": "SRH3_StreamSampler", "exception_message": "out\nof memory"}


def failed(kind: str) -> dict[str, Any]:
    return {"status": {"completed": False, "status_str": "error", "messages": [[kind, ERROR]]}}


@dataclass
class Paper:
    """What a server knows, to be changed by hand."""

    running: dict[str, str] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    past: dict[str, Any] = field(default_factory=dict)
    files: list[Saved] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    submitted: list[str] = field(default_factory=list)
    forgotten: int = 0

    async def queue(self) -> Queue:
        return Queue(dict(self.running), dict(self.pending))

    async def history(self, prompt_id: str) -> dict[str, Any] | None:
        return self.past.get(prompt_id)

    async def saved(self, folder: str, name: str = "") -> list[Saved]:
        return [file for file in self.files if file.file.startswith(name)]

    async def submit(self, job: Job) -> str:
        if job.key in self.refuses:
            raise WorkflowError("no such model")
        prompt_id = f"p{len(self.submitted)}"
        self.submitted.append(job.key)
        self.pending[prompt_id] = job.key
        return prompt_id

    async def forget_results(self) -> None:
        self.forgotten += 1

    def begin(self) -> None:
        prompt_id = next(iter(self.pending))
        self.running = {prompt_id: self.pending.pop(prompt_id)}

    def end(self, how: dict[str, Any], *, save: bool = True) -> None:
        ((prompt_id, key),) = self.running.items()
        self.running, self.past[prompt_id] = {}, how
        if save:
            self.save(key)

    def save(self, key: str, *, complete: bool = True) -> None:
        self.files.append(Saved(f"{key}_noon_1_{len(self.files):05}_.mp4", key, complete, 46, 1.5))

    def die(self) -> None:
        self.running, self.pending, self.past = {}, {}, {}


def job(name: str) -> Job:
    item = Item(ClipSpec(name, Path(name)), LookSpec("noon"), 1)
    return Job(item, {}, name, "queue", (item.name,))


@pytest.fixture
def server() -> Paper:
    return Paper()


@pytest.fixture
def tracker() -> Tracker:
    return Tracker([Track(job(name)) for name in ("a", "b", "c")])


def sync(tracker: Tracker, server: Paper) -> list[State]:
    asyncio.run(tracker.sync(server))
    return [track.state for track in tracker.tracks]


def test_all_are_queued_at_once_and_end_one_after_the_other(tracker, server):
    assert sync(tracker, server) == [State.QUEUED] * 3 and server.submitted == ["a", "b", "c"]
    server.begin()
    assert sync(tracker, server) == [State.RUNNING, State.QUEUED, State.QUEUED]
    server.end(SUCCESS)
    server.begin()
    assert sync(tracker, server) == [State.DONE, State.RUNNING, State.QUEUED]
    assert tracker.tracks[0].saved.frames == 46 and server.submitted == ["a", "b", "c"]


def test_a_failure_a_cancel_a_removal_and_a_refusal_stop_nobody_else(server):
    tracker = Tracker([Track(job(name)) for name in "abcde"])
    server.refuses = {"d"}
    assert sync(tracker, server)[3] is State.FAILED
    for kind in ("execution_error", "execution_interrupted"):
        server.begin()
        sync(tracker, server)
        server.end(failed(kind), save=False)
    server.pending.pop("p2")  # c: somebody presses x in the queue
    server.begin()
    sync(tracker, server)
    server.end(SUCCESS)
    assert sync(tracker, server) == [State.FAILED, State.CANCELLED, State.CANCELLED, State.FAILED, State.DONE]
    assert [track.error for track in tracker.tracks] == [
        "node 4 (SRH3_StreamSampler): out of memory",
        "cancelled while it ran",
        "taken out of the queue",
        "no such model",
        "",
    ]
    assert server.submitted == ["a", "b", "c", "e"] and not tracker.open


def test_what_lies_complete_in_the_folder_is_not_queued_again(tracker, server):
    server.save("a")
    server.save("b", complete=False)
    asyncio.run(tracker.skip_saved(server))
    assert sync(tracker, server) == [State.SKIPPED, State.QUEUED, State.QUEUED] and server.submitted == ["b", "c"]


def test_the_command_started_again_takes_over_what_is_queued(tracker, server):
    sync(tracker, server)
    server.begin()
    again = Tracker([Track(job(name)) for name in ("a", "b", "c")])
    assert sync(again, server) == [State.RUNNING, State.QUEUED, State.QUEUED]
    assert server.submitted == ["a", "b", "c"]


def test_a_lost_connection_alone_submits_nothing_again(tracker, server):
    sync(tracker, server)
    server.begin()
    sync(tracker, server)
    tracker.connection_lost()
    server.end(SUCCESS)
    server.pending.pop("p1")  # and somebody removed this in the meantime
    assert sync(tracker, server) == [State.DONE, State.CANCELLED, State.QUEUED]
    assert server.submitted == ["a", "b", "c"]


def test_a_server_that_died_gets_what_is_missing_again(tracker, server):
    sync(tracker, server)
    server.begin()
    server.end(SUCCESS)
    server.begin()
    sync(tracker, server)
    server.save("b")  # finished with its last breath
    server.die()
    tracker.connection_lost()
    assert sync(tracker, server) == [State.DONE, State.DONE, State.QUEUED]
    assert server.submitted == ["a", "b", "c", "c"]


def test_a_job_that_kills_the_server_again_and_again_is_given_up_and_the_others_are_not(tracker, server):
    for _ in range(MOST_DEATHS):
        sync(tracker, server)
        server.begin()
        sync(tracker, server)
        server.die()
        tracker.connection_lost()
    assert sync(tracker, server) == [State.FAILED, State.QUEUED, State.QUEUED]
    assert tracker.tracks[0].error == "the server died 3 times while it rendered this"
    assert server.submitted.count("a") == MOST_DEATHS


def test_success_without_a_video_is_tried_again_without_the_hosts_cache_and_then_told(tracker, server):
    for _ in range(2):
        sync(tracker, server)
        server.pending = {i: key for i, key in server.pending.items() if key == "a"}
        server.begin()
        server.end(SUCCESS, save=False)
    assert sync(tracker, server)[0] is State.FAILED and server.forgotten == 1
    assert "no complete video was saved" in tracker.tracks[0].error


def test_a_sampler_that_saves_may_take_the_video_of_the_very_same_render(server):
    for saves in (True, False):
        one = Tracker([Track(replace(job("a"), key="new", sampler_saves=saves))])
        sync(one, server)
        server.save("a")  # its key is another one
        server.begin()
        server.end(SUCCESS, save=False)
        assert sync(one, server) == [State.DONE if saves else State.QUEUED]


def test_the_table_tells_of_every_job_and_the_exit_code_of_all(tracker, server):
    sync(tracker, server)
    server.begin()
    server.end(SUCCESS)
    server.begin()
    server.end(failed("execution_error"), save=False)
    sync(tracker, server)
    tracker.give_up("the server does not answer")
    states = [row["state"] for row in rows(tracker.tracks)]
    assert states == ["done", "failed", "not reached"] and exit_code(tracker.tracks) == 1
    lines = as_text(tracker.tracks, 300).splitlines()
    assert lines[0].split() == ["clip", "look", "seed", "state", "frames", "seconds", "file", "error"]
    assert lines[1].split() == ["a", "noon", "1", "done", "46", "1.5", "streamrender_h3/queue/a_noon_1_00000_.mp4"]
    assert lines[2].endswith("node 4 (SRH3_StreamSampler): out of memory")
    assert lines[-1] == "3 renders: 1 done, 1 failed, 1 not reached"
    assert exit_code(tracker.tracks[:1]) == 0


def test_a_server_that_stays_away_is_given_up_and_one_that_comes_back_is_not(server, monkeypatch):
    monkeypatch.setattr(queue_run, "RETRY_SECONDS", 0.01)
    away = [3]

    class Changes:
        async def wait(self, seconds: float) -> None:
            if server.running:
                server.end(SUCCESS)
            elif server.pending:
                server.begin()

    @asynccontextmanager
    async def changes():
        if away[0]:
            away[0] -= 1
            raise Disconnected("no answer")
        yield Changes()

    server.changes = changes
    told = []
    tracker = asyncio.run(run_batch(server, [job("a"), job("b")], patience=60, tell=told.append))
    assert [track.state for track in tracker.tracks] == [State.DONE] * 2 and not away[0] and len(told) == 6
    away[0] = 10**6
    tracker = asyncio.run(run_batch(server, [job("c")], patience=0.05, tell=told.append))
    (track,) = tracker.tracks
    assert track.state is State.LOST and track.error == "no answer; waited 0.05 s" and exit_code(tracker.tracks) == 1


def test_file_names_are_read_back():
    assert stem_of("a_noon_1_00003_.mp4") == stem_of("a_noon_1_00012.mp4") == "a_noon_1"
