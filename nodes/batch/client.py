"""A running ComfyUI as a batch needs it: its queue and history, prompts, uploads, and what it has saved."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..file_hash import file_hash
from .errors import BatchError
from .graph import JOB, Job
from .prompt import WorkflowError, refusal

SAVED_ROUTE = "/streamrender_h3/saved"
UPLOADS = "streamrender_h3/queue"  # below the host's input folder
ANSWER_SECONDS = 60.0
AWAY = (502, 503, 504)  # what a proxy says while the server behind it starts


class Disconnected(Exception):
    """The server does not answer, or has gone away while it was listened to."""


@dataclass(frozen=True)
class Queue:
    """Prompts that wait or run: id -> key of the job, None for those of other people."""

    running: Mapping[str, str | None]
    pending: Mapping[str, str | None]


@dataclass(frozen=True)
class Saved:
    """A video in the host's output folder. `complete` is what its run report says; without a report, that it can be read."""

    file: str
    key: str | None
    complete: bool
    frames: int | None = None
    seconds: float | None = None


class Changes:
    """Listens to the server; `wait` returns when its queue has changed, or after some seconds. Raises `Disconnected`."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._changed = socket, asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if isinstance(message.data, str) and json.loads(message.data).get("type") == "status":
                    self._changed.set()
        finally:
            self._changed.set()

    async def wait(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        self._changed.clear()
        if self._reader.done():
            raise Disconnected("the server closed the connection")

    async def close(self) -> None:
        self._reader.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._reader


class Server:
    """One server by its address. Every method raises `Disconnected` when there is no answer."""

    def __init__(self, url: str, http: Any) -> None:
        self.url, self._http = url, http

    @classmethod
    @asynccontextmanager
    async def at(cls, url: str) -> AsyncIterator[Server]:
        try:
            import aiohttp
        except ImportError:
            raise BatchError("this Python has no aiohttp; use ComfyUI's Python, which has it") from None
        # Prompts hold whole graphs, and uploads whole clips: the time limit is for silence, not for length.
        silence = aiohttp.ClientTimeout(total=None, connect=ANSWER_SECONDS, sock_read=ANSWER_SECONDS)
        async with aiohttp.ClientSession(url, timeout=silence) as http:
            yield cls(url, http)

    async def object_info(self) -> dict[str, Any]:
        return await self._get("/object_info")

    async def queue(self) -> Queue:
        found = await self._get("/queue")
        running, pending = (
            {entry[1]: _key_of(entry) for entry in found[f"queue_{kind}"]} for kind in ("running", "pending")
        )
        return Queue(running, pending)

    async def history(self, prompt_id: str) -> dict[str, Any] | None:
        """The history entry of a prompt, None when the server knows it not."""
        return (await self._get(f"/history/{prompt_id}")).get(prompt_id)

    async def saved(self, folder: str, name: str = "") -> list[Saved]:
        """The videos in this folder of the output folder whose names begin with `name`."""
        found = await self._get(SAVED_ROUTE, folder=folder, name=name)
        return [Saved(**entry) for entry in found["files"]]

    async def submit(self, job: Job) -> str:
        """Queue a job; its prompt id. Raises `WorkflowError` in the server's own words when it refuses."""
        body = {"prompt": job.prompt, "extra_data": job.extra}
        status, reply = await self._ask("post", "/prompt", json=body)
        if status != 200:
            raise WorkflowError(refusal(reply or {}, job.prompt))
        if reply.get("node_errors"):  # queued without the outputs that cannot be made
            await self.remove(reply["prompt_id"])
            raise WorkflowError(refusal({"error": {"message": "a part cannot run"}, **reply}, job.prompt))
        return str(reply["prompt_id"])

    async def remove(self, prompt_id: str) -> None:
        """Take a prompt that waits out of the queue."""
        await self._ask("post", "/queue", json={"delete": [prompt_id]})

    async def forget_results(self) -> None:
        """Have the server drop what it has cached, so that the next prompt is rendered in full."""
        await self._ask("post", "/free", json={"free_memory": True})

    async def upload(self, path: Path) -> str:
        """Put a file, or a folder of frames, into the input folder under the hash of its content; its name there."""
        if path.is_dir():
            folder = f"{UPLOADS}/{clip_hash(path)}"
            for file in frame_files(path):
                await self._upload(file, folder, file.name)
            return folder
        name = f"{file_hash(path)[:32]}{path.suffix.lower()}"
        await self._upload(path, UPLOADS, name)
        return f"{UPLOADS}/{name}"

    async def _upload(self, path: Path, folder: str, name: str) -> None:
        import aiohttp

        with self._named():
            query = {"filename": name, "subfolder": folder, "type": "input"}
            async with self._http.head("/view", params=query) as answer:
                if answer.status == 200 and answer.content_length in (None, path.stat().st_size):
                    return
        form = aiohttp.FormData()
        with path.open("rb") as file:
            for field, value in (("type", "input"), ("subfolder", folder), ("overwrite", "true")):
                form.add_field(field, value)
            form.add_field("image", file, filename=name, content_type="application/octet-stream")
            status, _ = await self._ask("post", "/upload/image", data=form)
        if status != 200:
            raise BatchError(
                f"the server does not take {path} ({path.stat().st_size / 1e6:.0f} MB): code {status}. Start ComfyUI with a "
                "larger --max-upload-size, or use a path that it can read, without --upload"
            )

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Changes]:
        with self._named():
            socket = await self._http.ws_connect(f"/ws?clientId={uuid.uuid4().hex}", max_msg_size=0, heartbeat=30)
        changes = Changes(socket)
        try:
            yield changes
        finally:
            await changes.close()
            await socket.close()

    async def _get(self, route: str, **query: str) -> Any:
        status, reply = await self._ask("get", route, params=query)
        if status == 404 and route == SAVED_ROUTE:
            raise BatchError(f"the pack in {self.url} cannot tell what it has saved; update it there")
        if status != 200:
            raise BatchError(f"{self.url}{route} answers with code {status}; is this a ComfyUI?")
        return reply

    async def _ask(self, method: str, route: str, **more: Any) -> tuple[int, Any]:
        with self._named():
            async with self._http.request(method, route, **more) as answer:
                text = await answer.text()
        if answer.status in AWAY:
            raise Disconnected(f"{self.url} answers with code {answer.status}")
        try:
            return answer.status, json.loads(text) if text.strip() else None
        except ValueError:
            return answer.status or 500, None

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Whatever a lost connection raises becomes `Disconnected`."""
        import aiohttp

        try:
            yield
        except (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError) as error:
            raise Disconnected(f"{self.url} does not answer ({error or type(error).__name__})") from error


def _key_of(entry: list[Any]) -> str | None:
    """The key of the job that a queue entry is, as `Job.extra` wrote it."""
    more = next((part for part in entry[3:] if isinstance(part, dict)), {})
    about = ((more.get("extra_pnginfo") or {}).get(JOB)) or {}
    return about.get("key") if isinstance(about, dict) else None


def clip_hash(path: Path) -> str:
    """Hash of a clip's content: of its file, or of the names and contents of its frames."""
    if path.is_file():
        return file_hash(path)[:32]
    lines = "\n".join(f"{file.name} {file_hash(file)}" for file in frame_files(path))
    return hashlib.sha256(lines.encode()).hexdigest()[:32]


def frame_files(folder: Path) -> list[Path]:
    """The files of a folder of frames."""
    return sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
