"""A graph file as people open it (UI format) in the form that a server executes (API format).

The way the browser does it: links by slot, widget values by the order in which the server's /object_info lists the inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MUTED, BYPASSED = 2, 4  # LiteGraph node modes
DYNAMIC_COMBO = "COMFY_DYNAMICCOMBO_V3"
WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", DYNAMIC_COMBO}
CONTROLS = {"fixed", "increment", "decrement", "randomize"}
NOT_EXECUTED = {"Note", "MarkdownNote", "Reroute", "PrimitiveNode"}


class WorkflowError(RuntimeError):
    """The graph cannot be queued or failed while running; the message names the node."""


def to_api(workflow: Mapping[str, Any], object_info: Mapping[str, Any]) -> dict[str, Any]:
    """The graph in API format. `object_info` is the server's answer to GET /object_info; an API graph passes through.

    Muted nodes are left out, bypassed ones are bridged (first input of the output's type), reroutes are followed and
    primitives put in as values. Raises WorkflowError for unknown node types, subgraphs and missing connections.
    """
    if "nodes" not in workflow:
        return dict(workflow)
    if (workflow.get("definitions") or {}).get("subgraphs"):
        raise WorkflowError(
            "the workflow contains subgraphs; unpack them in the editor (right click, Unpack Subgraph), then save"
        )
    nodes = {str(node["id"]): node for node in workflow["nodes"]}
    links = {link[0]: (str(link[1]), link[2]) for link in workflow["links"] if link}
    prompt: dict[str, Any] = {}
    for key, node in nodes.items():
        if node["type"] in NOT_EXECUTED or node.get("mode", 0) in (MUTED, BYPASSED):
            continue
        info = object_info.get(node["type"])
        if info is None:
            raise WorkflowError(
                f"node {key}: the server has no node type {node['type']}; install or enable the pack it comes from"
            )
        inputs = widget_values(node, info)
        for socket in node.get("inputs") or []:
            if socket.get("link") is not None:
                origin = _origin(nodes, links, socket["link"])
                inputs.pop(socket["name"], None)
                if origin is not None:
                    inputs[socket["name"]] = origin
        _refuse_missing(key, node, info, inputs)
        title = node.get("title") or info.get("display_name") or node["type"]
        prompt[key] = {"class_type": node["type"], "inputs": inputs, "_meta": {"title": title}}
    return prompt


def widget_values(node: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a node's widgets by input name: `widgets_values` read in the server's order, else the defaults."""
    named = node.get("widgets_values_named")
    stored = node.get("widgets_values") or []
    if isinstance(stored, Mapping):  # some packs store a dictionary
        named = {**stored, **(named or {})}
    queue = list(stored) if not isinstance(stored, Mapping) else []
    values: dict[str, Any] = {}
    waiting = list(_widgets(info))
    while waiting:
        name, kind, options = waiting.pop(0)
        if named and name in named:
            values[name] = named[name]
        elif queue:
            values[name] = queue.pop(0)
            seed = kind == "INT" and name in ("seed", "noise_seed")
            if queue and (options.get("control_after_generate") or seed) and queue[0] in CONTROLS:
                queue.pop(0)  # the browser's "fixed / randomize" box stands behind the seed
        elif "default" in options:
            values[name] = options["default"]
        elif isinstance(kind, list) and kind:
            values[name] = kind[0]
        elif kind != DYNAMIC_COMBO and options.get("options"):
            values[name] = options["options"][0]
        if kind == DYNAMIC_COMBO:  # the choice brings inputs of its own, called choice.input
            chosen = next((o for o in options["options"] if o["key"] == values.get(name)), options["options"][0])
            values[name] = chosen["key"]
            waiting[:0] = [(f"{name}.{inner}", *rest) for inner, *rest in _widgets({"input": chosen["inputs"]})]
    return {name: {"__value__": value} if isinstance(value, list) else value for name, value in values.items()}


def _specs(info: Mapping[str, Any], groups: tuple[str, ...]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for group in groups:
        specs = info["input"].get(group) or {}
        for name in (info.get("input_order") or {}).get(group) or specs:
            spec = specs[name]
            yield name, spec[0], spec[1] if len(spec) > 1 else {}


def _widgets(info: Mapping[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for name, kind, options in _specs(info, ("required", "optional")):
        if not options.get("forceInput") and (
            isinstance(kind, list) or kind in WIDGETS or options.get("widgetType") in WIDGETS
        ):
            yield name, kind, options


def _origin(nodes: Mapping[str, Any], links: Mapping[int, tuple[str, int]], link: int) -> Any:
    """What a link brings: [node, slot], the value of a primitive, or None when it ends nowhere."""
    for _ in range(1000):
        if link not in links:
            return None
        key, slot = links[link]
        node = nodes[key]
        if node.get("mode", 0) == MUTED:
            return None
        if node["type"] == "PrimitiveNode":
            return (node.get("widgets_values") or [None])[0]
        if node["type"] == "Reroute":
            step = node["inputs"][0].get("link")
        elif node.get("mode", 0) == BYPASSED:
            step = _bridge(node, slot)
        else:
            return [key, slot]
        if step is None:
            return None
        link = step
    raise WorkflowError("the workflow's reroutes form a circle")


def _bridge(node: Mapping[str, Any], slot: int) -> int | None:
    """The input link a bypassed node passes on to output `slot`: same position first, then the first of its type."""
    inputs, kind = node.get("inputs") or [], node["outputs"][slot]["type"]
    for socket in [*inputs[slot : slot + 1], *inputs]:
        if socket["type"] == kind and socket.get("link") is not None:
            return socket["link"]
    return None


def _refuse_missing(key: str, node: Mapping[str, Any], info: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    for name, _, _ in _specs(info, ("required",)):
        grown = any(given.startswith(name + ".") for given in inputs)  # autogrow inputs carry dotted names
        if name not in inputs and not grown:
            raise WorkflowError(
                f"node {key} ({node['type']}): input {name} is not connected; connect it in the editor, then save"
            )


def refusal(reply: Mapping[str, Any], prompt: Mapping[str, Any]) -> str:
    """What a server that took no prompt said, in one line."""
    lines = [str(reply.get("error", {}).get("message", "the server refused the workflow"))]
    for key, node in (reply.get("node_errors") or {}).items():
        kind = prompt.get(key, {}).get("class_type", node.get("class_type"))
        lines += [f"node {key} ({kind}): {e['message']}: {e['details']}" for e in node["errors"]]
    return "; ".join(lines)
