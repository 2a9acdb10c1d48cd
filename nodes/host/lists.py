"""A node that runs once per item of an H3 Clip List: an item that fails must not stop the others.

ComfyUI ends a whole prompt at the first error in a list. Here a failed item hands on blockers instead, which keep the nodes behind
from running for that item alone. The host would cache them, so the list counts failures and makes the next prompt try again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from .names import PACK
from .server import is_interrupt, show_text

LIST_NODE = "SRH3_ClipList"
FAILED: list[str] = []  # one entry for every failed item of this process

log = logging.getLogger(PACK)


def blocked() -> Any:
    """The value that keeps nodes from running for an item."""
    from comfy_execution.graph import ExecutionBlocker

    return ExecutionBlocker(None)


def failed_items() -> int:
    """How many items have failed since the host was started."""
    return len(FAILED)


def one_of_many(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Around a node's `execute(cls, ...)`: behind an H3 Clip List a failure is told and blocks this item only.

    Text outputs get the words of the error. Anywhere else, and for a cancel, the error is raised as ever.
    """

    @functools.wraps(execute)
    def run(cls: Any, *args: Any, **inputs: Any) -> Any:
        try:
            return execute(cls, *args, **inputs)
        except Exception as error:
            if is_interrupt(error) or not driven_by_list(cls.hidden.prompt, cls.hidden.unique_id):
                raise
            return _blocked(cls, error, str(inputs.get("name") or inputs.get("path") or ""))

    return run


def _blocked(cls: Any, error: Exception, name: str) -> Any:
    from comfy_api.latest import io

    schema = cls.define_schema()
    words = f"{name + ': ' if name else ''}{' '.join(str(error).split()) or type(error).__name__}"
    FAILED.append(words)
    log.error("%s failed for one item of the clip list; the others go on: %s", schema.display_name, words)
    log.debug("the failed item", exc_info=error)
    show_text(f"failed: {words}", cls.hidden.unique_id)
    texts = [output.io_type == "STRING" for output in schema.outputs]
    return io.NodeOutput(*(f"failed: {words}" if text else blocked() for text in texts))


def driven_by_list(prompt: Mapping[str, Any] | None, node_id: str | None) -> bool:
    """Whether an H3 Clip List stands anywhere before this node."""
    seen, waiting = set(), [str(node_id)]
    while prompt and waiting:
        key = waiting.pop()
        if key in seen or key not in prompt:
            continue
        seen.add(key)
        if prompt[key].get("class_type") == LIST_NODE:
            return True
        inputs = prompt[key].get("inputs", {}).values()
        waiting += [str(value[0]) for value in inputs if isinstance(value, list) and len(value) == 2]
    return False
