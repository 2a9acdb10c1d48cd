"""Judge the example weights on tracks and looks never trained on, through the engine everyone uses.

`python -m streamrender_h3.workflows.nano.evaluate --seeds 1001 1002 --looks "golden hour" --seconds 30 --json`. Every clip is
drawn by the world, rendered from its class ids, first picture and prompt, and compared with the world's own frames.
`--processes` judges several clips at once, on all visible GPUs in turn. Every finished clip is one JSON line on stderr.

Seams: `seam_ratio` is the frame difference across chunk borders over that inside chunks. `seam_ratio_truth` is the same of the
world's own frames (near 1: motion does not know chunks) and `seam_ratio_codec` of those frames through the codec alone, which
brings news once per latent and so has its larger differences where latents begin, chunk borders included.
`seam_ratio_latents` compares chunk borders with the borders of latents inside chunks only: what chunks add to the codec.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...nodes.codec import Decoder, Encoder, load_decoder, load_encoder
from ...nodes.loader import H3Model, load_h3
from ...nodes.look import Look, QwenEncoder, make_look
from ...nodes.look import load_encoder as load_text_encoder
from ...nodes.palette import RACING, SemanticClip, clip_from_frames
from ...nodes.sampler import DEFAULT_SEED, DENSE, Branch, Settings, TimeGrid, render
from ...nodes.schedule import FPS, RELEASE, frame_of_latent
from .measures import block_start_step, edge_agreement, histogram_distance, psnr, seam_ratio
from .world import LOOKS, Track, WorldLook, prompt_for
from .world import render as draw

ASSETS = Path(__file__).resolve().parents[1] / "assets"
HELD_OUT = (1001, 1002, 1003)
SIZE, REFERENCE_SIZE = (256, 448), (160, 288)
BATCH = 12  # frames drawn at once: several processes share one GPU
LOOK_SAMPLES = 8
_judge_here: Callable[[int, str], dict[str, float]]  # of a process that judges clips
STRIP_SECONDS = (0.0, 2.5, 5.0, 15.0, 30.0)
RELEASED = Settings(RELEASE, TimeGrid.trailing(2), DEFAULT_SEED)
ABLATIONS = {
    "16 steps": replace(RELEASED, grid=TimeGrid.trailing(16)),
    "dense": replace(RELEASED, attention=DENSE),
    "no map": replace(RELEASED, branches=(Branch("text", caption=True, reference=False, weight=1.0),)),
    "sink 0": replace(RELEASED, schedule=replace(RELEASE, sink=0), attention=DENSE),
    "history 0": replace(RELEASED, schedule=replace(RELEASE, window=0), attention=DENSE),
}


@dataclass(frozen=True)
class Example:
    """The shipped models on one device."""

    model: H3Model
    encoder: Encoder
    decoder: Decoder
    tae: Decoder
    text: QwenEncoder

    @classmethod
    def load(cls, folder: Path, device: str, decoder: str) -> Example:
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        codecs = folder / "vae_approx"
        tae = codecs / "taeh3_example.safetensors"
        shown = tae if decoder == "tae" else codecs / "vit_decoder_example.safetensors"
        return cls(
            model=load_h3(sorted((folder / "diffusion_models").glob("*.safetensors"))[0], dtype=dtype, device=device),
            encoder=load_encoder(tae, device=device),
            decoder=load_decoder(shown, device=device),
            tae=load_decoder(tae, device=device),
            text=load_text_encoder(folder / "text_encoders" / "qwen3vl_example", device=device, dtype=torch.float32),
        )


@dataclass(frozen=True)
class Drive:
    """One clip of the world: class ids uint8 [n, H, W] and true frames float [n, 3, H, W], on the CPU."""

    ids: Tensor
    frames: Tensor
    prompt: str

    @classmethod
    def draw(cls, seed: int, look: str, seconds: float, device: str) -> Drive:
        track, appearance, count = Track.from_seed(seed), WorldLook.named(look, seed), round(seconds * FPS)
        parts = [
            draw(track, appearance, range(start, min(start + BATCH, count)), size=SIZE, device=device)
            for start in range(0, count, BATCH)
        ]
        ids = torch.cat([ids.cpu() for ids, _ in parts])
        frames = torch.cat([rgb.cpu() for _, rgb in parts if rgb is not None])
        scale = 255 if frames.dtype == torch.uint8 else 1
        return cls(ids, frames.float() / scale, prompt_for(track, appearance, device=device))

    @staticmethod
    def truth(seed: int, look: str, frames: list[int], device: str) -> Tensor:
        """True frames [n, 3, H, W] in [0, 1] of a drive in a look, on the CPU."""
        _, rgb = draw(Track.from_seed(seed), WorldLook.named(look, seed), frames, size=SIZE, device=device)
        assert rgb is not None  # a look was given
        return rgb.cpu().float() / 255

    def clip(self) -> SemanticClip:
        colours = RACING.colours
        return clip_from_frames(
            lambda: (colours[ids.numpy()] for ids in self.ids), RACING, REFERENCE_SIZE, count=len(self.ids)
        )

    def look(self, text: QwenEncoder) -> Look:
        picture = (self.frames[0] * 255).round().byte().permute(1, 2, 0).contiguous()
        return make_look(text.encode(self.prompt, picture.numpy()), rgb=picture, prompt=self.prompt)


@dataclass(frozen=True)
class Rendered:
    """Frames [n, 3, H, W] of a render, and the first frames of its chunks and of its latents."""

    frames: Tensor
    chunk_starts: list[int]
    latent_starts: list[int]


def rendered(example: Example, clip: SemanticClip, look: Look, settings: Settings = RELEASED) -> Rendered:
    chunks = list(render(clip, look, example.model, example.encoder, example.decoder, settings))
    windows = list(settings.schedule.windows(clip.frames))
    latents = [frame_of_latent(latent) for window in windows for latent in window.latents]
    frames = torch.cat([chunk.frames for chunk in chunks])
    return Rendered(frames, [window.frames.start for window in windows], latents)


@torch.inference_mode()
def through_codec(example: Example, decoder: Decoder, frames: Tensor) -> Tensor:
    """True frames encoded and decoded again: what no render can be better than. Trimmed to whole latents."""
    encoder, pictures = example.encoder.stream(), decoder.stream()
    parts = [pictures.push(encoder.push(frame[None])) for frame in frames]
    return torch.cat([*parts, pictures.flush()]).cpu()


def judge(
    example: Example, seed: int, look: str, seconds: float, device: str, strips: Path | None = None
) -> dict[str, float]:
    """All figures of one clip; its frames go into a picture in the folder `strips`."""
    drive = Drive.draw(seed, look, seconds, device)
    made = rendered(example, drive.clip(), drive.look(example.text))
    output, true = made.frames, drive.frames[: len(made.frames)]
    if strips is not None:
        write_strip(strips / f"{look.replace(' ', '_')}_{seed}.png", true, output)
    figures = {}
    for name, begin in (("psnr_0_5", 0), ("psnr_25_30", 25), ("psnr_55_60", 55)):
        span = slice(begin * FPS, (begin + 5) * FPS)
        if begin == 0 or len(output) >= span.stop:
            figures[name] = psnr(output[span], true[span])
    if "psnr_25_30" in figures:
        figures["drift_db"] = figures["psnr_0_5"] - figures["psnr_25_30"]

    first = true[: 5 * FPS]
    for name, decoder in (("tae_psnr", example.tae), ("vit_psnr", example.decoder)):
        decoded = through_codec(example, decoder, first)
        figures[name] = psnr(decoded, first[: len(decoded)])

    other = Drive.draw(seed + 7, look, 5, device)
    swapped = rendered(example, other.clip(), drive.look(example.text)).frames
    both = slice(0, min(len(swapped), len(output)))
    figures["edge_agreement"] = edge_agreement(output[both], drive.ids[both], other.ids[both])
    figures["edge_agreement_swapped"] = edge_agreement(swapped[both], drive.ids[both], other.ids[both])
    figures["edge_agreement_truth"] = edge_agreement(true[both], drive.ids[both], other.ids[both])

    samples = torch.linspace(0, len(first) - 1, LOOK_SAMPLES).long()
    truth = {name: Drive.truth(seed, name, samples.tolist(), device) for name in LOOKS if name != look}
    own = histogram_distance(output[samples], first[samples])
    figures["look_control"] = float(all(own < histogram_distance(output[samples], t) for t in truth.values()))
    figures["seam_ratio"] = seam_ratio(output, made.chunk_starts)
    figures["seam_ratio_truth"] = seam_ratio(true, made.chunk_starts)
    figures["seam_ratio_codec"] = seam_ratio(decoded, made.chunk_starts)  # the shown decoder came last
    figures["seam_ratio_latents"] = seam_ratio(output, made.chunk_starts, made.latent_starts)
    figures["block_start_levels"] = block_start_step(output)
    return figures


def write_strip(path: Path, true: Tensor, output: Tensor) -> None:
    """PNG of some moments of a clip side by side, the truth above and the render below."""
    from PIL import Image

    at = [min(round(second * FPS), len(output) - 1) for second in STRIP_SECONDS if second * FPS <= len(output)]
    rows = [torch.cat(list(frames[at]), 2) for frames in (true, output)]
    picture = (torch.cat(rows, 1).clamp(0, 1) * 255).round().byte().permute(1, 2, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture.numpy()).save(path)


def ablate(example: Example, seed: int, look: str, seconds: float, device: str) -> dict[str, float]:
    """PSNR of whole renders under changed settings, by name; the released ones first."""
    drive = Drive.draw(seed, look, seconds, device)
    clip, seen = drive.clip(), drive.look(example.text)
    return {
        name: psnr(rendered(example, clip, seen, settings).frames, drive.frames)
        for name, settings in {"released": RELEASED, **ABLATIONS}.items()
    }


def totals(rows: list[dict[str, float]]) -> dict[str, float]:
    """Means over clips; `look_control` is the share of clips nearest to their own look."""
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in rows[0]}


def clips(seeds: list[int], looks: list[str]) -> Iterator[tuple[int, str]]:
    for number, look in enumerate(looks):
        yield seeds[number % len(seeds)], look


@dataclass(frozen=True)
class Task:
    """How all clips are judged."""

    weights: Path
    decoder: str
    seconds: float
    strips: Path | None

    def deal(self, jobs: list[tuple[int, str]], processes: int) -> dict[str, dict[str, float]]:
        """Figures of every clip by its name, in the order of `jobs`. Processes take clips, and at first a GPU, in turn."""
        processes, gpus = min(processes, len(jobs)), torch.cuda.device_count()
        spawn = multiprocessing.get_context("spawn")
        devices = spawn.SimpleQueue()
        for number in range(processes):
            devices.put(f"cuda:{number % gpus}" if gpus else "cpu")
        threads = max(1, (os.cpu_count() or 1) // processes)
        with ProcessPoolExecutor(processes, spawn, initializer=_start, initargs=(self, devices, threads)) as pool:
            return dict(pool.map(_judge, jobs))


def _start(task: Task, devices: SimpleQueue[str], threads: int) -> None:
    """Load the models in one of the processes, which judge clip after clip with them."""
    global _judge_here
    device = devices.get()
    torch.set_num_threads(threads)
    if device != "cpu":
        torch.cuda.set_device(device)
    example = Example.load(task.weights, device, task.decoder)
    _judge_here = partial(judge, example, seconds=task.seconds, device=device, strips=task.strips)


def _judge(job: tuple[int, str]) -> tuple[str, dict[str, float]]:
    seed, look = job
    figures = _judge_here(seed, look)
    print(json.dumps({"clip": f"{look} {seed}", **figures}), file=sys.stderr, flush=True)
    return f"{look} {seed}", figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=list(HELD_OUT), help="tracks, dealt out to the looks in turn"
    )
    parser.add_argument("--looks", nargs="+", default=list(LOOKS), help="names of looks (default: all)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each clip")
    parser.add_argument("--weights", type=Path, default=ASSETS, help="folder with the example weights")
    parser.add_argument("--decoder", choices=("vit", "tae"), default="vit")
    parser.add_argument(
        "--ablations", action="store_true", help="only the first look and track, under changed settings"
    )
    parser.add_argument("--processes", type=int, default=1, help="clips judged at once")
    parser.add_argument(
        "--frames", type=Path, metavar="DIR", help="write some frames of every clip there, truth above render"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.ablations:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        example = Example.load(args.weights, device, args.decoder)
        print(json.dumps(ablate(example, args.seeds[0], args.looks[0], args.seconds, device), indent=1))
        return
    task = Task(args.weights, args.decoder, args.seconds, args.frames)
    rows = task.deal(list(clips(args.seeds, args.looks)), args.processes)
    total = totals(list(rows.values()))
    print(json.dumps({"clips": rows, "total": total}, indent=1) if args.json else f"total: {total}")


if __name__ == "__main__":
    main()
