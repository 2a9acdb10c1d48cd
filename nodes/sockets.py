"""Names of the pack's own sockets and its place in the node menu. A public contract: shared graphs depend on them."""

from __future__ import annotations

from comfy_api.latest import io

CATEGORY = "StreamRender-H3"

SemanticClipSocket = io.Custom("SEMANTIC_CLIP")
H3Look = io.Custom("H3_LOOK")
H3ModelSocket = io.Custom("H3_MODEL")
H3Schedule = io.Custom("H3_SCHEDULE")
H3Encoder = io.Custom("H3_ENCODER")
H3Decoder = io.Custom("H3_DECODER")
