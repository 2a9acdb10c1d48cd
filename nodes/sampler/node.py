"""ComfyUI node: H3 Stream Sampler, from a semantic clip to a video file."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comfy_api.latest import io

from .. import host
from ..codec.node import HostDecoder, HostEncoder
from ..host import CATEGORY, H3_DECODER, H3_ENCODER, H3_LOOK, H3_MODEL, H3_SCHEDULE, SEMANTIC_CLIP, socket
from ..loader.node import HostModel
from ..look import Look
from ..palette import SemanticClip
from ..preview import open_preview
from ..preview.finish import metadata_of
from ..preview.formats import H264
from ..schedule import Schedule
from .failure import frames_released
from .fingerprint import fingerprint
from .grids import MAX_STEPS, TimeGrid
from .guidance import SINGLE, Branch, chain
from .network import DENSE, PREFIX
from .node_files import (
    RENDER,
    finished_before,
    kept_on_failure,
    latent_paths,
    open_journal,
    output_forms,
    write_finished,
)
from .node_memory import on_device, planned
from .record import Recorder, start_memory_watch
from .render import Settings, check_inputs, render
from .report_picture import report_picture
from .widgets_node import file_widgets, format_widget, sampler_outputs, scale_widgets, seed_widget
from .window_sparse import KEEP_PERCENT
from .window_sparse import NAME as SPARSE_WINDOW

log = logging.getLogger(host.PACK)

FITTED, CHAIN = "fitted (one call)", "chain (three calls)"
ATTENTION = {"prefix bank": PREFIX, "dense window": DENSE, SPARSE_WINDOW: PREFIX}


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
                seed_widget(),
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
                *scale_widgets(),
                io.Combo.Input(
                    "attention",
                    options=list(ATTENTION),
                    default=next(iter(ATTENTION)),
                    tooltip="'prefix bank' computes text, picture and sink once; exact for StreamRender-H3. 'dense window' "
                    "recomputes everything in every chunk; slower, for checkpoints not trained with the prefix. 'sparse window' is "
                    "an experiment on the prefix bank: no weights are trained for it, it can lose the map and hardly saves time.",
                ),
                io.Boolean.Input(
                    "resume",
                    default=True,
                    tooltip="Keep a journal while rendering, so that the same render started again after a cancel, an error, "
                    "a crash or a power cut goes on where it stopped. The result is the same as without the interruption.",
                ),
                format_widget(),
                *file_widgets(),
                io.Float.Input(
                    "window_keep_percent",
                    default=KEEP_PERCENT,
                    min=1.0,
                    max=100.0,
                    step=1.0,
                    optional=True,
                    tooltip="Experiment: share of the tiles of sink, history and map that each tile attends to; the aligned map "
                    "and all that is new stay in any case. Only with attention 'sparse window (experimental)'.",
                ),
            ],
            outputs=sampler_outputs(
                latent="Audio-video latents, as native H3 nodes use them.",
                metrics="The run report as JSON: times by chunk and part, memory, hashes of what went in, suspect chunks.",
            ),
            hidden=[io.Hidden.unique_id, io.Hidden.extra_pnginfo, io.Hidden.prompt],
        )

    @classmethod
    @host.one_of_many
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
        resume: bool = True,
        video_format: str = H264.name,
        name: str = "",
        save: bool = False,
        window_keep_percent: float = KEEP_PERCENT,
    ) -> io.NodeOutput:
        if attention not in ATTENTION:
            raise ValueError(f"H3 Stream Sampler: attention {attention!r} is unknown; choose one of {list(ATTENTION)}")
        branches = branches_for(guidance, text_scale, structure_scale, look)
        keep = window_keep_percent if attention == SPARSE_WINDOW else None
        settings = Settings(schedule, TimeGrid.trailing(steps), seed, ATTENTION[attention], branches, window_keep=keep)
        check_inputs(clip, look, model.h3, settings, encoder.codec, decoder.codec)

        forms = output_forms(video_format)
        metadata = host.saved_metadata(cls.hidden.prompt, cls.hidden.extra_pnginfo)
        show = unhurt(host.progress(schedule.chunks_for(clip.frames) * steps, cls.hidden.unique_id))
        plan, settings = planned(model, clip, look, settings, encoder, decoder, cls.hidden.unique_id)

        def after_step(chunk: int, step: int) -> None:
            show(chunk * steps + step + 1, None)
            preview.step(chunk, step)
            host.check_interrupted()

        parts = fingerprint(clip, look, model.h3, encoder.codec, decoder.codec, settings, [form.name for form in forms])
        host.output_files(name or RENDER)  # refuses a name that is none
        if save and (found := finished_before(name or RENDER, parts, forms)):
            log.info("H3 Stream Sampler takes %s, which is this very render", found[0])
            return output_of(*found, host.blocked())
        journal = open_journal(parts, resume)
        targets = [(form, journal.folder / f"video_{number}{form.suffix}") for number, form in enumerate(forms)]
        recorder = Recorder(journal, clip, look, settings, targets, metadata_of(*metadata))
        if recorder.chunks_done:
            log.info("H3 Stream Sampler goes on after %d chunks of an interrupted render", recorder.chunks_done)
        patchers = [model.patcher, encoder.patcher, decoder.patcher]
        chunks = render(
            clip, look, model.h3, encoder.codec, decoder.codec, settings, on_step=after_step, resume=recorder.resume
        )
        watch = open_preview(
            cls.hidden.unique_id,
            cls.hidden.extra_pnginfo,
            clip.frames,
            look.size,
            schedule,
            steps,
            shown=recorder.report.frames,
        )
        with watch as preview, kept_on_failure(recorder, targets[0], metadata, preview, name) as path:
            with on_device(model, patchers, plan), frames_released(), closing(chunks), recorder:
                start_memory_watch()
                if recorder.chunks_done:
                    show(recorder.chunks_done * steps, None)
                for chunk in chunks:
                    figures = recorder.add(chunk)
                    preview.chunk(chunk, figures.suspect)
                    show((chunk.index + 1) * steps, chunk.frames[-1] if len(chunk.frames) else None)
                report = recorder.result()
                video = write_finished(recorder, metadata, report, name, path, save)
                latent = host.latent_pair(*recorder.take_latents(*latent_paths(path)))
                recorder.keep_finished = True
            preview.file = video
        host.delete_with(latent["samples"], *latent_paths(path))
        host.after_prompt(journal.remove_unless_used)  # only then has the host saved what it was given
        return output_of(video, report, latent, temporary=not save)


def output_of(video: Path, report: dict[str, Any], latent: Any, *, temporary: bool = False) -> io.NodeOutput:
    """The outputs of the node; a temporary video goes when the host has let go of it."""
    file = host.video_from_file(video)
    if temporary:
        host.delete_with(file, video)
    picture = torch.from_numpy(np.array(report_picture(report)))[None].float() / 255
    return io.NodeOutput(file, latent, json.dumps(report, indent=1), picture)


def branches_for(guidance: str, text_scale: float, structure_scale: float, look: Look) -> tuple[Branch, ...]:
    if guidance == FITTED:
        return SINGLE
    if guidance == CHAIN:
        return chain(text_scale, structure_scale, caption=len(look.text) > look.media_rows)
    raise ValueError(f"H3 Stream Sampler: guidance {guidance!r} is unknown; choose one of {[FITTED, CHAIN]}")


def unhurt(show: Callable[[int, torch.Tensor | None], None]) -> Callable[[int, torch.Tensor | None], None]:
    """`show`, whose failures are logged once and then no longer tried; a cancel still gets through."""
    failed: list[Exception] = []

    def shown(done: int, frame: torch.Tensor | None) -> None:
        if failed:
            return
        try:
            show(done, frame)
        except Exception as error:
            if host.is_interrupt(error):
                raise
            failed.append(error)
            log.warning("H3 Stream Sampler cannot show its progress (%s); the render goes on", error)

    return shown
