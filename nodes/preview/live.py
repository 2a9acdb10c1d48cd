"""Publishes a render while it runs. Whatever goes wrong here is logged once and never reaches the render."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .. import host
from ..schedule import FPS
from .fragment import FragmentEncoder, NoVideoEncoder, require_encoder
from .picture import Converter, preview_size, stacked
from .ring import Ring
from .session import PICTURES, VIDEO, ChunkFacts, Plan, Session, Sessions
from .stills import bundle

WAITING = 2  # chunks that may wait for the encoder; a third is dropped
SWITCH = "SRH3_PREVIEW"  # 0 turns previews off

SESSIONS = Sessions()

log = logging.getLogger(host.PACK)


class Finished(Protocol):
    """The part of a rendered chunk that is shown."""

    @property
    def index(self) -> int: ...
    @property
    def frames(self) -> Tensor: ...  # [m, 3, H, W] in [0, 1]
    @property
    def maps(self) -> Tensor: ...  # [n, 3, h', w'] uint8
    @property
    def encode_ms(self) -> float: ...
    @property
    def step_ms(self) -> tuple[float, ...]: ...
    @property
    def decode_ms(self) -> float: ...


class Spanned(Protocol):
    """A chunk that is planned."""

    @property
    def frames(self) -> range: ...  # of the clip, read by it


class Chunked(Protocol):
    """What says how a clip falls into chunks: the stream's schedule, or the plan of a whole clip."""

    def windows(self, frames: int) -> Iterable[Spanned]:
        """The chunks of a clip of `frames` frames, in order."""


class Unwatched:
    """The preview of a render that nobody can watch."""

    file: Path | None = None  # what can be opened when the render is over

    def step(self, chunk: int, step: int) -> None:
        """Say that a denoising step of a chunk is done."""

    def chunk(self, done: Finished, suspect: Sequence[str] = (), sound: np.ndarray | None = None) -> None:
        """Publish a chunk; `suspect` are reasons to look at it twice, `sound` its samples [2, n] at 48 kHz."""


class Preview(Unwatched):
    """Encodes and announces chunks in a thread of its own. Every method returns at once and raises nothing."""

    def __init__(self, session: Session, sessions: Sessions, shown: int = 0):
        """`shown` pictures were published before, by the render that this one resumes."""
        self.session, self._sessions = session, sessions
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._maps: deque[Tensor] = deque()  # map frames whose pictures the decoder still holds back
        self._shown, self._reason = shown, "error"
        plan = session.plan
        self._size = (plan.height, plan.width)
        self._convert = Converter()
        self._encoder = FragmentEncoder((2 * plan.height, plan.width), Fraction(plan.fps), plan.sound)
        self._thread = threading.Thread(target=self._publish, name="streamrender_h3 preview", daemon=True)
        self._safely(sessions.add, session)
        self._safely(session.open)
        self._thread.start()

    def step(self, chunk: int, step: int) -> None:
        self._safely(self.session.step, chunk, step)

    def chunk(self, done: Finished, suspect: Sequence[str] = (), sound: np.ndarray | None = None) -> None:
        self._safely(self._take, done, tuple(suspect), sound)

    def close(self, reason: str) -> None:
        """Announce the end once the chunks that still wait are published. Does not wait for it."""
        self._reason = reason
        self._work.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait until everything is published; whether it is."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _take(self, done: Finished, suspect: tuple[str, ...], sound: np.ndarray | None) -> None:
        if (
            done.index and not self.session.chunks and not self._maps
        ):  # resumed: the maps of pictures held back are gone
            behind = sum(self.session.plan.chunk_frames[: done.index]) - self._shown
            self._maps.extend(done.maps[:1].expand(max(0, behind), -1, -1, -1))
        self._maps.extend(done.maps)
        maps = [self._next_map() for _ in done.frames]
        first, queued = self._shown, time.perf_counter()
        self._shown += len(maps)

        def announce(frames: int, size: int, oldest: int, dropped: bool = False) -> None:
            facts = ChunkFacts(
                index=done.index,
                first=first,
                frames=frames,
                bytes=size,
                encode_ms=round(done.encode_ms, 2),
                step_ms=tuple(round(ms, 2) for ms in done.step_ms),
                decode_ms=round(done.decode_ms, 2),
                preview_ms=round(1000 * (time.perf_counter() - queued), 2),
                at=round(time.monotonic() - self.session.started, 3),
                dropped=dropped,
                suspect=suspect,
            )
            self.session.add(facts, oldest, host.memory_use())

        def publish() -> None:
            size, oldest = self._store(done, first, maps, sound) if maps else (0, self.session.oldest)
            announce(len(maps), size, oldest)

        if self._work.qsize() < WAITING:
            self._work.put(publish)
        else:
            announce(0, 0, self.session.oldest, dropped=True)

    def _next_map(self) -> Tensor:
        if self._maps:
            self._map = self._maps.popleft()
        return self._map  # the last one again if ever there are more pictures than maps

    def _store(self, done: Finished, first: int, maps: list[Tensor], sound: np.ndarray | None) -> tuple[int, int]:
        pictures = stacked(done.frames, torch.stack(maps), self._size)
        if self.session.transport == VIDEO:
            fragment = self._encoder.encode(first, map(self._convert, pictures), sound)
            self.session.init, self.session.mime, data = fragment.init, fragment.mime, fragment.segment
        else:
            data = bundle(pictures)
        return len(data), self.session.ring.put(done.index, data)

    def _publish(self) -> None:
        while (work := self._work.get()) is not None:
            self._safely(work)
        try:
            self.session.finish(self._reason, host.viewable(self.file) if self.file else None)
        except Exception as error:
            self._failed(error)
        finally:
            self._sessions.expire_later(self.session)

    def _safely(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do it unless the preview has failed before; a failure ends the preview, not the render."""
        if self.session.off:
            return
        try:
            action(*arguments)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Log the first failure and tell the browser, if it can be told."""
        if self.session.off:
            return
        self.session.off = True
        log.warning("the live preview of node %s stopped: %s", self.session.plan.node, error, exc_info=error)
        try:
            self.session.switch_off()
        except Exception:
            log.debug("nor could the browser be told", exc_info=True)


def workflow_id(extra: Any) -> str:
    """The id of the graph a prompt was queued from, as the browser sends it along; "" without a browser."""
    workflow = extra.get("workflow") if isinstance(extra, dict) else None
    return str(workflow.get("id") or "") if isinstance(workflow, dict) else ""


def plan_of(node: str, workflow: str, frames: int, size: tuple[int, int], schedule: Chunked, steps: int) -> Plan:
    """What is known before the first chunk. `size` (height, width) of the render, `frames` its length."""
    height, width = preview_size(*size)
    spans = [window.frames for window in schedule.windows(frames)]
    return Plan(
        node=node,
        prompt=host.prompt_id(),
        workflow=workflow,
        height=height,
        width=width,
        fps=FPS,
        frames=frames,
        chunk_frames=tuple(max(0, min(span.stop, frames) - span.start) for span in spans),
        steps=steps,
    )


def transport() -> str:
    """How chunks travel: as video, or as pictures where H.264 cannot be encoded."""
    try:
        require_encoder()
    except NoVideoEncoder as error:
        log.info("%s", error)
        return PICTURES
    return VIDEO


@contextmanager
def open_preview(
    node: str | None, extra: Any, frames: int, size: tuple[int, int], schedule: Chunked, steps: int, shown: int = 0
) -> Iterator[Unwatched]:
    """The preview of a render, for as long as it runs; leaving tells how it ended: complete, cancelled or error.

    `extra` is the host's extra_pnginfo, which names the graph; `shown` counts pictures of the render that is resumed.
    """
    preview = _begin(node, extra, frames, size, schedule, steps, shown)
    reason = "error"
    try:
        yield preview
        reason = "complete"
    except BaseException as error:
        reason = "cancelled" if host.was_interrupted(error) else "error"
        raise
    finally:
        if isinstance(preview, Preview):
            preview.close(reason)


def _begin(
    node: str | None, extra: Any, frames: int, size: tuple[int, int], schedule: Chunked, steps: int, shown: int
) -> Unwatched:
    """A preview, or one that does nothing when it is switched off, has no client or cannot start."""
    try:
        client = host.client_id()
        if client is None or node is None or os.environ.get(SWITCH) == "0":
            return Unwatched()
        plan = plan_of(node, workflow_id(extra), frames, size, schedule, steps)
        ring = Ring(host.preview_folder())
        return Preview(Session(plan, client, ring, host.send, transport()), SESSIONS, shown)
    except Exception as error:
        log.warning("no live preview of node %s: %s", node, error, exc_info=True)
        return Unwatched()
