"""The command `render`: the same engine without ComfyUI."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from ..codec import DecodeMode, Encoder, load_decoder, load_encoder, usual_dtype
from ..loader import open_checkpoint
from ..loader.command_options import model_arguments
from ..look import encode_text, load_picture, make_look, prepare_picture, prompt_warnings, with_picture_latent
from ..look.encoder_files import encoder_folder
from ..palette import MAPPINGS, REPAIRS, STRETCH, SemanticClip, audit, clip_from_video, load_palette, require_renderable
from ..preview.finish import metadata_of, read_report
from ..preview.formats import BY_SUFFIX, H264, IMAGES, SHORT, VideoFormat
from ..schedule import Schedule
from .command_memory import load_placed, memory_arguments, planned
from .failure import frames_released
from .fingerprint import Parts, fingerprint
from .grids import TimeGrid
from .journal import open_at
from .network import DENSE, PREFIX
from .noise import DEFAULT_SEED
from .record import Recorder, start_memory_watch
from .render import RenderError, Settings, check_inputs, check_settings, conditions_for, encode_frames, render
from .report_picture import report_picture

RELEASE_SIZE = (768, 1344)
RELEASE_REFERENCE = (480, 832)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

JOURNAL = ".journal"  # beside the video while it is not finished

Size = tuple[int, int]


def parse_size(text: str, name: str) -> Size:
    """Width x height, such as 1344x768, as (height, width)."""
    try:
        width, height = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise RenderError(f"{name} is {text!r}; write width x height, for example 1344x768") from None
    return height, width


def sizes_for(stated: Mapping[str, str], size: str | None, reference_size: str | None) -> tuple[Size, Size]:
    """(video, map) sizes: as asked, else as `stated` in the checkpoint, else the released profile, turned for portrait."""
    asked = size or stated.get("size")
    video = parse_size(asked, "size") if asked else RELEASE_SIZE
    wanted = reference_size or (None if size else stated.get("reference_size"))
    if wanted is not None:
        return video, parse_size(wanted, "reference size")
    return video, RELEASE_REFERENCE if video[0] <= video[1] else (RELEASE_REFERENCE[1], RELEASE_REFERENCE[0])


def count(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("clip", type=Path, metavar="CLIP", help="semantic clip: a video file in palette colours")
    for option, text in (
        ("--picture", "reference picture of the first frame"),
        ("--prompt-file", "text file with the prompt"),
        ("--text-encoder", "Hugging Face folder of the Qwen3-VL text encoder"),
        ("--model", "H3 checkpoint: file, any shard of an index, or folder"),
        ("--encoder", "video encoder checkpoint (TAE)"),
        ("--decoder", "video decoder checkpoint (TAE or causal ViT)"),
        ("--out", "video file to write (.mp4, or .mov, .mkv; a folder with --format png)"),
    ):
        parser.add_argument(option, type=Path, required=True, help=text)
    parser.add_argument("--steps", type=count, default=2, help="denoising steps per chunk (default: 2)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of the noise (default: %(default)s)")
    parser.add_argument(
        "--schedule",
        default="release",
        help="release, teacher, or sink,window,chunk,bootstrap in units of 4 or 5 frames",
    )
    parser.add_argument(
        "--attention",
        choices=(PREFIX, DENSE),
        default=PREFIX,
        help="dense: for checkpoints without prefix training",
    )
    parser.add_argument(
        "--window-keep",
        type=float,
        metavar="PERCENT",
        help="experiment, for no weights trained: sparse attention inside the window that keeps so many of its tiles",
    )
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="of the network (default: bf16 on cuda, fp32 on cpu)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda when there is one")
    parser.add_argument(
        "--save-latents", type=Path, metavar="FILE", help="also write what went in and came out, fp32 safetensors"
    )
    parser.add_argument(
        "--format", choices=tuple(SHORT), help="of the video (default: prores for .mov, ffv1 for .mkv, else h264)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with an interrupted render of the same inputs to the same file"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write the run report as JSON, and as a picture beside it (.png)"
    )
    parser.add_argument(
        "--decoder-mode",
        choices=get_args(DecodeMode),
        default="pair",
        help="what the causal ViT decoder does with a latent whose partner has not come (default: %(default)s, it waits)",
    )
    memory_arguments(parser)
    model_arguments(parser)
    parser.add_argument("--size", metavar="WxH", help="of the video, in pixels (default: what the checkpoint says)")
    parser.add_argument("--reference-size", metavar="WxH", help="of the semantic reference the network sees, in pixels")
    parser.add_argument(
        "--palette", default="racing", help="built-in palette name or palette file (default: %(default)s)"
    )
    parser.add_argument("--repair", choices=REPAIRS, default="auto", help="of blurred pixels (default: %(default)s)")
    parser.add_argument(
        "--mapping",
        choices=MAPPINGS,
        default=STRETCH,
        help="how a clip of another shape lies in the video (default: %(default)s)",
    )


def run(args: Namespace) -> int:
    """Render one clip; prints progress on the way and the figures at the end.

    What can be wrong is looked at before anything large is loaded, and all of it before the model runs.
    """
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = DTYPES[args.dtype or ("bf16" if device.type == "cuda" else "fp32")]
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RenderError("device is cuda and torch sees no CUDA device here; use --device cpu or install a CUDA torch")
    settings = Settings(
        Schedule.parse(args.schedule),
        TimeGrid.trailing(args.steps),
        args.seed,
        args.attention,
        window_keep=args.window_keep,
    )
    check_settings(settings)
    inputs = (args.clip, args.picture, args.prompt_file, args.model, args.encoder, args.decoder)
    out, form = Path(args.out), chosen_format(args.format, Path(args.out))
    if form.container == IMAGES:
        out.mkdir(parents=True, exist_ok=True)
    else:
        writable_target(out, "video", inputs)
    report_out = writable_target(Path(args.report), "report", (*inputs, out)) if args.report else None
    latents_out = writable_target(Path(args.save_latents), "latents", (*inputs, out)) if args.save_latents else None
    prompt = read_prompt(Path(args.prompt_file))
    encoder_folder(args.text_encoder)
    size, reference_size = sizes_for(open_checkpoint(args.model).metadata, args.size, args.reference_size)
    palette = load_palette(args.palette)
    clip = clip_from_video(args.clip, palette, reference_size, repair=args.repair, mapping=args.mapping)
    require_renderable(audit(clip), clip.source.name)
    prepared = prepare_picture(load_picture(args.picture), size, clip.mapping, clip.shape)

    dtypes = (dtype, codec_dtype(args.encoder, dtype, device), codec_dtype(args.decoder, dtype, device))
    plan, settings = planned(args, settings, (size, reference_size), dtypes, prompt, device)
    print(plan.as_text())
    encoder = load_encoder(args.encoder, device=device, dtype=dtypes[1])
    decoder = load_decoder(args.decoder, device=device, dtype=dtypes[2], mode=args.decoder_mode)
    for note in (prepared.note, *prompt_warnings(prompt)):
        print(note)
    # The text encoder goes again before the transformer comes: they need not fit together.
    states = encode_text(args.text_encoder, prompt, prepared.rgb, device=device, dtype=dtype, stream=plan.text_streamed)
    model = load_placed(args, dtype, device, plan)
    look = make_look(states, rgb=torch.from_numpy(prepared.rgb.copy()), prompt=prompt, note=prepared.note)
    check_inputs(clip, look, model, settings, encoder, decoder)
    look = with_picture_latent(look, encoder)

    parts = fingerprint(clip, look, model, encoder, decoder, settings, [form.name])
    if args.resume and is_finished(out, parts):
        print(f"{out}: finished already, nothing to do")
        return 0
    journal = open_at(out.with_name(out.name + JOURNAL), parts, resume=args.resume)
    conditions = conditions_for(clip, look, model, encoder)
    references: list[Tensor] = []
    with frames_released(), Recorder(journal, clip, look, settings, [(form, out)]) as recorder:
        start_memory_watch()
        if recorder.chunks_done:
            print(f"going on after {recorder.chunks_done} chunks, {recorder.report.frames} frames", flush=True)
            if latents_out:
                references += earlier_references(clip, encoder, settings.schedule, recorder.chunks_done)
        chunks = render(clip, look, model, encoder, decoder, settings, conditions=conditions, resume=recorder.resume)
        for chunk in chunks:
            figures = recorder.add(chunk)
            if latents_out:
                references.append(chunk.reference)
            steps = " ".join(f"{ms:.0f}" for ms in chunk.step_ms)
            print(
                f"chunk {chunk.index + 1}/{chunk.total}: {recorder.report.frames}/{clip.frames} frames, "
                f"encode {chunk.encode_ms:.0f} ms, steps {steps} ms, decode {chunk.decode_ms:.0f} ms"
                + "".join(f"; suspect: {reason}" for reason in figures.suspect),
                flush=True,
            )
        report = recorder.result()
        if latents_out:
            consumed = {"text": look.text, "tags": look.tags, "picture": conditions.picture}
            made = {**recorder.latents_so_far(), "reference": torch.cat(references, dim=1)}
            save_latents(latents_out, made, consumed, settings, clip, model.model.dtype)
        recorder.finish(recorder.outputs[0], out, metadata_of(report=report))
    if report_out:
        save_report(report_out, report)
    print(
        f"{out}: {report['frames']} frames in {report['render_seconds']} s, latents sha256 {report['latents_sha256']}"
    )
    return 0


def chosen_format(name: str | None, out: Path) -> VideoFormat:
    """The format asked for, or the one that goes with the file's name."""
    if name is not None:
        return SHORT[name]
    return BY_SUFFIX.get(out.suffix.lower(), H264)


def is_finished(out: Path, parts: Parts) -> bool:
    """Whether `out` is the finished video of exactly this render."""
    report = read_report(out) if out.is_file() and out.stat().st_size else None
    return bool(report and report.get("complete") and report.get("fingerprint") == parts)


def earlier_references(clip: SemanticClip, encoder: Encoder, schedule: Schedule, chunks: int) -> list[Tensor]:
    """Map latents [24, n, h', w'] of the first `chunks` chunks, encoded again."""
    frames, stream = clip.reference_frames(), encoder.stream()
    windows = [schedule.window_at(index) for index in range(chunks)]
    return [encode_frames(torch.stack(list(islice(frames, len(w.frames)))), stream).cpu() for w in windows]


def save_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write a run report as JSON to `path` and as a picture beside it."""
    try:
        path.write_text(json.dumps(report, indent=1), encoding="utf-8")
        report_picture(report).save(path.with_suffix(".png"))
    except OSError as error:
        raise RenderError(
            f"the report cannot be written to {path} ({error}); the video is whole. Free disk space or name another file"
        ) from error


def codec_dtype(path: Path, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Everything is float32 when the network is; otherwise a codec runs in what suits it."""
    return dtype if dtype == torch.float32 else usual_dtype(path, device)


def read_prompt(path: Path) -> str:
    """The text of a prompt file without its last line end."""
    try:
        prompt = path.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise RenderError(f"the prompt file {path} cannot be read ({error.strerror}); name a text file") from error
    except UnicodeDecodeError as error:
        raise RenderError(
            f"the prompt file {path} is not UTF-8 text (byte {error.start + 1} is wrong); save it again as UTF-8"
        ) from error
    if not prompt.strip():
        raise RenderError(f"the prompt file {path} is empty; write the prompt into it")
    return prompt


def writable_target(path: Path, what: str, inputs: Iterable[Path]) -> Path:
    """`path`, once it is seen that it can be written and is none of the `inputs`; an existing file stays as it is."""
    if path.resolve() in [Path(other).resolve() for other in inputs]:
        raise RenderError(f"the {what} would overwrite {path}, which this render needs; name another file")
    fresh = not os.path.lexists(path)
    try:
        path.open("ab").close()
        if fresh:
            path.unlink()
    except OSError as error:
        raise RenderError(
            f"the {what} cannot be written to {path} ({error.strerror}); name a file in an existing folder you may write to"
        ) from error
    return path


def save_latents(
    path: Path,
    made: Mapping[str, Tensor],
    consumed: dict[str, Tensor],
    settings: Settings,
    clip: SemanticClip,
    dtype: torch.dtype,
) -> None:
    """Write everything needed to recompute the render with another implementation, float32, whole chunks, untrimmed.

    `made` is video [24, T, h, w], audio [2, 32, A] and reference [24, T, h', w']; `consumed` is text, tags and picture.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {
        **made,
        "text": consumed["text"].float(),
        "tags": consumed["tags"],
        "picture": consumed["picture"].float(),
    }
    facts = {**settings.facts(), "dtype": DTYPE_NAMES[dtype], "frames": clip.frames}
    metadata = {name: json.dumps(value) for name, value in facts.items()}
    try:
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
    except (OSError, SafetensorError) as error:
        raise RenderError(
            f"the latents cannot be written to {path} ({error}); all frames are in the video. "
            "Free disk space and render again with --resume"
        ) from error
