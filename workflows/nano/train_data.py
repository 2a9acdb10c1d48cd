"""Clips of the driving world for the training: drawn by a few processes at once, kept on disk, then in GPU memory.

Seeds below `FIRST_SEED` are never trained on; the first clips drawn are the held-out ones, one per look.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...nodes.look.qwen import QwenEncoder, load_encoder
from ...nodes.palette import floor_indices
from ...nodes.schedule import RELEASE
from .train_recipe import Recipe
from .world import COLORS, LOOKS, Track, WorldLook, prompt_for, render

FIRST_SEED = 100_000
PIECE = 120  # frames drawn at once


@dataclass(frozen=True)
class Job:
    """One clip to draw: `first` is its first frame on the clock of the world."""

    number: int
    seed: int
    look: str
    first: int
    chunks: int
    held: bool


def jobs(recipe: Recipe, skip: int = 0) -> Iterator[Job]:
    """Held-out clips first, then training clips without end: every look in turn, most of them short.

    `skip` leaves out the first training clips, those that weights to start from have already seen.
    """
    names = list(LOOKS)
    for number in range(recipe.held_looks):
        chunks = recipe.long if number < recipe.held_long else recipe.short
        # the long ones are not the first looks of the list, but a bright and a wet one
        yield Job(number, number, names[(number * 5) % len(names)], 0, chunks, True)
    number = skip
    while True:
        dice = random.Random(f"clip {number}")
        place = number % recipe.long_share
        chunks = {0: recipe.long, recipe.long_share // 2: recipe.medium}.get(place, recipe.short)
        first = dice.choice((0, dice.randrange(24, 600)))
        look = names[(number + number // len(names)) % len(names)]
        yield Job(recipe.held_looks + number, FIRST_SEED + number, look, first, chunks, False)
        number += 1


def draw(
    job: Job, recipe: Recipe, encoder: QwenEncoder, device: torch.device, deadline: float
) -> dict[str, Tensor] | None:
    """Frames, maps at reference size and text states of one clip; None when the time is over."""
    track, look = Track.from_seed(job.seed), WorldLook.named(job.look, job.seed)
    total = recipe.frames(job.chunks)
    rows = torch.from_numpy(floor_indices(recipe.size[0], recipe.reference_size[0])).long().to(device)
    columns = torch.from_numpy(floor_indices(recipe.size[1], recipe.reference_size[1])).long().to(device)
    maps, photos = [], []
    for start in range(job.first, job.first + total, PIECE):
        if time.time() > deadline:
            return None
        frames = range(start, min(start + PIECE, job.first + total))
        ids, rgb = render(track, look, frames, recipe.size, device, batch=40)
        assert rgb is not None  # a look was given
        maps.append(ids[:, rows][:, :, columns].cpu())
        photos.append(rgb.cpu())
    prompt = prompt_for(track, look, range(job.first, job.first + 120, 12), device)
    states = encoder.encode(prompt, photos[0][0].permute(1, 2, 0).contiguous().numpy())
    facts = torch.tensor([job.number, job.seed, list(LOOKS).index(job.look), job.first, job.chunks, int(job.held)])
    return {
        "maps": torch.cat(maps), "photos": torch.cat(photos), "text": states.text.float(), "tags": states.tags,
        "media_rows": torch.tensor([states.media_rows]), "facts": facts,
    }  # fmt: skip


def draw_clips(
    folder: Path, recipe: Recipe, qwen: Path, device: torch.device, deadline: float, most: int | None, skip: int
) -> None:
    """Draw clips nobody has claimed until the deadline, `most` at most; several processes may do so in one folder."""
    encoder = load_encoder(qwen, device=device)
    for job in islice(jobs(recipe, skip), most):
        if time.time() > deadline:
            return
        path = folder / f"clip_{job.number:05}.safetensors"
        try:
            os.close(os.open(path.with_suffix(".claim"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        try:
            clip = draw(job, recipe, encoder, device, deadline)
        except torch.OutOfMemoryError:  # too many drawing processes for the memory: leave this clip out
            torch.cuda.empty_cache()
            continue
        if clip is None:
            return
        save_file({name: part.contiguous() for name, part in clip.items()}, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)


def _draw_process(
    folder: Path, recipe: Recipe, qwen: Path, device: str, deadline: float, most: int | None, skip: int
) -> None:
    torch.set_num_threads(2)
    draw_clips(folder, recipe, qwen, torch.device(device), deadline, most, skip)


def devices(device: torch.device, workers: int) -> list[str]:
    """A device for each of some processes: the visible GPUs in turn, or the one device that is not a GPU."""
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    return [f"cuda:{number % count}" if count else str(device) for number in range(workers)]


def make_data(folder: Path, recipe: Recipe, qwen: Path, device: torch.device, *, seconds: float, workers: int,
              most: int | None = None, skip: int = 0) -> dict[str, float]:  # fmt: skip
    """Fill `folder` for `seconds`; what is there already stays. Returns clips, frames and frames a second.

    The processes take the visible GPUs in turn. `most` and `skip`: see `draw_clips` and `jobs`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = len(list(folder.glob("clip_*.safetensors")))
    for claim in folder.glob("*.claim"):
        if not claim.with_suffix(".safetensors").exists():
            claim.unlink()
    start = time.time()
    deadline = start + seconds
    if workers == 0:
        draw_clips(folder, recipe, qwen, device, deadline, most, skip)
    else:
        spawn = multiprocessing.get_context("spawn")
        running = [
            spawn.Process(target=_draw_process, args=(folder, recipe, qwen, at, deadline, most, skip), daemon=True)
            for at in devices(device, workers)
        ]
        for process in running:
            process.start()
        for process in running:
            process.join(max(1.0, deadline + 20 - time.time()))
            if process.is_alive():
                process.kill()
    took = time.time() - start
    made = sorted(folder.glob("clip_*.safetensors"))
    frame = 3 * recipe.size[0] * recipe.size[1] + recipe.reference_size[0] * recipe.reference_size[1]
    frames = sum(path.stat().st_size for path in made) // frame
    facts = {"clips": len(made), "new_clips": len(made) - before, "frames": frames, "seconds": took,
             "frames_per_second": frames / took if not before else 0.0}  # fmt: skip
    print("data " + " ".join(f"{k}={v:.1f}" for k, v in facts.items()), flush=True)
    return facts


@dataclass
class Clips:
    """All frames of all clips in device memory, one clip after the other, and the facts of every clip."""

    photos: Tensor  # uint8 [F, 3, H, W]
    maps: Tensor  # uint8 [F, h, w], class ids
    palette: Tensor  # float32 [14, 3] in [0, 1]
    start: list[int]  # first frame of every clip
    chunks: list[int]
    seeds: list[int]
    looks: list[str]
    held: list[bool]
    text: list[Tensor]  # float32 [L, text_dim]
    tags: list[Tensor]
    media_rows: int

    @property
    def device(self) -> torch.device:
        return self.photos.device

    def __len__(self) -> int:
        return len(self.start)

    def frames(self, clip: int) -> int:
        return RELEASE.frames_through(self.chunks[clip])

    def latents(self, clip: int) -> int:
        return RELEASE.window_at(self.chunks[clip]).latents.stop

    def training(self) -> list[int]:
        return [i for i in range(len(self)) if not self.held[i]]

    def map_rgb(self, ids: Tensor) -> Tensor:
        """Class ids [..., h, w] -> palette colours [..., 3, h, w] in [0, 1]."""
        return self.palette[ids.long()].movedim(-1, -3)


def load_clips(folder: Path, device: torch.device) -> Clips:
    """Read every finished clip of `folder` onto the device."""
    paths = sorted(folder.glob("clip_*.safetensors"))
    parts = [load_file(path) for path in paths]
    names = list(LOOKS)
    facts = [part["facts"].tolist() for part in parts]
    held = [bool(f[5]) for f in facts]
    if all(held) or not any(held):
        raise RuntimeError(
            f"{folder} holds {len(parts)} clips, {sum(held)} of them held out; training needs both kinds. Give more time "
            "to the data stage."
        )
    counts = [len(part["photos"]) for part in parts]
    start = [sum(counts[:i]) for i in range(len(counts))]
    height, width = parts[0]["photos"].shape[-2:]
    photos = torch.empty(sum(counts), 3, height, width, dtype=torch.uint8, device=device)
    maps = torch.empty(sum(counts), *parts[0]["maps"].shape[1:], dtype=torch.uint8, device=device)
    for part, first, count in zip(parts, start, counts, strict=True):
        photos[first : first + count] = part["photos"].to(device)
        maps[first : first + count] = part["maps"].to(device)
    return Clips(
        photos=photos, maps=maps, palette=torch.tensor(COLORS, device=device).float() / 255, start=start,
        chunks=[f[4] for f in facts], seeds=[f[1] for f in facts], looks=[names[f[2]] for f in facts], held=held,
        text=[part["text"].to(device) for part in parts], tags=[part["tags"].to(device) for part in parts],
        media_rows=int(parts[0]["media_rows"]),
    )  # fmt: skip
