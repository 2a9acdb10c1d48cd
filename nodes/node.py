"""The extension ComfyUI loads: every node of the pack, one import per room."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from . import host
from .batch.node import ClipListNode
from .batch.saved import routes
from .codec.decode_node import DecodeLatentNode
from .codec.node import LoadDecoderNode, LoadEncoderNode
from .loader.doctor_node import DoctorNode
from .loader.node import LoadModelNode, LoRANode, WriteTablesCheckpointNode
from .look.node import LookNode
from .look.prompt_node import PromptBuilderNode
from .look.text_node import TextNode
from .palette.node import SemanticPaletteEncodeNode
from .preview import SESSIONS, PreviewRoutes
from .sampler.clip_node import ClipSamplerNode
from .sampler.look_node import LookChangeNode
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
    ClipSamplerNode,
    TextNode,
    DecodeLatentNode,
    LookChangeNode,
    LoRANode,
    WriteTablesCheckpointNode,
    PromptBuilderNode,
    DoctorNode,
    ClipListNode,
]


class StreamRenderExtension(ComfyExtension):
    """The pack as ComfyUI sees it."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        host.provide_example_inputs()
        host.add_routes({**PreviewRoutes(SESSIONS).table(), **routes()})
        return list(NODES)
