"""The host's server and the prompt that runs: progress, messages, cancel, routes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

AFTER_PROMPT_SECONDS = 0.5


def _server() -> Any:
    """The host's server, loaded long before us; None where nodes are used without one, as scripts and tests do."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)


def show_text(text: str, node_id: str | None) -> None:
    """Show a text on a node while it runs."""
    server = _server()
    if node_id is not None and server is not None:
        server.send_progress_text(text, node_id)


def progress(total: int, node_id: str | None) -> Callable[[int, Tensor | None], None]:
    """A function `(done, frame or None)`: moves the node's bar and shows the frame [3, H, W] in [0, 1] on the node."""
    import comfy.utils
    from PIL import Image

    bar = comfy.utils.ProgressBar(total, node_id=node_id)

    def report(done: int, frame: Tensor | None) -> None:
        preview = None
        if frame is not None:
            pixels = (frame.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()
            preview = ("JPEG", Image.fromarray(pixels), max(pixels.shape[:2]))
        bar.update_absolute(done, total, preview)

    return report


def check_interrupted() -> None:
    """Raise the host's interrupt exception if the person pressed cancel."""
    from comfy import model_management

    model_management.throw_exception_if_processing_interrupted()


def is_interrupt(error: BaseException) -> bool:
    """Whether this is the host's way of saying that the person pressed cancel."""
    from comfy import model_management

    return isinstance(error, model_management.InterruptProcessingException)


def was_interrupted(error: BaseException) -> bool:
    """Whether this is how a press on cancel ends a render."""
    from comfy import model_management

    return isinstance(error, model_management.InterruptProcessingException | KeyboardInterrupt)


def after_prompt(action: Callable[[], None]) -> None:
    """Do `action` when the prompt now running has ended, however it ends; at once where no prompt is known to run."""
    server, prompt = _server(), prompt_id()
    if server is None or not prompt:
        action()
        return
    queue = server.prompt_queue
    current = getattr(queue, "get_current_queue_volatile", queue.get_current_queue)  # the other copies what waits

    def wait() -> None:
        while any(item[1] == prompt for item in current()[0]):
            time.sleep(AFTER_PROMPT_SECONDS)
        action()

    threading.Thread(target=wait, name="srh3 after prompt", daemon=True).start()


def client_id() -> str | None:
    """The browser or script that queued the prompt now running; None when it did not say who it is."""
    return getattr(_server(), "client_id", None) or None


def prompt_id() -> str:
    """The prompt now running, "" when unknown."""
    return getattr(_server(), "last_prompt_id", None) or ""


def send(event: str, data: dict[str, Any], client: str) -> None:
    """A message to one client over the host's message channel; from any thread. Lost when the client is not there."""
    server = _server()
    if server is not None:
        server.send_sync(event, data, client)


def add_routes(table: dict[str, Any]) -> None:
    """Answer GET requests: path pattern -> handler. Must happen while the host loads the pack.

    A host that loads nodes without serving anything, as scripts and tools do, gets no routes.
    """
    server = _server()
    for path, handler in table.items() if server is not None else ():
        server.routes.get(path)(handler)


def saved_metadata(prompt: Any, extra: Any) -> tuple[Any, dict[str, Any]]:
    """(prompt, workflow and the like) to write into files, nothing when the host was started with --disable-metadata."""
    from comfy.cli_args import args

    return (None, {}) if args.disable_metadata else (prompt, dict(extra or {}))
