"""What the preview's routes give, and to whom: every bad, foreign or vanished address is the same 404."""

from __future__ import annotations

import asyncio
import functools
import time

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from streamrender_h3.nodes.preview import PreviewRoutes
from streamrender_h3.nodes.preview import routes as module
from streamrender_h3.nodes.preview.fragment import FragmentEncoder
from streamrender_h3.nodes.preview.picture import Converter
from streamrender_h3.nodes.preview.ring import Ring
from streamrender_h3.nodes.preview.session import ChunkFacts, Plan, Session, Sessions
from streamrender_h3.nodes.preview.stills import bundle, unbundle

BASE = "/streamrender_h3/preview"
PICTURES = [np.full((3, 64, 48), 30 * number, np.uint8) for number in range(8)]


@functools.cache
def fragments():
    encoder = FragmentEncoder((64, 48))
    return [encoder.encode(8 * index, map(Converter(), PICTURES)) for index in range(3)]


def session_of(folder, client="me", node="9", transport="fmp4"):
    plan = Plan(node, "prompt", "", 32, 48, 24, 24, (8, 8, 8), 2)
    session = Session(plan, client, Ring(folder), lambda *rest: None, transport)
    for index, fragment in enumerate(fragments()):
        session.init, session.mime = fragment.init, fragment.mime
        data = fragment.segment if transport == "fmp4" else bundle(PICTURES)
        session.ring.put(index, data)
        session.add(ChunkFacts(index, 8 * index, 8, len(data), 1.0, (2.0,), 3.0, 4.0, 5.0), 0, None)
    return session


@pytest.fixture
def sessions(tmp_path):
    made = Sessions()
    made.add(session_of(tmp_path / "mine"))
    made.add(session_of(tmp_path / "yours", "you"))
    made.add(session_of(tmp_path / "pictures", "me", "10", "jpeg"))
    yield made
    made.close()


def served(sessions, work):
    """Run `work(client, mine, yours, pictures)` against a server with the routes."""

    async def run():
        app = web.Application()
        for path, handler in PreviewRoutes(sessions).table().items():
            app.router.add_get(path, handler)
        async with TestClient(TestServer(app)) as client:
            return await work(client, *sessions._all.values())

    return asyncio.run(run())


def get(sessions, *paths):
    """(status, body) of each path; `{mine}` and the like stand for ids."""

    async def work(client, mine, yours, pictures):
        out = []
        for path in paths:
            path = path.format(mine=mine.id, yours=yours.id, pictures=pictures.id)
            answer = await client.get(BASE + path)
            out.append((answer.status, await answer.read()))
        return out

    return served(sessions, work)


def test_state_init_and_segments_are_given_to_their_client(sessions):
    (mine, *_), suffix = sessions._all.values(), "?client=me"
    answers = get(sessions, *(f"/{{mine}}/{name}{suffix}" for name in ("state", "init.mp4", "seg/0.m4s", "seg/2.m4s")))
    assert [status for status, _ in answers] == [200] * 4
    assert answers[1][1] == mine.init
    assert answers[2][1] == mine.ring.get(0) and answers[3][1] == mine.ring.get(2)


def test_answers_are_not_cached_and_say_what_they_are(sessions):
    async def work(client, mine, *_):
        answer = await client.get(f"{BASE}/{mine.id}/seg/1.m4s?client=me")
        return answer.headers["Cache-Control"], answer.content_type

    assert served(sessions, work) == ("no-store", "video/mp4")


def test_a_video_chunk_can_be_had_as_pictures(sessions):
    answers = get(sessions, "/{mine}/frames/1?client=me", "/{pictures}/frames/1?client=me")
    assert [status for status, _ in answers] == [200, 200]
    assert [len(unbundle(body)) for _, body in answers] == [8, 8]


@pytest.mark.parametrize(
    "path",
    [
        "/{mine}/state",  # no client
        "/{mine}/state?client=",
        "/{mine}/state?client=you",
        "/{yours}/state?client=me",  # another session's id
        "/{yours}/seg/0.m4s?client=me",
        "/{yours}/frames/0?client=me",
        "/" + "0" * 32 + "/state?client=me",
        "/..%2f..%2fetc/state?client=me",
        "/../../etc/passwd?client=me",
        "/%2e%2e/state?client=me",
        "/{mine}/seg/..%2f..%2fsecret.m4s?client=me",
        "/{mine}/seg/%2e%2e.m4s?client=me",
        "/{mine}/seg/3.m4s?client=me",
        "/{mine}/seg/-1.m4s?client=me",
        "/{mine}/seg/0x1.m4s?client=me",
        "/{mine}/seg/01.m4s?client=me",
        "/{mine}/seg/1-2.m4s?client=me",
        "/{mine}/seg/٣.m4s?client=me",
        "/{mine}/seg/99999999999999999999999999.m4s?client=me",
        "/{mine}/frames/99999999999999999999999999?client=me",
        "/{mine}/frames/3?client=me",
        "/{mine}/frames/..?client=me",
        "/{mine}/frames/?client=me",
        "/{pictures}/seg/0.m4s?client=me",  # this one has no video
        "/{pictures}x/state?client=me",
        "/state?client=me",
        "?client=me",
    ],
)
def test_every_other_address_is_a_404(sessions, path):
    ((status, body),) = get(sessions, path)
    assert status == 404
    assert b"Traceback" not in body and len(body) < 100


def test_a_range_changes_nothing(sessions):
    async def work(client, mine, *_):
        out = []
        for wish in ("bytes=0-10", "bytes=999999999-", "bytes=5-1", "nonsense"):
            answer = await client.get(f"{BASE}/{mine.id}/seg/0.m4s?client=me", headers={"Range": wish})
            out.append((answer.status, await answer.read() == mine.ring.get(0)))
        return out

    assert served(sessions, work) == [(200, True)] * 4


def test_a_forgotten_preview_is_a_404_at_once(sessions):
    async def work(client, mine, *_):
        before = (await client.get(f"{BASE}/{mine.id}/frames/0?client=me")).status
        sessions.forget(mine)
        after = [(await client.get(f"{BASE}/{mine.id}/{name}?client=me")).status for name in ("state", "frames/0")]
        return before, after

    assert served(sessions, work) == (200, [404, 404])


def test_fifty_readers_at_once_share_the_work_and_the_server_stays_awake(sessions, monkeypatch):
    calls = []

    def slow(session, number, original=module._decode):
        calls.append(number)
        time.sleep(0.2)  # a machine that is busy
        return original(session, number)

    monkeypatch.setattr(module, "_decode", slow)

    async def work(client, mine, *_):
        readers = [client.get(f"{BASE}/{mine.id}/frames/{number % 3}?client=me") for number in range(50)]
        crowd, waits = asyncio.gather(*readers), []
        while not crowd.done():
            started = time.perf_counter()
            assert (await client.get(f"{BASE}/{mine.id}/state?client=me")).status == 200
            waits.append(time.perf_counter() - started)
            await asyncio.sleep(0.01)
        return [answer.status for answer in await crowd], max(waits)

    statuses, wait = served(sessions, work)
    assert statuses == [200] * 50
    assert sorted(calls) == [0, 1, 2]
    assert wait < 0.5


def test_slow_readers_hold_nobody_up(sessions):
    """Readers that ask for a large chunk and then do not read."""
    mine = next(iter(sessions._all.values()))
    mine.ring.put(2, bytes(8 << 20))

    async def work(client, mine, *_):
        host, port = client.server.host, client.server.port
        ask = f"GET {BASE}/{mine.id}/seg/2.m4s?client=me HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        writers = []
        for _ in range(20):
            _, writer = await asyncio.open_connection(host, port, limit=1024)
            writer.write(ask)
            await writer.drain()
            writers.append(writer)
        await asyncio.sleep(0.2)
        started = time.perf_counter()
        answers = [await client.get(f"{BASE}/{mine.id}/seg/0.m4s?client=me") for _ in range(10)]
        took = time.perf_counter() - started
        for writer in writers:
            writer.close()
        return [answer.status for answer in answers], took

    statuses, took = served(sessions, work)
    assert statuses == [200] * 10
    assert took < 2
