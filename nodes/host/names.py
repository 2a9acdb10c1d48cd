"""What the pack calls itself and its sockets, and where its own files lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PACK = "streamrender_h3"
CATEGORY = "StreamRender-H3"  # in the node menu

# Names of the pack's own sockets: a public contract, shared graphs depend on them.
SEMANTIC_CLIP, H3_LOOK, H3_MODEL = "SEMANTIC_CLIP", "H3_LOOK", "H3_MODEL"
H3_SCHEDULE, H3_ENCODER, H3_DECODER = "H3_SCHEDULE", "H3_ENCODER", "H3_DECODER"

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "workflows" / "assets"
EXAMPLE = "example/"


def socket(name: str) -> Any:
    """The socket type called `name`, with its `Input` and `Output`."""
    from comfy_api.latest import io

    return io.Custom(name)
