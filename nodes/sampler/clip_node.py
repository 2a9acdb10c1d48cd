"""ComfyUI node: H3 Clip Sampler, a whole clip denoised at once, from text or in the layout of a semantic clip."""

from __future__ import annotations

import logging
from contextlib import closing

from comfy_api.latest import io

from .. import host
from ..codec.node import HostDecoder, HostEncoder
from ..host import CATEGORY, H3_DECODER, H3_ENCODER, H3_LOOK, H3_MODEL, SEMANTIC_CLIP, socket
from ..loader.node import HostModel
from ..look import Look, TextLook
from ..palette import SemanticClip
from ..preview import open_preview
from ..preview.finish import metadata_of
from ..preview.formats import H264
from .clip_attention import MIN_ROWS, MODES, layer_numbers
from .clip_choice import AUTO, choose_recipe
from .clip_plan import LEAST_FRAMES, LONGEST_FRAMES, SEGMENT_FRAMES, ClipPlan
from .clip_recipes import RECIPES
from .clip_render import NODE, ClipInputs, ClipSettings, check_clip, render_clip
from .clip_setup import GUIDED, SINGLE_CALL, Progress, clip_branches, with_attention
from .failure import frames_released
from .fingerprint import clip_fingerprint
from .journal import work_in
from .node import output_of
from .node_files import RENDER, finished_before, kept_on_failure, latent_paths, output_forms, write_finished
from .node_memory import on_device, planned_clip
from .record import Recorder, start_memory_watch
from .widgets_node import file_widgets, format_widget, sampler_outputs, scale_widgets, seed_widget

log = logging.getLogger(host.PACK)


class ClipSamplerNode(io.ComfyNode):
    """Renders a clip of 5 to 15 seconds at once, or a longer semantic clip in segments, into a video file."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_ClipSampler",
            display_name=NODE,
            category=CATEGORY,
            description="Samples a whole clip at once with MiniMax-H3, FastH3 or a turbo adapter: from text alone (T2VA), or over "
            "a semantic clip with a picture (Ref2VA). The result is decoded piece by piece into a video file.",
            inputs=[
                socket(H3_MODEL).Input(
                    "model", tooltip="From Load H3 Model or H3 LoRA: a FastH3, Trim or base checkpoint."
                ),
                socket(H3_LOOK).Input(
                    "look",
                    tooltip="From H3 Text for text alone, from H3 Look with a semantic clip. It also sets the size.",
                ),
                socket(H3_DECODER).Input("decoder", tooltip="From Load H3 Decoder."),
                io.Int.Input(
                    "frames",
                    default=SEGMENT_FRAMES,
                    min=LEAST_FRAMES,
                    max=LONGEST_FRAMES,
                    tooltip="Length of a video from text, at 24 frames per second; 124 to 345 is what the model knows. With a "
                    "semantic clip its own length counts.",
                ),
                io.Combo.Input(
                    "recipe",
                    options=[AUTO, *RECIPES],
                    default=AUTO,
                    tooltip="Number of steps and noise levels. 'auto' takes those the checkpoint or its adapter was made for, by "
                    "side file, tables, gates, blocks and name; it says so on the node.",
                ),
                seed_widget(),
                io.Combo.Input(
                    "guidance",
                    options=[SINGLE_CALL, GUIDED],
                    default=SINGLE_CALL,
                    tooltip="'single' is what the released weights are made for. 'chain' adds calls without map and without "
                    "caption to follow the semantic clip more strictly; three times slower.",
                ),
                *scale_widgets(),
                io.Combo.Input(
                    "attention_mode",
                    options=list(MODES),
                    default=MODES[0],
                    tooltip="'auto' is what the checkpoint was trained for: sparse (VSA) for FastH3 with gates, else dense. "
                    "'vsa' on another checkpoint is an experiment. 'vsa_target_ref' is experimental: the reference video is "
                    "tiled as a second grid, which nothing was trained for.",
                ),
                io.Float.Input(
                    "vsa_keep_percent",
                    default=0.0,
                    min=0.0,
                    max=100.0,
                    step=1.0,
                    tooltip="Share of the video tiles that each tile attends to. 0 takes what the checkpoint was trained with (10 "
                    "for FastH3 V1, 20 for V2 and Trim); any other share is warned about.",
                ),
                io.Int.Input(
                    "vsa_dense_first_steps",
                    default=0,
                    min=0,
                    max=100,
                    tooltip="So many first steps are dense. 0 for models of 4 or 8 steps, about 20 % of the steps for others.",
                ),
                io.String.Input(
                    "vsa_dense_layers",
                    default="",
                    tooltip="Layers that stay dense, as numbers from 0: for example 0, 1, 48-49. Empty: none.",
                ),
                io.Int.Input(
                    "vsa_min_rows",
                    default=MIN_ROWS,
                    min=0,
                    max=1_000_000,
                    tooltip="Clips with fewer rows are dense, where sparse attention would gain nothing.",
                ),
                io.Int.Input(
                    "segment_frames",
                    default=SEGMENT_FRAMES,
                    min=LEAST_FRAMES + 17,
                    max=LONGEST_FRAMES,
                    step=17,
                    tooltip="A semantic clip longer than this is made in segments, each from the last frame of the one before: the "
                    "model drifts after about five seconds (124 frames).",
                ),
                format_widget(),
                socket(SEMANTIC_CLIP).Input(
                    "clip",
                    optional=True,
                    tooltip="From Semantic Palette Encode: the layout and motion of the video (Ref2VA). Any length.",
                ),
                socket(H3_ENCODER).Input(
                    "encoder", optional=True, tooltip="From Load H3 Encoder; needed with a semantic clip."
                ),
                *file_widgets(),
                io.Boolean.Input(
                    "vsa_auto_dense",
                    default=False,
                    optional=True,
                    tooltip="Experimental: the first sparse step measures how much of the attention the chosen tiles hold; layers "
                    "below 0.8 are dense from then on. The figures are in 'metrics'.",
                ),
            ],
            outputs=sampler_outputs(
                latent="Audio-video latents, as native H3 nodes use them. A clip of several segments has none: nodes behind "
                "this output do not run.",
                metrics="The run report as JSON: recipe, times by chunk and part, memory, hashes of what went in.",
            ),
            hidden=[io.Hidden.unique_id, io.Hidden.extra_pnginfo, io.Hidden.prompt],
        )

    @classmethod
    @host.one_of_many
    def execute(
        cls,
        model: HostModel,
        look: Look | TextLook,
        decoder: HostDecoder,
        frames: int,
        recipe: str,
        seed: int,
        guidance: str,
        text_scale: float,
        structure_scale: float,
        attention_mode: str,
        vsa_keep_percent: float,
        vsa_dense_first_steps: int,
        vsa_dense_layers: str,
        vsa_min_rows: int,
        segment_frames: int = SEGMENT_FRAMES,
        video_format: str = H264.name,
        clip: SemanticClip | None = None,
        encoder: HostEncoder | None = None,
        name: str = "",
        save: bool = False,
        vsa_auto_dense: bool = False,
    ) -> io.NodeOutput:
        inputs = ClipInputs(look, model.h3, decoder.codec, clip, encoder.codec if encoder else None)
        plan = ClipPlan.of(frames, frames) if clip is None else ClipPlan.of(clip.frames, segment_frames)
        choice = choose_recipe(model.h3, recipe)
        branches = clip_branches(guidance, text_scale, structure_scale, look)
        settings = ClipSettings(choice.recipe, plan, seed, branches)
        check_clip(inputs, settings)
        settings = with_attention(
            inputs,
            settings,
            choice,
            attention_mode,
            vsa_auto_dense,
            keep=vsa_keep_percent,
            dense_first_steps=vsa_dense_first_steps,
            dense_layers=layer_numbers(vsa_dense_layers, model.h3.config.layers),
            min_rows=vsa_min_rows,
        )

        forms = output_forms(video_format)
        metadata = host.saved_metadata(cls.hidden.prompt, cls.hidden.extra_pnginfo)
        memory = planned_clip(model, inputs, settings, encoder, decoder, cls.hidden.unique_id)
        done, chunks_in_all = Progress(cls.hidden.unique_id, plan, choice.recipe.steps), len(plan.chunks)

        def after_step(chunk: int, step: int) -> None:
            done.step()
            preview.step(chunk, step)
            host.check_interrupted()

        parts = clip_fingerprint(inputs, settings, [form.name for form in forms])
        host.output_files(name or RENDER)  # refuses a name that is none
        if save and (found := finished_before(name or RENDER, parts, forms)):
            log.info("%s takes %s, which is this very render", NODE, found[0])
            return output_of(*found, host.blocked())
        journal = work_in(host.temporary_folder(), parts)
        targets = [(form, journal.folder / f"video_{number}{form.suffix}") for number, form in enumerate(forms)]
        recorder = Recorder(journal, plan, look, settings, targets, metadata_of(*metadata))
        parties = [model.patcher, *([encoder.patcher] if encoder else []), decoder.patcher]
        chunks = render_clip(inputs, settings, on_step=after_step)
        watch = open_preview(
            cls.hidden.unique_id, cls.hidden.extra_pnginfo, plan.frames, look.size, plan, choice.recipe.steps
        )
        with watch as preview, kept_on_failure(recorder, targets[0], metadata, preview, name) as path:
            with on_device(model, parties, memory), frames_released(), closing(chunks), recorder:
                start_memory_watch()
                for chunk in chunks:
                    figures = recorder.add(chunk)
                    preview.chunk(chunk, figures.suspect)
                    done.chunk(chunk.frames)
                    host.check_interrupted()
                assert recorder.chunks_done == chunks_in_all
                report = {**recorder.result(), "recipe_reason": choice.reason}
                video = write_finished(recorder, metadata, report, name, path, save)
                latent = host.blocked()
                if len(plan.segments) == 1:
                    latent = host.latent_pair(*recorder.take_latents(*latent_paths(path)))
                recorder.keep_finished = True
            preview.file = video
        if len(plan.segments) == 1:
            host.delete_with(latent["samples"], *latent_paths(path))
        else:
            log.info("%s: the clip was made in %d segments, so there is no LATENT", NODE, len(plan.segments))
        host.after_prompt(journal.remove_unless_used)
        return output_of(video, report, latent, temporary=not save)
