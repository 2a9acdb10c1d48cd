"""What the browser may ask for: the state of a preview, its init segment, a chunk as video, a chunk as pictures.

Everything that is not exactly a chunk of a preview that belongs to the asking client is answered by the same 404.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .session import PICTURES, VIDEO, Session, Sessions
from .stills import MIME as PICTURES_MIME
from .stills import bundle_of_fragment

if TYPE_CHECKING:
    from aiohttp import web

BASE = "/streamrender_h3/preview"
IDENTIFIER, NUMBER = re.compile(r"[0-9a-f]{32}"), re.compile(r"0|[1-9][0-9]{0,6}")
KEPT = 4  # bundles of pictures made on demand that are kept for the next reader
WORKERS = 2  # threads that read files and make pictures; a crowd of readers waits in line, the server does not


class PreviewRoutes:
    """The handlers over `sessions`. One object per server."""

    def __init__(self, sessions: Sessions):
        self._sessions = sessions
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="streamrender_h3 preview files")
        self._bundles: OrderedDict[tuple[str, int], asyncio.Future[bytes | None]] = OrderedDict()

    def table(self) -> dict[str, Any]:
        """Path pattern -> handler, for GET."""
        session = BASE + "/{session}"
        return {
            session + "/state": self.state,
            session + "/init.mp4": self.init,
            session + "/seg/{number}.m4s": self.segment,
            session + "/frames/{number}": self.frames,
        }

    async def state(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.json_response(self._session(request).state(), headers={"Cache-Control": "no-store"})

    async def init(self, request: web.Request) -> web.Response:
        return _answer(self._session(request).init or None, "video/mp4")

    async def segment(self, request: web.Request) -> web.Response:
        session, number = self._session(request), _number(request)
        wanted = session.transport == VIDEO
        return _answer(await self._in_thread(session.ring.get, number) if wanted else None, "video/mp4")

    async def frames(self, request: web.Request) -> web.Response:
        session, number = self._session(request), _number(request)
        if session.transport == PICTURES:
            return _answer(await self._in_thread(session.ring.get, number), PICTURES_MIME)
        return _answer(await self._pictures(session, number), PICTURES_MIME)

    async def _pictures(self, session: Session, number: int) -> bytes | None:
        """A video chunk as pictures; several readers of one chunk share the work."""
        key = (session.id, number)
        if key not in self._bundles:
            self._bundles[key] = asyncio.ensure_future(self._in_thread(_decode, session, number))
            while len(self._bundles) > KEPT:
                self._bundles.popitem(last=False)
        self._bundles.move_to_end(key)
        data = await asyncio.shield(self._bundles[key])
        if data is None:
            self._bundles.pop(key, None)
        return data

    async def _in_thread(self, function: Any, *arguments: Any) -> bytes | None:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def _session(self, request: web.Request) -> Session:
        name, client = request.match_info["session"], request.query.get("client", "")
        session = self._sessions.find(name, client) if IDENTIFIER.fullmatch(name) else None
        if session is None:
            raise _not_found()
        return session


def _decode(session: Session, number: int) -> bytes | None:
    segment = session.ring.get(number)
    return bundle_of_fragment(session.init, segment) if segment is not None else None


def _number(request: web.Request) -> int:
    text = request.match_info["number"]
    if not NUMBER.fullmatch(text):
        raise _not_found()
    return int(text)


def _answer(data: bytes | None, kind: str) -> web.Response:
    from aiohttp import web

    if data is None:
        raise _not_found()
    return web.Response(body=data, content_type=kind, headers={"Cache-Control": "no-store"})


def _not_found() -> web.HTTPNotFound:
    from aiohttp import web

    return web.HTTPNotFound(text="no such preview", headers={"Cache-Control": "no-store"})
