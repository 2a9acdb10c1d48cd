"""Widgets and outputs that both samplers have, so that they read and behave alike."""

from __future__ import annotations

from comfy_api.latest import io

from ..preview.formats import FORMATS, H264
from .guidance import STRUCTURE_SCALE, TEXT_SCALE
from .noise import DEFAULT_SEED
from .render import MAX_SEED


def seed_widget() -> io.Input:
    return io.Int.Input(
        "seed",
        default=DEFAULT_SEED,
        min=0,
        max=MAX_SEED,
        control_after_generate=True,
        tooltip="Start of the random numbers. The same seed and inputs give the same video.",
    )


def scale_widgets() -> list[io.Input]:
    """Weights of the guidance chain."""
    return [
        io.Float.Input(
            "text_scale",
            default=TEXT_SCALE,
            min=0.0,
            max=20.0,
            step=0.05,
            tooltip="How strongly the prompt pulls, from 0 to 20; 1.5 is usual. Only with guidance 'chain'.",
        ),
        io.Float.Input(
            "structure_scale",
            default=STRUCTURE_SCALE,
            min=0.0,
            max=20.0,
            step=0.05,
            tooltip="How strongly the class map pulls, from 0 to 20; 3 is usual. Only with guidance 'chain'.",
        ),
    ]


def format_widget() -> io.Input:
    return io.Combo.Input(
        "video_format",
        options=list(FORMATS),
        default=H264.name,
        tooltip="H.264 plays everywhere; H.265 is smaller. ProRes 4444, lossless FFV1 and PNG images are written "
        "to output/streamrender_h3 beside the H.264 video, which the output 'video' then still is.",
    )


def file_widgets() -> list[io.Input]:
    """What files are called, and whether the video is saved at once."""
    return [
        io.String.Input(
            "name",
            default="",
            optional=True,
            tooltip="What the files that this node writes to output/streamrender_h3 are called: other formats, what is "
            "done of a stopped render, and with 'save' the video. Folders go with /. Empty: render, partial.",
        ),
        io.Boolean.Input(
            "save",
            default=False,
            optional=True,
            tooltip="Save the finished video at once under 'name' in output/streamrender_h3, without Save Video. A video "
            "that lies there from the very same render is taken instead of rendering again, without its latent.",
        ),
    ]


def sampler_outputs(*, latent: str, metrics: str) -> list[io.Output]:
    """Video, latent, metrics and report; the tooltips of two of them are the node's own."""
    return [
        io.Video.Output("video", display_name="video", tooltip="The rendered file, 24 frames per second."),
        io.Latent.Output("latent", display_name="latent", tooltip=latent),
        io.String.Output("metrics", display_name="metrics", tooltip=metrics),
        io.Image.Output("report", display_name="report", tooltip="The run report as a picture, for Preview Image."),
    ]
