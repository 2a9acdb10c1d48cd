"""ComfyUI node: H3 Stream Sampler, from a semantic clip to a video file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from comfy_api.latest import io

from .. import host
from ..codec.node import HostDecoder, HostEncoder
from ..host import CATEGORY, H3_DECODER, H3_ENCODER, H3_LOOK, H3_MODEL, H3_SCHEDULE, SEMANTIC_CLIP, socket
from ..loader.node import HostModel
from ..look import Look
from ..palette import SemanticClip
from ..preview import VideoFile, playable_frames
from ..schedule import Schedule
from .grids import MAX_STEPS, TimeGrid
from .guidance import SINGLE, STRUCTURE_SCALE, TEXT_SCALE, Branch, chain
from .latent_file import Fingerprint, LatentFile
from .memory import working_bytes
from .network import DENSE, PREFIX
from .noise import DEFAULT_SEED
from .render import MAX_SEED, Settings, check_inputs, geometry_of, render
from .report import RenderReport

log = logging.getLogger(host.PACK)

FITTED, CHAIN = "fitted (one call)", "chain (three calls)"
ATTENTION = {"prefix bank": PREFIX, "dense window": DENSE}


class StreamSamplerNode(io.ComfyNode):
    """Renders the whole clip chunk by chunk into a video file."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_StreamSampler",
            display_name="H3 Stream Sampler",
            category=CATEGORY,
            description="Paints the semantic clip in the given look, chunk by chunk, straight into a video file with exactly as "
            "many frames as the clip. Cancel keeps what is done as a playable file in output/streamrender_h3.",
            inputs=[
                socket(H3_MODEL).Input("model", tooltip="From Load H3 Model."),
                socket(SEMANTIC_CLIP).Input("clip", tooltip="From Semantic Palette Encode. Any length."),
                socket(H3_LOOK).Input("look", tooltip="From H3 Look. It also sets the size of the video."),
                socket(H3_SCHEDULE).Input("schedule", tooltip="From H3 Stream Schedule."),
                socket(H3_ENCODER).Input("encoder", tooltip="From Load H3 Encoder."),
                socket(H3_DECODER).Input("decoder", tooltip="From Load H3 Decoder."),
                io.Int.Input(
                    "seed",
                    default=DEFAULT_SEED,
                    min=0,
                    max=MAX_SEED,
                    control_after_generate=True,
                    tooltip="Start of the random numbers. The same seed and inputs give the same video.",
                ),
                io.Int.Input(
                    "steps",
                    default=2,
                    min=1,
                    max=MAX_STEPS,
                    tooltip="Denoising steps per chunk. StreamRender-H3 is distilled for exactly 2; other checkpoints need 16 "
                    "or more. Time grows with it.",
                ),
                io.Combo.Input(
                    "guidance",
                    options=[FITTED, CHAIN],
                    default=FITTED,
                    tooltip="'fitted' for checkpoints with guidance trained in, as StreamRender-H3. 'chain' adds calls without "
                    "map and without caption, for other Ref2VA checkpoints; three times slower.",
                ),
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
                io.Combo.Input(
                    "attention",
                    options=list(ATTENTION),
                    default=next(iter(ATTENTION)),
                    tooltip="'prefix bank' computes text, picture and sink once; exact for StreamRender-H3. 'dense window' "
                    "recomputes everything in every chunk; slower, for checkpoints not trained with the prefix.",
                ),
            ],
            outputs=[
                io.Video.Output("video", display_name="video", tooltip="The rendered file, 24 frames per second."),
                io.Latent.Output(
                    "latent", display_name="latent", tooltip="Audio-video latents, as native H3 nodes use them."
                ),
                io.String.Output("metrics", display_name="metrics", tooltip="Times by chunk and part, as JSON."),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        model: HostModel,
        clip: SemanticClip,
        look: Look,
        schedule: Schedule,
        encoder: HostEncoder,
        decoder: HostDecoder,
        seed: int,
        steps: int,
        guidance: str,
        text_scale: float,
        structure_scale: float,
        attention: str,
    ) -> io.NodeOutput:
        if attention not in ATTENTION:
            raise ValueError(f"H3 Stream Sampler: attention {attention!r} is unknown; choose one of {list(ATTENTION)}")
        branches = branches_for(guidance, text_scale, structure_scale, look)
        settings = Settings(schedule, TimeGrid.trailing(steps), seed, ATTENTION[attention], branches)
        check_inputs(clip, look, model.h3, settings, encoder.codec, decoder.codec)

        report, fingerprint = RenderReport(settings, clip.frames), Fingerprint()
        show = host.progress(schedule.chunks_for(clip.frames) * steps, cls.hidden.unique_id)
        needed = working_bytes(
            model.h3.config,
            schedule,
            geometry_of(clip, look),
            len(look.text),
            steps,
            len(branches),
            settings.attention,
            model.h3.model.dtype.itemsize,
        )

        def after_step(chunk: int, step: int) -> None:
            show(chunk * steps + step + 1, None)
            host.check_interrupted()

        path = host.temporary_file(".mp4")
        latents = LatentFile(path.with_suffix(".video.f32"), path.with_suffix(".audio.f32"))
        patchers = [model.patcher, encoder.patcher, decoder.patcher]
        chunks = render(clip, look, model.h3, encoder.codec, decoder.codec, settings, on_step=after_step)
        with kept_on_failure(path, latents):
            with host.on_device(patchers, needed), closing(chunks), VideoFile(path, look.size) as video:
                for chunk in chunks:
                    video.add(chunk.frames)
                    latents.add(chunk.video, chunk.audio)
                    fingerprint.add(chunk.video, chunk.audio)
                    report.add(chunk)
                    show((chunk.index + 1) * steps, chunk.frames[-1] if len(chunk.frames) else None)
            latent = host.latent_pair(*latents.tensors())
        return io.NodeOutput(host.video_from_file(path), latent, report.as_json(fingerprint.hexdigest()))


def branches_for(guidance: str, text_scale: float, structure_scale: float, look: Look) -> tuple[Branch, ...]:
    if guidance == FITTED:
        return SINGLE
    if guidance == CHAIN:
        return chain(text_scale, structure_scale, caption=len(look.text) > look.media_rows)
    raise ValueError(f"H3 Stream Sampler: guidance {guidance!r} is unknown; choose one of {[FITTED, CHAIN]}")


@contextmanager
def kept_on_failure(path: Path, latents: LatentFile) -> Iterator[None]:
    """When the render is cancelled or fails, temporary files go and the frames done so far move to the output folder."""
    try:
        yield
    except BaseException:
        latents.discard()
        if path.is_file():
            keep_playable(path)
        raise


def keep_playable(path: Path) -> None:
    """Move an unfinished video to the output folder and say so, or delete it when it holds no frame."""
    frames = playable_frames(path)
    if not frames:
        path.unlink()
        return
    try:
        kept = host.keep_partial(path)
    except OSError as error:
        log.warning("H3 Stream Sampler could not move what is done to the output folder: %s", error)
        kept = path
    log.warning("H3 Stream Sampler stopped early; its first %d frames are in %s", frames, kept)
