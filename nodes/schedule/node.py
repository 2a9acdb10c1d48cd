"""ComfyUI node: H3 Stream Schedule."""

from __future__ import annotations

from comfy_api.latest import io

from ..host import CATEGORY, H3_SCHEDULE, socket
from . import RELEASE, TEACHER, Schedule

CUSTOM = "custom"
PRESET_LABELS = {
    "release (2, 2, 2, 7)": RELEASE,
    "teacher (4, 5, 2, 7)": TEACHER,
}


class StreamScheduleNode(io.ComfyNode):
    """How the stream is cut: what is remembered for ever, what is recent, how much is new at a time."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_StreamSchedule",
            display_name="H3 Stream Schedule",
            category=CATEGORY,
            description="How the clip is cut into chunks and how much of the past each chunk sees. One unit is 4 or 5 frames.",
            inputs=[
                io.Combo.Input(
                    "preset",
                    options=[*PRESET_LABELS, CUSTOM],
                    default=next(iter(PRESET_LABELS)),
                    tooltip="The schedule a checkpoint was trained for. StreamRender-H3 is made for 'release'. With 'custom' "
                    "the four numbers below count; otherwise they are ignored.",
                ),
                io.Int.Input(
                    "sink",
                    default=2,
                    min=0,
                    max=32,
                    tooltip="Units (4-5 frames each) from the start of the video that every chunk sees. They hold the look; "
                    "0 lets it drift. Only with preset 'custom'.",
                ),
                io.Int.Input(
                    "window",
                    default=2,
                    min=0,
                    max=32,
                    tooltip="Units just before the chunk that it sees: motion continues from them. More is slower. "
                    "Only with preset 'custom'.",
                ),
                io.Int.Input(
                    "chunk",
                    default=2,
                    min=1,
                    max=32,
                    tooltip="Units made at a time; 2 are 8 or 9 frames, about a third of a second. Only with preset 'custom'.",
                ),
                io.Int.Input(
                    "bootstrap",
                    default=7,
                    min=1,
                    max=64,
                    tooltip="Units of the first chunk; 7 are 30 frames. At least as many as the sink when the prefix bank is "
                    "used. Only with preset 'custom'.",
                ),
            ],
            outputs=[socket(H3_SCHEDULE).Output("schedule", display_name="schedule")],
        )

    @classmethod
    def execute(cls, preset: str, sink: int, window: int, chunk: int, bootstrap: int) -> io.NodeOutput:
        if preset == CUSTOM:
            return io.NodeOutput(Schedule(sink, window, chunk, bootstrap))
        if preset not in PRESET_LABELS:
            raise ValueError(
                f"H3 Stream Schedule: preset {preset!r} is unknown; choose one of {[*PRESET_LABELS, CUSTOM]}"
            )
        return io.NodeOutput(PRESET_LABELS[preset])
