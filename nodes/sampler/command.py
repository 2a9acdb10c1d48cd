"""The command `render`: the same engine without ComfyUI."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..codec import load_decoder, load_encoder, usual_dtype
from ..loader import load_h3, open_checkpoint
from ..look import encode_text, load_picture, make_look, prepare_picture, prompt_warnings, with_picture_latent
from ..look.encoder_files import encoder_folder
from ..palette import SemanticClip, clip_from_video, load_palette
from ..preview import VideoFile
from ..schedule import Schedule
from .grids import TimeGrid
from .latent_file import Fingerprint
from .network import DENSE, PREFIX
from .noise import DEFAULT_SEED
from .render import RenderError, Settings, check_inputs, check_settings, conditions_for, render
from .report import RenderReport

RELEASE_SIZE = (768, 1344)
RELEASE_REFERENCE = (480, 832)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

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
        ("--out", "video file to write (.mp4)"),
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
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="of the network (default: bf16 on cuda, fp32 on cpu)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda when there is one")
    parser.add_argument(
        "--save-latents", type=Path, metavar="FILE", help="also write what went in and came out, fp32 safetensors"
    )
    parser.add_argument("--size", metavar="WxH", help="of the video, in pixels (default: what the checkpoint says)")
    parser.add_argument("--reference-size", metavar="WxH", help="of the semantic reference the network sees, in pixels")
    parser.add_argument(
        "--palette", default="racing", help="built-in palette name or palette file (default: %(default)s)"
    )


def run(args: Namespace) -> int:
    """Render one clip; prints progress on the way and the figures at the end.

    What can be wrong is looked at before anything large is loaded, and all of it before the model runs.
    """
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = DTYPES[args.dtype or ("bf16" if device.type == "cuda" else "fp32")]
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RenderError("device is cuda and torch sees no CUDA device here; use --device cpu or install a CUDA torch")
    settings = Settings(Schedule.parse(args.schedule), TimeGrid.trailing(args.steps), args.seed, args.attention)
    check_settings(settings)
    inputs = (args.clip, args.picture, args.prompt_file, args.model, args.encoder, args.decoder)
    out = writable_target(Path(args.out), "video", inputs)
    latents_out = writable_target(Path(args.save_latents), "latents", (*inputs, out)) if args.save_latents else None
    prompt = read_prompt(Path(args.prompt_file))
    encoder_folder(args.text_encoder)
    size, reference_size = sizes_for(open_checkpoint(args.model).metadata, args.size, args.reference_size)
    clip = clip_from_video(args.clip, load_palette(args.palette), reference_size)
    prepared = prepare_picture(load_picture(args.picture), size)

    model = load_h3(args.model, dtype=dtype, device=device)
    encoder = load_encoder(args.encoder, device=device, dtype=codec_dtype(args.encoder, dtype, device))
    decoder = load_decoder(args.decoder, device=device, dtype=codec_dtype(args.decoder, dtype, device))
    for note in (prepared.note, *prompt_warnings(prompt)):
        print(note)
    states = encode_text(args.text_encoder, prompt, prepared.rgb, device=device, dtype=dtype)
    look = make_look(states, rgb=torch.from_numpy(prepared.rgb.copy()), prompt=prompt, note=prepared.note)
    check_inputs(clip, look, model, settings, encoder, decoder)
    look = with_picture_latent(look, encoder)

    conditions = conditions_for(clip, look, model, encoder)
    report, fingerprint = RenderReport(settings, clip.frames), Fingerprint()
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    with VideoFile(out, look.size) as video:
        for chunk in render(clip, look, model, encoder, decoder, settings, conditions=conditions):
            video.add(chunk.frames)
            report.add(chunk)
            fingerprint.add(chunk.video, chunk.audio)
            if latents_out:
                kept.append((chunk.video, chunk.audio, chunk.reference))
            steps = " ".join(f"{ms:.0f}" for ms in chunk.step_ms)
            print(
                f"chunk {chunk.index + 1}/{chunk.total}: {report.frames}/{clip.frames} frames, "
                f"encode {chunk.encode_ms:.0f} ms, steps {steps} ms, decode {chunk.decode_ms:.0f} ms",
                flush=True,
            )
    if latents_out:
        consumed = {"text": look.text, "tags": look.tags, "picture": conditions.picture}
        save_latents(latents_out, kept, consumed, settings, clip, model.model.dtype)
    figures = report.as_dict(fingerprint.hexdigest())
    print(
        f"{out}: {figures['frames']} frames in {figures['render_seconds']} s, latents sha256 {figures['latents_sha256']}"
    )
    return 0


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
    chunks: list[tuple[Tensor, Tensor, Tensor]],
    consumed: dict[str, Tensor],
    settings: Settings,
    clip: SemanticClip,
    dtype: torch.dtype,
) -> None:
    """Write everything needed to recompute the render with another implementation, float32, whole chunks, untrimmed.

    `chunks` are (video, audio, reference) of `RenderedChunk`; `consumed` is text, tags and picture.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    video, audio, reference = zip(*chunks, strict=True)
    tensors = {
        "video": torch.cat(video, dim=1),
        "audio": torch.cat(audio, dim=2),
        "reference": torch.cat(reference, dim=1),
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
            f"the latents cannot be written to {path} ({error}); the video is whole. Free disk space and render again"
        ) from error
