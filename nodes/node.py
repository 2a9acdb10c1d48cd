"""The extension ComfyUI loads: every node of the pack, one import per room."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from . import host
from .codec.node import LoadDecoderNode, LoadEncoderNode
from .loader.node import LoadModelNode
from .look.node import LookNode
from .palette.node import SemanticPaletteEncodeNode
from .sampler.node import StreamSamplerNode
from .schedule.node import StreamScheduleNode

NODES: list[type[io.ComfyNode]] = [
    SemanticPaletteEncodeNode,
    LookNode,
    LoadModelNode,
    LoadEncoderNode,
    LoadDecoderNode,
    StreamScheduleNode,
    StreamSamplerNode,
]


class StreamRenderExtension(ComfyExtension):
    """The pack as ComfyUI sees it."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        host.provide_example_inputs()
        return list(NODES)
