"""ComfyUI node: H3 Look Change, a look that takes over in the middle of the clip."""

from __future__ import annotations

from comfy_api.latest import io

from ..host import CATEGORY, H3_LOOK, socket
from ..look import Look
from .looks import add_change


class LookChangeNode(io.ComfyNode):
    """Appends a look with its start time to a look or a sequence of looks."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_LookChange",
            display_name="H3 Look Change",
            category=CATEGORY,
            description="Changes picture and prompt on the way: from 'start' on the video takes the new look. Chain several for "
            "more changes. Beyond what the weights were trained for: they learned one look per clip, so expect a transition.",
            inputs=[
                socket(H3_LOOK).Input(
                    "look",
                    tooltip="The look that takes over, from H3 Look. Its picture should show the clip's frame at that time, in "
                    "the same size as the first look.",
                ),
                socket(H3_LOOK).Input(
                    "previous", tooltip="The look before it: from H3 Look, or from another H3 Look Change for a chain."
                ),
                io.Float.Input(
                    "start",
                    default=2.0,
                    min=0.05,
                    max=86400.0,
                    step=0.05,
                    tooltip="Seconds from the start of the clip. The change happens at the nearest chunk border, which are "
                    "about a third of a second apart after the first 1.25 s. Rebuilding the prefix banks costs about one chunk.",
                ),
            ],
            outputs=[socket(H3_LOOK).Output("looks", display_name="look")],
        )

    @classmethod
    def execute(cls, look: Look, previous: Look, start: float) -> io.NodeOutput:
        return io.NodeOutput(add_change(previous, look, start))
