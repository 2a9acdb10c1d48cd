"""What number formats and kernels cost in accuracy: the example model rendered in every form, against plain float32.

`python -m streamrender_h3.workflows.nano.accuracy --chunks 8 --json`. Every form renders the same clip from the same noise,
chunk after chunk on its own results. PSNR is of decoded frames; the errors are relative, of the predictions of both steps
in the first chunk behind the bootstrap. The row "recomputed" runs the whole window without a bank, under the mask that the
bank stands for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from ...kernels.choice import AttentionError
from ...kernels.dense_attention import choose_dense
from ...nodes.codec import load_decoder, load_encoder
from ...nodes.loader import H3Model, load_h3
from ...nodes.model import Form, audio_from_rows, choose_form, unpatchify
from ...nodes.sampler import Conditions, Network, PrefixBank, Rollout, TimeGrid, conditions_for, h3_time
from ...nodes.sampler.pack import RowTimes, WindowLatents, make_layout, pack_whole
from ...nodes.sampler.render import decode_chunk, encode_frames
from ...nodes.schedule import RELEASE, Window
from .evaluate import ASSETS, Drive, Example
from .measures import psnr

SEED, LOOK = 1001, "clear noon"
NOISE_SEED = 7
PLAIN, FAST, INT8, RECOMPUTED = "plain", "fast", "int8", "recomputed"


@dataclass(frozen=True)
class Variant:
    """One way to compute: dtype, weights (stored or fp8), form of the bank, and by what."""

    name: str
    dtype: torch.dtype = torch.float32
    weights: str = "stored"
    bank: str = "split"
    by: str = PLAIN


def variants(device: torch.device) -> Iterator[Variant]:
    """The exact one first."""
    yield Variant("float32, plain modules")
    yield Variant("float32, recomputed without a bank", by=RECOMPUTED)
    yield Variant("float32, sandwich", bank="sandwich")
    yield Variant("float32, bank in fp8", bank="fp8")
    if device.type != "cuda":
        return
    yield Variant("float32, kernels, sandwich", bank="sandwich", by=FAST)
    half = torch.bfloat16
    yield Variant("bf16, plain modules", half)
    yield Variant("bf16, kernels, split", half, by=FAST)
    yield Variant("bf16, kernels, sandwich", half, bank="sandwich", by=FAST)
    yield Variant("bf16, kernels, bank in fp8", half, bank="fp8", by=FAST)
    yield Variant("bf16, kernels, weights in fp8", half, "fp8", by=FAST)
    yield Variant("bf16, kernels, weights and bank in fp8", half, "fp8", "fp8", by=FAST)
    yield Variant("bf16, kernels, attention in int8", half, by=INT8)


@dataclass
class Recomputed:
    """Predicts as `network` does, but from the whole window in one forward: prefix rows see prefix rows only."""

    network: Network

    def __call__(self, window: Window, latents: WindowLatents, step: int) -> tuple[Tensor, Tensor]:
        if window.is_bootstrap:
            return self.network(window, latents, step)
        network, conditions = self.network, self.network.conditions
        layout = make_layout(network.model, window, conditions.geometry, conditions.tags, reference=True)
        moving = torch.ones(layout.plan.total, dtype=torch.bool, device=latents.video.device)
        for span in layout.plan.prefix:
            moving[span.start : span.stop] = False
        visible = moving[:, None] | ~moving[None, :]
        sigmas = network.grid.video[step], network.grid.audio[step]
        times = RowTimes.at(*sigmas, device=moving.device)
        rows = pack_whole(layout, network.model.refine_text(conditions.text), latents, times)
        video, audio = network.model(rows, network.tables.at(times.times), visible=visible)
        new, sounds = len(window.latents), len(window.audio_new)
        return (
            latents.video[:, -new:] + (1 - h3_time(sigmas[0])) * unpatchify(video, new, *latents.video.shape[-2:]),
            latents.audio[:, :, -sounds:] + (1 - h3_time(sigmas[1])) * audio_from_rows(audio),
        )


@dataclass
class Noted:
    """Keeps the predictions of one chunk on their way through."""

    predict: Network | Recomputed
    chunk: int
    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, window: Window, latents: WindowLatents, step: int) -> tuple[Tensor, Tensor]:
        made = self.predict(window, latents, step)
        if window.index == self.chunk:
            self.seen.append(made[0].clone())
        return made


def form_of(variant: Variant, model: H3Model, device: torch.device) -> Form | None:
    """The kernels and attention of a variant. Raises `AttentionError` where its attention cannot run."""
    if variant.by not in (FAST, INT8):
        return None
    form = choose_form(model.model, device)
    if form is None:
        raise AttentionError("the plain modules were asked for by SRH3_FORCE_REFERENCE; unset it to compare kernels")
    if variant.by == INT8:
        return Form(choose_dense(device, variant.dtype, model.config.head_dim, "int8"), form.kernels)
    return form


@torch.inference_mode()
def rendered(
    variant: Variant, model: H3Model, conditions: Conditions, maps: Tensor, device: torch.device, chunks: int
) -> tuple[Tensor, list[Tensor]]:
    """Latents [24, n, h, w] and the predictions of both steps of chunk 1; `maps` are all map latents [24, n, h', w']."""
    grid = TimeGrid.trailing(2)
    tables = model.modulation.tables(grid.h3_times()).to(device)
    network = Network(
        model.model, tables, conditions, grid, bank=PrefixBank(variant.bank), form=form_of(variant, model, device)
    )
    noted = Noted(Recomputed(network) if variant.by == RECOMPUTED else network, chunk=1)
    channels = model.config.audio_channels
    rollout = Rollout(
        RELEASE, grid, noted, conditions.picture, audio_channels=channels, seed=NOISE_SEED, freeze_sink=True
    )
    made = []
    for _ in range(chunks):
        latents = rollout.next_window.latents
        made.append(rollout.step(maps[:, latents.start : latents.stop]).video)
    return torch.cat(made, dim=1), noted.seen


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def compare(folder: Path, device: torch.device, chunks: int) -> dict[str, dict[str, float | str]]:
    """Figures by variant; a variant that cannot run says why."""
    example = Example.load(folder, device.type, "tae")
    codec = folder / "vae_approx" / "taeh3_example.safetensors"
    encoder, decoder = load_encoder(codec, device=device), load_decoder(codec, device=device)
    frames = RELEASE.frames_through(chunks - 1)
    drive = Drive.draw(SEED, LOOK, frames / 24, device.type)
    clip = drive.clip()
    stream = encoder.stream()
    maps = encode_frames(torch.stack(list(islice(clip.reference_frames(), frames))), stream).to(device)
    file = sorted((folder / "diffusion_models").glob("*.safetensors"))[0]
    found: dict[str, dict[str, float | str]] = {}
    exact: tuple[Tensor, list[Tensor], Tensor] | None = None
    for variant in variants(device):
        model = load_h3(file, dtype=variant.dtype, device=device, weights=variant.weights)
        conditions = conditions_for(clip, drive.look(example.text), model, encoder)
        try:
            latents, steps = rendered(variant, model, conditions, maps, device, chunks)
        except AttentionError as error:
            found[variant.name] = {"not run": str(error)}
            continue
        pictures = decode_chunk(decoder.stream(), latents, last=True)
        exact = exact or (latents, steps, pictures)
        errors = [relative(made, true) for made, true in zip(steps, exact[1], strict=True)]
        found[variant.name] = {
            "psnr": psnr(pictures, exact[2]),
            **{f"error, step {number}": error for number, error in enumerate(errors)},
            "error, latents of the last chunk": relative(latents[:, -2:], exact[0][:, -2:]),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--weights", type=Path, default=ASSETS, help="folder with the example weights")
    parser.add_argument("--chunks", type=int, default=8, help="chunks to render, the bootstrap included")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    found = compare(args.weights, torch.device(args.device), args.chunks)
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for name, figures in found.items():
        print(
            f"{name}: "
            + ", ".join(f"{key} {v:.4g}" if isinstance(v, float) else f"{key}: {v}" for key, v in figures.items())
        )


if __name__ == "__main__":
    main()
