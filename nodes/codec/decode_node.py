"""ComfyUI node: H3 Decode Latent, from a LATENT to a video file in constant memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from comfy_api.latest import io

from .. import host
from ..host import CATEGORY, H3_DECODER, socket
from ..preview import VideoFile, playable_frames
from ..preview.finish import finish_video
from ..preview.formats import H264
from .latent_input import video_latents
from .node import HostDecoder
from .vit_stream import ViTDecoder
from .whole import decode_pieces, frames_wanted

log = logging.getLogger(host.PACK)
TAE_VALUES = 650  # numbers alive per pixel of a frame


class DecodeLatentNode(io.ComfyNode):
    """Decodes a whole latent sequence, with any decoder, straight into a video file."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_DecodeLatent",
            display_name="H3 Decode Latent",
            category=CATEGORY,
            description="Decodes the video of a MiniMax-H3 latent, for example once more with a finer decoder, straight into a "
            "video file; memory does not grow with its length. Cancel keeps what is done in output/streamrender_h3.",
            inputs=[
                io.Latent.Input(
                    "latent",
                    tooltip="From H3 Stream Sampler or from any MiniMax-H3 sampler: an audio-video pair or a video alone.",
                ),
                socket(H3_DECODER).Input("decoder", tooltip="From Load H3 Decoder."),
                io.Int.Input(
                    "frames",
                    default=0,
                    min=0,
                    max=1 << 24,
                    tooltip="How many frames to decode, from the start; 0 for all that the latent holds (17 per 5 latents).",
                ),
            ],
            outputs=[io.Video.Output("video", display_name="video", tooltip="The file, 24 frames per second, silent.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, latent: Any, decoder: HostDecoder, frames: int = 0) -> io.NodeOutput:
        latents, codec = video_latents(latent), decoder.codec
        wanted = frames_wanted(latents.shape[1], frames)
        size = (latents.shape[2] * codec.spatial_ratio, latents.shape[3] * codec.spatial_ratio)
        show = host.progress(latents.shape[1], cls.hidden.unique_id)
        growing, path = host.temporary_file(".mp4"), host.temporary_file(".mp4")
        try:
            with kept_on_failure(growing):
                pieces = decode_pieces(codec, latents, wanted)
                needed = working_bytes(decoder, size)
                with host.on_device([decoder.patcher], needed), closing(pieces), VideoFile(growing, size) as video:
                    for done, made in pieces:
                        video.add(made)
                        show(done, made[-1] if len(made) else None)
                        host.check_interrupted()
                finish_video(growing, path, H264, {})
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            growing.unlink(missing_ok=True)
        video_file = host.video_from_file(path)
        host.delete_with(video_file, path)
        return io.NodeOutput(video_file)


def working_bytes(decoder: HostDecoder, size: tuple[int, int]) -> int:
    """Bytes the decoder works with at `size` (height, width) beside its weights, an upper estimate."""
    codec = decoder.codec
    if isinstance(codec, ViTDecoder):
        return codec.working_bytes((size[0] // codec.spatial_ratio, size[1] // codec.spatial_ratio))
    return TAE_VALUES * size[0] * size[1] * codec.dtype.itemsize


@contextmanager
def kept_on_failure(growing: Path) -> Iterator[None]:
    """When decoding is cancelled or fails, the frames done so far become a file in the output folder."""
    try:
        yield
    except BaseException:
        frames = playable_frames(growing) if growing.is_file() else 0
        if frames:
            try:
                with host.output_place("partial", H264.suffix) as kept:
                    finish_video(growing, kept, H264, {})
                log.warning("H3 Decode Latent stopped early; its first %d frames are in %s", frames, kept)
            except OSError as error:
                log.warning("H3 Decode Latent could not keep what is done: %s", error)
        raise
