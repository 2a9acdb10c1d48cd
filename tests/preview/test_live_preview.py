"""The preview of a render: its events, what happens when it fails or falls behind, and that nothing piles up."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
from dataclasses import dataclass

import psutil
import pytest
import torch
from streamrender_h3.nodes import host
from streamrender_h3.nodes.preview import live
from streamrender_h3.nodes.preview.ring import Ring
from streamrender_h3.nodes.preview.session import EVENT, MOST, Session, Sessions
from streamrender_h3.nodes.schedule import RELEASE

LONG = os.environ.get("SRH3_LONG") == "1"
FRAMES, SIZE, STEPS = 60, (32, 48), 2
CHUNKS = RELEASE.chunks_for(FRAMES)


@dataclass(frozen=True)
class Chunk:
    """What the preview reads of a rendered chunk."""

    index: int
    frames: torch.Tensor
    maps: torch.Tensor
    encode_ms: float = 1.0
    step_ms: tuple[float, ...] = (2.0, 3.0)
    decode_ms: float = 4.0


def chunk(index, frames=8, maps=None, size=SIZE):
    maps = frames if maps is None else maps
    return Chunk(index, torch.full((frames, 3, *size), 0.5), torch.full((maps, 3, 16, 24), index, dtype=torch.uint8))


class FakeHost:
    """Takes the place of ComfyUI: remembers what is sent."""

    def __init__(self, folder):
        self.sent, self.client, self.folder, self.number = [], "client", folder, 0

    def send(self, event, data, client):
        json.dumps(data)  # as the host will
        self.sent.append((event, data, client))

    def preview_folder(self):
        self.number += 1
        return self.folder / str(self.number)

    def names(self):
        return [data["event"] for _, data, _ in self.sent]

    def of(self, name):
        return [data for _, data, _ in self.sent if data["event"] == name]


@pytest.fixture
def fake(monkeypatch, tmp_path):
    made = FakeHost(tmp_path)
    monkeypatch.setattr(host, "send", made.send)
    monkeypatch.setattr(host, "client_id", lambda: made.client)
    monkeypatch.setattr(host, "prompt_id", lambda: "prompt")
    monkeypatch.setattr(host, "preview_folder", made.preview_folder)
    monkeypatch.setattr(host, "viewable", lambda path: {"filename": path.name, "subfolder": "", "type": "temp"})
    monkeypatch.setattr(host, "memory_use", lambda: {"used": 1, "total": 2, "device": "cpu"})
    monkeypatch.setattr(host, "was_interrupted", lambda error: isinstance(error, InterruptedError))
    monkeypatch.setattr(live, "SESSIONS", Sessions())
    yield made
    live.SESSIONS.close()


def opened(node="9", extra=None):
    return live.open_preview(node, extra, FRAMES, SIZE, RELEASE, STEPS)


def test_the_client_hears_open_chunk_status_and_end_in_order(fake, tmp_path):
    with opened(extra={"workflow": {"id": "graph"}}) as preview:
        preview.step(0, 0)
        preview.chunk(chunk(0, 30))
        preview.file = tmp_path / "done.mp4"
    assert preview.wait(10)
    assert fake.names() == ["open", "status", "chunk", "end"]
    assert {(event, client) for event, _, client in fake.sent} == {(EVENT, "client")}
    assert [data["seq"] for _, data, _ in fake.sent] == [1, 2, 3, 4]
    state = fake.of("open")[0]["state"]
    assert (state["node"], state["prompt"], state["workflow"], state["steps"]) == ("9", "prompt", "graph", STEPS)
    assert (len(state["chunk_frames"]), sum(state["chunk_frames"])) == (CHUNKS, FRAMES)
    facts = fake.of("chunk")[0]["chunk"]
    assert (facts["index"], facts["first"], facts["frames"], facts["step_ms"]) == (0, 0, 30, (2.0, 3.0))
    assert fake.of("end")[0]["end"]["reason"] == "complete"
    assert fake.of("end")[0]["end"]["file"]["filename"] == "done.mp4"


@pytest.mark.parametrize(("error", "reason"), [(InterruptedError(), "cancelled"), (ValueError("no"), "error")])
def test_the_end_says_how_the_render_ended(fake, error, reason):
    with pytest.raises(type(error)), opened() as preview:
        raise error
    assert preview.wait(10)
    assert fake.of("end")[0]["end"]["reason"] == reason


def test_ids_are_128_bits_and_never_repeat(fake):
    made = []
    for _ in range(3):
        with opened() as preview:
            made.append(preview.session.id)
        preview.wait(10)
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in made)
    assert len(set(made)) == 3


def test_a_render_without_a_client_or_switched_off_has_no_preview(fake, monkeypatch):
    fake.client = None
    with opened() as preview:
        preview.chunk(chunk(0))
    fake.client = "client"
    monkeypatch.setenv(live.SWITCH, "0")
    with opened() as preview:
        preview.step(0, 0)
    assert not fake.sent and not list(fake.folder.iterdir())


def test_map_frames_wait_for_pictures_that_the_decoder_holds_back(fake, monkeypatch):
    """The pair decoder publishes 4 frames later than the map is read: each picture still gets its own map frame."""
    seen = []
    monkeypatch.setattr(live, "stacked", lambda frames, maps, size: seen.extend(maps[:, 0, 0, 0].tolist()) or iter(()))
    monkeypatch.setattr(live, "transport", lambda: "jpeg")
    numbers = torch.arange(17, dtype=torch.uint8)[:, None, None, None].expand(17, 3, 16, 24)
    with opened() as preview:
        preview.chunk(Chunk(0, torch.zeros(5, 3, *SIZE), numbers[:9]))
        preview.chunk(Chunk(1, torch.zeros(12, 3, *SIZE), numbers[9:]))
    assert preview.wait(10)
    assert seen == list(range(17))


def test_a_resumed_render_goes_on_where_the_first_stopped(fake, monkeypatch):
    """Chunk 1 reads map frames 30..38; 26 pictures were published before, so the first 4 have no map of their own."""
    seen = []
    monkeypatch.setattr(live, "stacked", lambda frames, maps, size: seen.extend(maps[:, 0, 0, 0].tolist()) or iter(()))
    monkeypatch.setattr(live, "transport", lambda: "jpeg")
    numbers = torch.arange(30, 39, dtype=torch.uint8)[:, None, None, None].expand(9, 3, 16, 24)
    with live.open_preview("9", None, FRAMES, SIZE, RELEASE, STEPS, shown=26) as preview:
        preview.chunk(Chunk(1, torch.zeros(13, 3, *SIZE), numbers))
    assert preview.wait(10)
    facts = fake.of("chunk")[0]["chunk"]
    assert (facts["first"], facts["frames"]) == (26, 13)
    assert seen == [30] * 4 + list(range(30, 39))


def test_a_chunk_without_pictures_is_announced_and_stores_nothing(fake):
    with opened() as preview:
        preview.chunk(chunk(0, 0, maps=4))
        preview.chunk(chunk(1, 8))
    assert preview.wait(10)
    assert [(facts["chunk"]["frames"], facts["chunk"]["first"]) for facts in fake.of("chunk")] == [(0, 0), (8, 0)]


def test_when_the_encoder_is_behind_whole_chunks_are_dropped_and_said_so(fake, monkeypatch):
    gate, original = threading.Event(), live.Preview._store
    monkeypatch.setattr(live.Preview, "_store", lambda self, *rest: (gate.wait(10), original(self, *rest))[1])
    with opened() as preview:
        started = time.perf_counter()
        for index in range(6):
            preview.chunk(chunk(index))
            if index == 0:
                while preview._work.qsize():  # until the encoder has taken it
                    time.sleep(0.001)
        assert time.perf_counter() - started < 2  # the render never waited
        assert preview._work.qsize() == live.WAITING
        gate.set()
    assert preview.wait(10)
    told = {facts["chunk"]["index"]: facts["chunk"] for facts in fake.of("chunk")}
    assert sorted(told) == list(range(6))
    assert [told[index]["dropped"] for index in range(6)] == [False, False, False, True, True, True]
    assert [told[index]["first"] for index in range(6)] == [8 * index for index in range(6)]


def test_a_failure_is_logged_once_and_never_reaches_the_render(fake, monkeypatch, caplog):
    def broken(self, *rest):
        raise RuntimeError("no encoder today")

    monkeypatch.setattr(live.FragmentEncoder, "encode", broken)
    with caplog.at_level(logging.WARNING), opened() as preview:
        for index in range(5):
            preview.chunk(chunk(index))
            preview.step(index, 0)
    assert preview.wait(10)
    assert [record.message for record in caplog.records] == ["the live preview of node 9 stopped: no encoder today"]
    assert {"off": True}.items() <= next(data for data in fake.of("status") if "off" in data).items()
    assert fake.names()[-1] == "end"


@pytest.mark.parametrize("part", ["client_id", "prompt_id", "preview_folder", "send", "memory_use", "viewable"])
def test_no_failing_part_of_the_host_reaches_the_render(fake, monkeypatch, caplog, part, tmp_path):
    def broken(*rest):
        raise RuntimeError(part)

    monkeypatch.setattr(host, part, broken)
    with caplog.at_level(logging.WARNING), opened() as preview:
        for index in range(3):
            preview.chunk(chunk(index))
        preview.file = tmp_path / "x.mp4"
    if isinstance(preview, live.Preview):
        assert preview.wait(10)
    assert len(caplog.records) == 1


def test_without_h264_chunks_come_as_pictures(fake, monkeypatch):
    from streamrender_h3.nodes.preview.stills import unbundle

    monkeypatch.setattr(live, "transport", lambda: "jpeg")
    with opened() as preview:
        preview.chunk(chunk(0, 3))
    assert preview.wait(10)
    assert fake.of("open")[0]["state"]["transport"] == "jpeg"
    assert len(unbundle(preview.session.ring.get(0))) == 3


def test_suspect_chunks_carry_their_reasons(fake):
    with opened() as preview:
        preview.chunk(chunk(0), suspect=["flash"])
    assert preview.wait(10)
    assert fake.of("chunk")[0]["chunk"]["suspect"] == ("flash",)


def test_a_second_run_replaces_the_first_of_the_same_node_only(fake):
    first = {}
    for node in ("9", "12:9", "9"):
        with opened(node) as preview:
            preview.chunk(chunk(0))
        preview.wait(10)
        first.setdefault(node, preview.session)
    sessions = live.SESSIONS
    assert len(sessions) == 2
    assert sessions.find(first["9"].id, "client") is None
    assert sessions.find(first["12:9"].id, "client") is first["12:9"]
    assert not first["9"].ring.folder.exists()


def test_a_preview_belongs_to_the_client_that_queued_it(fake):
    with opened() as preview:
        name = preview.session.id
        assert live.SESSIONS.find(name, "client") is preview.session
        assert live.SESSIONS.find(name, "another") is None
        assert live.SESSIONS.find(name, "") is None


def test_an_ended_preview_is_forgotten_after_its_time(fake, monkeypatch):
    monkeypatch.setattr(live, "SESSIONS", Sessions(lifetime=0.2))
    with opened() as preview:
        preview.chunk(chunk(0))
    assert preview.wait(10)
    session = preview.session
    assert live.SESSIONS.find(session.id, "client") is session
    deadline = time.monotonic() + 5
    while live.SESSIONS.find(session.id, "client") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert live.SESSIONS.find(session.id, "client") is None
    assert not session.ring.folder.exists()
    assert live.Sessions().lifetime == 600


def test_no_more_than_a_few_previews_are_kept(fake):
    for node in range(MOST + 5):
        with opened(str(node)) as preview:
            pass
        preview.wait(10)
    assert len(live.SESSIONS) == MOST


def test_nothing_piles_up_over_many_chunks_that_nobody_watches(fake, monkeypatch):
    """2,000 chunks when SRH3_LONG=1: disk stays within the ring, memory and threads stay where they were."""
    count = 2000 if LONG else 60
    limit = 100_000
    monkeypatch.setattr(live, "Ring", lambda folder: Ring(folder, limit))
    process, noise = psutil.Process(), torch.Generator().manual_seed(0)
    sizes, before = [], None
    with live.open_preview("9", None, 30 + 8 * count, (96, 96), RELEASE, STEPS) as preview:
        for index in range(count):
            frames = torch.rand(8, 3, 96, 96, generator=noise)
            preview.chunk(Chunk(index, frames, torch.zeros(8, 3, 64, 64, dtype=torch.uint8)))
            while preview._work.qsize():
                time.sleep(0.001)
            fake.sent.clear()
            sizes.append(preview.session.ring.bytes)
            if index == count // 4:
                gc.collect()
                before = process.memory_info().rss
        gc.collect()
        grown = process.memory_info().rss - before
    assert preview.wait(10)
    assert max(sizes) <= limit
    assert preview.session.oldest > count // 2
    print(f"{count} chunks: ring at most {max(sizes)} bytes, memory grew by {grown / 2**20:.1f} MiB")
    assert grown < 24 * 2**20


def test_numbers_of_events_have_no_gap_when_threads_tell_at_once(fake):
    with opened() as preview:
        session: Session = preview.session
        threads = [threading.Thread(target=lambda: [session.step(0, 0) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    preview.wait(10)
    assert [data["seq"] for _, data, _ in fake.sent] == list(range(1, len(fake.sent) + 1))
