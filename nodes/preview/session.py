"""What is known of one render that is being watched, and the place where all of them can be found by their ids."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from .ring import Ring

VERSION = 1  # of the messages
EVENT = "streamrender_h3.preview"
LIFETIME = 600.0  # seconds a preview can still be watched after its render ended
MOST = 16  # previews kept at a time
VIDEO, PICTURES = "fmp4", "jpeg"

log = logging.getLogger("streamrender_h3")

Send = Callable[[str, dict[str, Any], str], None]  # (event, data, client)


@dataclass(frozen=True)
class Plan:
    """What is fixed before the first chunk. All of it is told to the browser."""

    node: str  # id of the sampler as the host writes it, "12:7" inside a subgraph
    prompt: str
    workflow: str  # id of the graph it was queued from, "" when unknown
    height: int  # of the render's half of the picture
    width: int
    fps: int
    frames: int  # of the whole render
    chunk_frames: tuple[int, ...]  # map frames that each chunk reads, trimmed to the clip
    steps: int
    sound: bool = False


@dataclass(frozen=True)
class ChunkFacts:
    """A finished chunk. `first` and `frames` count published pictures; a chunk dropped by the preview has none."""

    index: int
    first: int
    frames: int
    bytes: int
    encode_ms: float
    step_ms: tuple[float, ...]
    decode_ms: float
    preview_ms: float  # waiting for the preview's encoder, and encoding
    at: float  # seconds since the preview was opened
    dropped: bool = False
    suspect: tuple[str, ...] = ()


@dataclass
class Session:
    """One preview. The render's threads change it and the server's loop reads it, hence the lock."""

    plan: Plan
    client: str
    ring: Ring
    send: Send
    transport: str
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    init: bytes = b""
    mime: str = ""
    chunks: list[ChunkFacts] = field(default_factory=list)
    oldest: int = 0
    phase: dict[str, Any] = field(default_factory=lambda: {"chunk": 0, "step": 0})
    end: dict[str, Any] | None = None
    off: bool = False  # the preview failed; the render goes on without it
    memory: dict[str, int] | None = None
    sequence: int = 0
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()

    def tell(self, event: str, **data: Any) -> None:
        """Send an event to the client that queued the prompt; each carries the next number, so that a gap is noticed."""
        with self._lock:
            self.sequence += 1
            message = {"v": VERSION, "event": event, "session": self.id, "node": self.plan.node, "seq": self.sequence}
            self.send(EVENT, {**message, **data}, self.client)

    def open(self) -> None:
        self.tell("open", state=self.state())

    def step(self, chunk: int, step: int) -> None:
        with self._lock:
            self.phase = {"chunk": chunk, "step": step + 1}
            self.tell("status", phase=self.phase)

    def add(self, facts: ChunkFacts, oldest: int, memory: dict[str, int] | None) -> None:
        with self._lock:
            self.chunks.append(facts)
            self.oldest, self.memory = oldest, memory
            self.tell("chunk", chunk=asdict(facts), oldest=oldest, memory=memory, mime=self.mime)

    def switch_off(self) -> None:
        with self._lock:
            self.off = True
            self.tell("status", off=True)

    def finish(self, reason: str, file: dict[str, str] | None) -> None:
        with self._lock:
            self.end = {"reason": reason, "file": file, "at": time.monotonic() - self.started}
            self.tell("end", end=self.end)

    def state(self) -> dict[str, Any]:
        """Everything a browser needs that comes late or comes back."""
        with self._lock:
            return {
                "v": VERSION,
                "session": self.id,
                "seq": self.sequence,
                **asdict(self.plan),
                "transport": self.transport,
                "mime": self.mime,
                "oldest": self.oldest,
                "phase": self.phase,
                "chunks": [asdict(chunk) for chunk in self.chunks],
                "memory": self.memory,
                "end": self.end,
                "off": self.off,
                "age": time.monotonic() - self.started,
            }


class Sessions:
    """All previews by id. At most `MOST`; one per node and client; each is forgotten `lifetime` seconds after its end."""

    def __init__(self, lifetime: float = LIFETIME):
        self.lifetime = lifetime
        self._all: dict[str, Session] = {}
        self._lock = threading.Lock()

    def add(self, session: Session) -> None:
        """Take a session in; what it replaces is forgotten."""
        key = (session.client, session.plan.node, session.plan.workflow)
        with self._lock:
            old = [s for s in self._all.values() if (s.client, s.plan.node, s.plan.workflow) == key]
            room = [s for s in self._all.values() if s not in old]
            old += room[: max(0, len(room) + 1 - MOST)]
            self._all[session.id] = session
        for other in old:
            self.forget(other)

    def find(self, name: str, client: str) -> Session | None:
        """The session with this id, if this client is the one that queued it."""
        with self._lock:
            session = self._all.get(name)
        return session if session is not None and secrets.compare_digest(session.client, client) else None

    def expire_later(self, session: Session) -> None:
        """Forget an ended session when its time has come."""
        timer = threading.Timer(self.lifetime, self.forget, [session])
        timer.daemon = True
        timer.start()

    def forget(self, session: Session) -> None:
        with self._lock:
            self._all.pop(session.id, None)
        session.ring.close()

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            rest = list(self._all.values())
        for session in rest:
            self.forget(session)

    def __len__(self) -> int:
        return len(self._all)
