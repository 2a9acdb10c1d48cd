"""ComfyUI node: Semantic Palette Encode."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comfy_api.latest import InputImpl, io, ui

from .. import host
from ..host import CATEGORY, SEMANTIC_CLIP, socket
from . import (
    FIT,
    MAPPINGS,
    REPAIRS,
    STRETCH,
    Audit,
    Palette,
    SemanticClip,
    Trim,
    audit,
    builtin_palettes,
    chunk_lines,
    clip_from_frames,
    clip_from_video,
    clip_report,
    draw_card,
    load_palette,
    require_renderable,
)

log = logging.getLogger(host.PACK)


class SemanticPaletteEncodeNode(io.ComfyNode):
    """A class-colour video becomes a semantic clip: class ids at 24 fps, exact colours, nearest resize only."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_SemanticPaletteEncode",
            display_name="Semantic Palette Encode",
            category=CATEGORY,
            description="Reads a video in which every pixel has the flat colour of its object class, judges it, repairs what is "
            "blurred and prepares it for the model. Labels are never blended. A clip that cannot be rendered stops the graph "
            "here, with the reason and the remedy.",
            inputs=[
                io.Combo.Input(
                    "palette",
                    options=[*builtin_palettes(), *host.user_palettes()],
                    default="racing",
                    tooltip="The colours of the clip and the classes they stand for. The released model knows 'racing'; the other "
                    "data sets are translated to it. JSON files in input/streamrender_h3/palettes are listed too.",
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
                io.Combo.Input(
                    "repair",
                    options=list(REPAIRS),
                    default="auto",
                    optional=True,
                    tooltip="Blurred pixels take a class that occurs cleanly around them, and mistakes such as swapped channels "
                    "are undone. auto: careful with small things in heavily compressed clips. on: everywhere. off: the nearest "
                    "colour. Exact clips are never changed.",
                ),
                io.Combo.Input(
                    "mapping",
                    options=list(MAPPINGS),
                    default=FIT,
                    optional=True,
                    tooltip="How the clip lies in a video of another shape. fit: all of it, with bands of class 'unlabeled'. fill: "
                    "the middle of it, without bands. stretch: all of it, out of shape. Shapes within 2 % count as the same. "
                    "Connect the clip to H3 Look, so that the picture lies alike.",
                ),
                io.String.Input(
                    "path",
                    default="",
                    optional=True,
                    tooltip="A folder of frames (PNG and others) or a video file on the machine that runs ComfyUI, instead of "
                    "'video' and 'images'. A relative path begins in the input folder. A folder goes by 'fps'.",
                ),
                io.Boolean.Input(
                    "strict",
                    default=True,
                    optional=True,
                    tooltip="Stop the graph when the verdict is 'stop', before anything expensive runs. Off: warn and go on.",
                ),
            ],
            outputs=[
                socket(SEMANTIC_CLIP).Output("clip", display_name="clip"),
                io.Image.Output(
                    "legend", display_name="legend", tooltip="Each class with its colour and its share of the clip."
                ),
                io.String.Output(
                    "report",
                    display_name="report",
                    tooltip="The verdict as text: causes and remedy, shares of the classes, the chunks of the render.",
                ),
                io.String.Output(
                    "json", display_name="json", tooltip="The same for programs, with the shares of every frame."
                ),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
        )

    @classmethod
    def fingerprint_inputs(cls, palette: str = "", path: str = "", **inputs: Any) -> str:
        """Changes with the files behind the names, which the host cannot see."""
        files = [host.user_palette(palette), host.input_path(path) if path else None]
        return " ".join(_state(file) for file in files if file is not None)

    @classmethod
    @host.one_of_many
    def execute(
        cls,
        palette: str,
        reference_width: int,
        reference_height: int,
        fps: float,
        video: Any = None,
        images: torch.Tensor | None = None,
        repair: str = "auto",
        mapping: str = STRETCH,
        path: str = "",
        strict: bool = True,
    ) -> io.NodeOutput:
        colours = load_palette(host.user_palette(palette) or palette)
        size = (reference_height, reference_width)
        clip = open_clip(colours, size, fps, video, images, path, repair=repair, mapping=mapping)
        found = audit(clip, on_frame=_progress(clip, cls.hidden.unique_id))
        if strict:
            require_renderable(found, f"Semantic Palette Encode: {clip.source.name}")
        return _output(clip, found, cls)


def _output(clip: SemanticClip, found: Audit, cls: Any) -> io.NodeOutput:
    chunks = chunk_lines(clip.frames)
    report = "\n".join([found.as_text(), *chunks])
    level = logging.INFO if found.verdict == "good" else logging.WARNING
    log.log(level, "Semantic Palette Encode: %s", "; ".join([found.headline, *found.findings, chunks[0]]))
    legend, card = (
        torch.from_numpy(np.array(picture)).float()[None] / 255
        for picture in (found.legend.picture(), draw_card(found, chunks))
    )
    text = json.dumps(clip_report(clip, found))
    return io.NodeOutput(clip, legend, report, text, ui=ui.PreviewImage(card, cls=cls))


def open_clip(
    palette: Palette,
    reference_size: tuple[int, int],
    fps: float,
    video: Any,
    images: torch.Tensor | None,
    path: str = "",
    *,
    repair: str = "auto",
    mapping: str = STRETCH,
) -> SemanticClip:
    """The clip from whichever of the inputs is given; a file-backed video is read lazily from its file, its trim honoured."""
    given = [
        name for name, value in (("video", video), ("images", images), ("path", path or None)) if value is not None
    ]
    if len(given) != 1:
        if given:
            said = " and ".join(f"'{name}'" for name in given)
            raise ValueError(f"Semantic Palette Encode: both {said} are connected; connect exactly one of them")
        raise ValueError(
            "Semantic Palette Encode: neither 'video' nor 'images' is connected and 'path' is empty; give exactly one of them"
        )
    if path:
        where = host.input_path(path)
        return clip_from_video(where, palette, reference_size, fps=fps, repair=repair, mapping=mapping)
    if images is not None:
        return clip_from_frames(images, palette, reference_size, fps=fps, repair=repair, mapping=mapping)
    if isinstance(video, InputImpl.VideoFromFile):
        source, trim = video.get_stream_source(), trim_of(video)
        return clip_from_video(source, palette, reference_size, repair=repair, mapping=mapping, trim=trim)
    # A video made of frames in memory: asking it for a stream would compress the labels.
    parts = video.get_components()
    return clip_from_frames(parts.images, palette, reference_size, fps=parts.frame_rate, repair=repair, mapping=mapping)


def trim_of(video: Any) -> Trim:
    """The part of its file that a VIDEO stands for; hosts before the trimming of videos know none."""
    window = getattr(video, "get_active_trim_window", None)
    if window is not None:
        return Trim(*window())
    start, duration = (
        float(getattr(video, f"_VideoFromFile__{name}", 0.0) or 0.0) for name in ("start_time", "duration")
    )
    return Trim(max(0.0, start), duration)


def _progress(clip: SemanticClip, node_id: str | None) -> Callable[[int], None]:
    show = host.progress(clip.frames, node_id)

    def on_frame(frame: int) -> None:
        show(frame + 1, None)
        host.check_interrupted()

    return on_frame


def _state(file: Path) -> str:
    """Names, sizes and times of a file or of the files of a folder."""
    try:
        files = sorted(file.iterdir()) if file.is_dir() else [file]
        stats = [(one.name, one.stat()) for one in files]
    except OSError as error:
        return str(error)
    return str(hash(tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)))
