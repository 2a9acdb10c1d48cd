"""Judge the example weights on tracks and looks never trained on, through the engine everyone uses.

`python -m streamrender_h3.workflows.nano.evaluate --seeds 1001 1002 --looks "golden hour" --seconds 30 --json`. Every clip is
drawn by the world, rendered from its class ids, first picture and prompt, and compared with the world's own frames.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from ...nodes.schedule import FPS, RELEASE
from .measures import block_start_step, edge_agreement, histogram_distance, psnr, seam_ratio
from .world import LOOKS, Track, WorldLook, prompt_for
from .world import render as draw

ASSETS = Path(__file__).resolve().parents[1] / "assets"
HELD_OUT = (1001, 1002, 1003)
SIZE, REFERENCE_SIZE = (256, 448), (160, 288)
BATCH = 48
LOOK_SAMPLES = 8
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
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
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


def rendered(
    example: Example, clip: SemanticClip, look: Look, settings: Settings = RELEASED
) -> tuple[Tensor, list[int]]:
    """Frames [n, 3, H, W] and the index of each chunk's first latent frame."""
    chunks = list(render(clip, look, example.model, example.encoder, example.decoder, settings))
    starts = [window.frames.start for window in settings.schedule.windows(clip.frames)]
    return torch.cat([chunk.frames for chunk in chunks]), starts


@torch.inference_mode()
def through_codec(example: Example, decoder: Decoder, frames: Tensor) -> Tensor:
    """True frames encoded and decoded again: what no render can be better than. Trimmed to whole latents."""
    encoder, pictures = example.encoder.stream(), decoder.stream()
    parts = [pictures.push(encoder.push(frame[None])) for frame in frames]
    return torch.cat([*parts, pictures.flush()]).cpu()


def judge(example: Example, seed: int, look: str, seconds: float, device: str) -> dict[str, float]:
    """All figures of one clip."""
    drive = Drive.draw(seed, look, seconds, device)
    output, starts = rendered(example, drive.clip(), drive.look(example.text))
    start, late = slice(0, 5 * FPS), slice(25 * FPS, 30 * FPS)
    figures = {"psnr_0_5": psnr(output[start], drive.frames[start])}
    if len(output) >= 60 * FPS:
        figures["psnr_55_60"] = psnr(output[55 * FPS : 60 * FPS], drive.frames[55 * FPS : 60 * FPS])
    if len(output) >= 30 * FPS:
        figures["psnr_25_30"] = psnr(output[late], drive.frames[late])
        figures["drift_db"] = figures["psnr_0_5"] - figures["psnr_25_30"]

    first = drive.frames[start]
    for name, decoder in (("tae_psnr", example.tae), ("vit_psnr", example.decoder)):
        decoded = through_codec(example, decoder, first)
        figures[name] = psnr(decoded, first[: len(decoded)])

    other = Drive.draw(seed + 7, look, 5, device)
    swapped, _ = rendered(example, other.clip(), drive.look(example.text))
    figures["edge_agreement"] = edge_agreement(output[: len(swapped)], drive.ids[: len(swapped)], other.ids)
    figures["edge_agreement_swapped"] = edge_agreement(swapped, drive.ids[: len(swapped)], other.ids)

    samples = torch.linspace(0, len(first) - 1, LOOK_SAMPLES).long()
    truth = {name: Drive.truth(seed, name, samples.tolist(), device) for name in LOOKS if name != look}
    own = histogram_distance(output[start][samples], first[samples])
    figures["look_control"] = float(all(own < histogram_distance(output[start][samples], t) for t in truth.values()))
    figures["seam_ratio"] = seam_ratio(output, starts)
    figures["block_start_levels"] = block_start_step(output)
    return figures


def ablate(example: Example, seed: int, look: str, seconds: float, device: str) -> dict[str, float]:
    """PSNR of whole renders under changed settings, by name; the released ones first."""
    drive = Drive.draw(seed, look, seconds, device)
    clip, seen = drive.clip(), drive.look(example.text)
    return {
        name: psnr(rendered(example, clip, seen, settings)[0], drive.frames)
        for name, settings in {"released": RELEASED, **ABLATIONS}.items()
    }


def totals(rows: list[dict[str, float]]) -> dict[str, float]:
    """Means over clips; `look_control` is the share of clips nearest to their own look."""
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in rows[0]}


def clips(seeds: list[int], looks: list[str]) -> Iterator[tuple[int, str]]:
    for number, look in enumerate(looks):
        yield seeds[number % len(seeds)], look


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
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    example = Example.load(args.weights, device, args.decoder)
    if args.ablations:
        print(json.dumps(ablate(example, args.seeds[0], args.looks[0], args.seconds, device), indent=1))
        return
    rows = {}
    for seed, look in clips(args.seeds, args.looks):
        rows[f"{look} {seed}"] = figures = judge(example, seed, look, args.seconds, device)
        if not args.json:
            print(f"{look} {seed}: " + ", ".join(f"{name} {value:.3f}" for name, value in figures.items()), flush=True)
    total = totals(list(rows.values()))
    print(json.dumps({"clips": rows, "total": total}, indent=1) if args.json else f"total: {total}")


if __name__ == "__main__":
    main()
