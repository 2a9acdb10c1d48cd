"""Queue one graph in a running ComfyUI and wait for it.

`python -m streamrender_h3.workflows.run WORKFLOW.json --server URL [--out DIR]`. Progress comes over the websocket. Needs aiohttp,
which every ComfyUI has. For many clips there is `cli.py queue`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import struct
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ..nodes.batch.prompt import WorkflowError, refusal, to_api

END_EVENTS = {"execution_success", "execution_error", "execution_interrupted"}


@dataclass(frozen=True)
class Preview:
    """One picture a node sent while it worked, as encoded bytes."""

    image: bytes
    mime: str
    node: str | None


@dataclass(frozen=True)
class Event:
    """One websocket message: a JSON message (`kind`, `data`) or, with kind "preview", a picture."""

    kind: str
    data: dict[str, Any]
    preview: Preview | None = None


@dataclass(frozen=True)
class Result:
    """What a finished prompt left: its end event, its history entry and every message on the way."""

    prompt_id: str
    end: Event
    history: dict[str, Any]
    events: list[Event] = field(repr=False)

    @property
    def previews(self) -> list[Preview]:
        return [event.preview for event in self.events if event.preview]

    def files(self, kind: str = "output") -> list[dict[str, str]]:
        """The saved files, as {filename, subfolder, type}, of this type (output or temp)."""
        found = []
        for shown in self.history.get("outputs", {}).values():
            for entries in shown.values():
                found += [e for e in entries if isinstance(e, dict) and "filename" in e and e.get("type") == kind]
        return found

    def raise_for_failure(self) -> Result:
        """Itself after success; WorkflowError with the node's own words otherwise."""
        data = self.end.data
        if self.end.kind == "execution_error":
            raise WorkflowError(
                f"node {data['node_id']} ({data['node_type']}): {str(data['exception_message']).strip()}"
            )
        if self.end.kind == "execution_interrupted":
            raise WorkflowError(f"interrupted in node {data['node_id']} ({data['node_type']})")
        return self


async def run_prompt(
    server: str,
    prompt: Mapping[str, Any],
    *,
    on_event: Callable[[Event], None] | None = None,
    timeout: float | None = None,
    feature_flags: bool = True,
    workflow: Mapping[str, Any] | None = None,
) -> Result:
    """Queue an API graph and wait for its end; `on_event` sees every message as it comes.

    `workflow` is the UI graph, stored by the host in the files it saves. Raises WorkflowError when the server refuses
    the graph, TimeoutError after `timeout` seconds; a failing node is reported in the result, not raised.
    """
    return await asyncio.wait_for(_run_prompt(server, prompt, on_event, feature_flags, workflow), timeout)


async def _run_prompt(
    server: str,
    prompt: Mapping[str, Any],
    on_event: Callable[[Event], None] | None,
    feature_flags: bool,
    workflow: Mapping[str, Any] | None,
) -> Result:
    import aiohttp

    client, events = uuid.uuid4().hex, []
    async with aiohttp.ClientSession(server, timeout=aiohttp.ClientTimeout(total=None)) as http:
        async with http.ws_connect(f"/ws?clientId={client}", max_msg_size=0, heartbeat=30) as socket:
            if feature_flags:
                await socket.send_json({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
            body = {"prompt": prompt, "client_id": client}
            if workflow is not None:
                body["extra_data"] = {"extra_pnginfo": {"workflow": workflow}}
            async with http.post("/prompt", json=body) as answer:
                reply = await answer.json()
                if answer.status != 200:
                    raise WorkflowError(refusal(reply, prompt))
            end = None
            async for message in socket:
                event = _event(message.data)
                if event is None or event.data.get("prompt_id", reply["prompt_id"]) != reply["prompt_id"]:
                    continue
                events.append(event)
                if on_event:
                    on_event(event)
                if event.kind in END_EVENTS:
                    end = event
                    break
            if end is None:
                raise WorkflowError("the server closed the connection before the prompt was finished; look at its log")
        history = await _history(http, reply["prompt_id"])
    return Result(reply["prompt_id"], end, history, events)


async def _history(http: Any, prompt_id: str) -> dict[str, Any]:
    for _ in range(100):  # the entry is written just after the end event
        async with http.get(f"/history/{prompt_id}") as answer:
            found = await answer.json()
        if prompt_id in found:
            return found[prompt_id]
        await asyncio.sleep(0.05)
    raise WorkflowError("the server keeps no history of the finished prompt")


def _event(data: Any) -> Event | None:
    if isinstance(data, str):
        message = json.loads(data)
        return Event(message["type"], message.get("data") or {})
    if not isinstance(data, bytes):
        return None
    kind, word = struct.unpack(">II", data[:8])
    if kind == 1:  # picture without metadata
        return Event("preview", {}, Preview(data[8:], "image/png" if word == 2 else "image/jpeg", None))
    if kind == 4:  # picture after JSON metadata of `word` bytes
        meta = json.loads(data[8 : 8 + word])
        return Event("preview", meta, Preview(data[8 + word :], meta.get("image_type", ""), meta.get("node_id")))
    return None


class ProgressBar:
    """The state of a running prompt in one line: redrawn on a terminal, one line per node and quarter elsewhere."""

    def __init__(self, prompt: Mapping[str, Any], stream: Any = sys.stdout) -> None:
        self.titles = {key: node.get("_meta", {}).get("title", node["class_type"]) for key, node in prompt.items()}
        self.stream, self.live, self.start, self.last = stream, stream.isatty(), time.monotonic(), ("", -1)

    def __call__(self, event: Event) -> None:
        if event.kind == "progress_state":
            for key, node in event.data["nodes"].items():
                if node["state"] == "running":
                    self._draw(self.titles.get(node.get("display_node_id", key), key), node["value"], node["max"])
        elif event.kind in END_EVENTS and self.live:
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def _draw(self, title: str, value: float, top: float) -> None:
        part = value / top if top else 0.0
        took = int(time.monotonic() - self.start)
        clock, count = f"{took // 60}:{took % 60:02d}", f"{value:g}/{top:g}" if top > 1 else ""
        if self.live:
            bar = "#" * round(30 * part)
            line = f"{clock} {title[:30]} [{bar:.<30}] {count}"
            self.stream.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        elif (title, int(4 * part)) != self.last:
            self.last = (title, int(4 * part))
            self.stream.write(f"{clock} {title} {count}".rstrip() + "\n")
        self.stream.flush()


async def run_workflow(
    server: str, workflow: Mapping[str, Any], *, on_event: Callable[[Event], None] | None = None, bar: bool = False
) -> Result:
    """Convert a graph with the server's own node list and run it to its end; WorkflowError when a node fails."""
    import aiohttp

    async with aiohttp.ClientSession(server) as http, http.get("/object_info") as answer:
        prompt = to_api(workflow, await answer.json())
    listener = ProgressBar(prompt) if bar and on_event is None else on_event
    result = await run_prompt(server, prompt, on_event=listener, workflow=workflow if "nodes" in workflow else None)
    return result.raise_for_failure()


async def download(server: str, files: list[dict[str, str]], folder: Path) -> list[Path]:
    """Fetch saved files through /view into `folder`; an existing name gets a number instead of being overwritten."""
    import aiohttp

    paths = []
    async with aiohttp.ClientSession(server) as http:
        for entry in files:
            async with http.get("/view?" + urlencode(entry)) as answer:
                answer.raise_for_status()
                path = _unused(folder / Path(entry["filename"]).name)
                with open(path, "wb") as file:
                    async for block in answer.content.iter_chunked(1 << 20):
                        file.write(block)
            paths.append(path)
    return paths


def _unused(path: Path) -> Path:
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.stem}_{number}{path.suffix}"), number + 1
    return candidate


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Queue a workflow in a running ComfyUI and wait for it.")
    parser.add_argument("workflow", type=Path, help="workflow file, as saved by the editor or in API format")
    parser.add_argument(
        "--server", default="http://127.0.0.1:8188", help="address of the server (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, help="folder to copy the saved files to (default: leave them on the server)"
    )
    chosen = parser.parse_args(arguments)
    server = chosen.server.rstrip("/")
    try:
        workflow = json.loads(chosen.workflow.read_text(encoding="utf-8"))
        result = asyncio.run(run_workflow(server, workflow, bar=True))
        if chosen.out:
            chosen.out.mkdir(parents=True, exist_ok=True)
            for path in asyncio.run(download(server, result.files(), chosen.out)):
                print(path)
        else:
            for entry in result.files():
                print(f"{server}/view?{urlencode(entry)}")
    except KeyboardInterrupt:
        print("stopped waiting; the server goes on unless you press its stop button", file=sys.stderr)
        return 130
    except Exception as error:
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
