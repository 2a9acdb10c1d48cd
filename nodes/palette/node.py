"""ComfyUI node: Semantic Palette Encode."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from comfy_api.latest import InputImpl, io

from .. import host
from ..host import CATEGORY, SEMANTIC_CLIP, socket
from ..schedule import RELEASE
from . import SemanticClip, builtin_palettes, clip_from_frames, clip_from_video, load_palette, read_legend

log = logging.getLogger(host.PACK)


class SemanticPaletteEncodeNode(io.ComfyNode):
    """A class-colour video becomes a semantic clip: class ids at 24 fps, exact colours, nearest resize only."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_SemanticPaletteEncode",
            display_name="Semantic Palette Encode",
            category=CATEGORY,
            description="Reads a video in which every pixel has the flat colour of its object class, snaps the colours to the "
            "palette and prepares it for the model. Labels are never blended.",
            inputs=[
                io.Combo.Input(
                    "palette",
                    options=list(builtin_palettes()),
                    default="racing",
                    tooltip="The colours of the clip and the classes they stand for. The released model knows 'racing'.",
                ),
                io.Int.Input(
                    "reference_width",
                    default=832,
                    min=64,
                    max=4096,
                    step=32,
                    tooltip="Width in pixels at which the model reads the class map, a multiple of 32. StreamRender-H3 is made "
                    "for 832 (with a video 1344 wide).",
                ),
                io.Int.Input(
                    "reference_height",
                    default=480,
                    min=64,
                    max=4096,
                    step=32,
                    tooltip="Height in pixels at which the model reads the class map, a multiple of 32. StreamRender-H3 is "
                    "made for 480 (with a video 768 high).",
                ),
                io.Float.Input(
                    "fps",
                    default=24.0,
                    min=1.0,
                    max=240.0,
                    step=0.01,
                    tooltip="Frames per second of 'images'. The model works at 24: whole frames are dropped or repeated. A "
                    "video brings its own time stamps, so this is ignored for 'video'.",
                ),
                io.Video.Input(
                    "video",
                    optional=True,
                    tooltip="The class-colour video, from Load Video. Lossless files keep labels exact.",
                ),
                io.Image.Input(
                    "images", optional=True, tooltip="Class-colour frames as an image batch, instead of a video."
                ),
            ],
            outputs=[
                socket(SEMANTIC_CLIP).Output("clip", display_name="clip"),
                io.Image.Output(
                    "legend", display_name="legend", tooltip="Each class with its colour and its share of the clip."
                ),
                io.String.Output(
                    "report", display_name="report", tooltip="The legend as text, with the share of doubtful pixels."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        palette: str,
        reference_width: int,
        reference_height: int,
        fps: float,
        video: Any = None,
        images: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        clip = open_clip(palette, (reference_height, reference_width), fps, video, images)
        legend = read_legend(clip)
        coverage = RELEASE.coverage(clip.frames)
        report = f"{legend.as_text()}\n{clip.frames} frames, {coverage.chunks} chunks with the release schedule"
        log.info("Semantic Palette Encode: %s", report.replace("\n", "; "))
        picture = torch.from_numpy(np.array(legend.picture())).float() / 255
        return io.NodeOutput(clip, picture[None], report)


def open_clip(
    palette: str, reference_size: tuple[int, int], fps: float, video: Any, images: torch.Tensor | None
) -> SemanticClip:
    """The clip from whichever of the two inputs is connected; a file-backed video is read lazily from its file."""
    if (video is None) == (images is None):
        both = "both 'video' and 'images' are" if video is not None else "neither 'video' nor 'images' is"
        raise ValueError(f"Semantic Palette Encode: {both} connected; connect exactly one of them")
    colours = load_palette(palette)
    if images is not None:
        return clip_from_frames(images, colours, reference_size, fps=fps)
    if isinstance(video, InputImpl.VideoFromFile):
        return clip_from_video(video.get_stream_source(), colours, reference_size)
    # A video made of frames in memory: asking it for a stream would compress the labels.
    parts = video.get_components()
    return clip_from_frames(parts.images, colours, reference_size, fps=parts.frame_rate)
