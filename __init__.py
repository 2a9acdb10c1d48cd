"""StreamRender-H3: the face shown to ComfyUI. Everything else lives in the rooms below `nodes/`."""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    """ComfyUI asks for the extension here; the node classes are imported only now, so the pack imports without a host."""
    from .nodes.node import StreamRenderExtension

    return StreamRenderExtension()
