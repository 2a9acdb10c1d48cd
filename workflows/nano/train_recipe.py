"""Every size and share of the example training, and what all stages have in common: the clock, the optimiser, the EMA."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ...nodes.codec import TAEWidths
from ...nodes.codec.vit import ViTConfig
from ...nodes.model import H3Config
from ...nodes.schedule import RELEASE, Geometry
from .train_muon import Muon

PREFIX = "dit."  # of the transformer's tensor names in a file
BEGUN = 0.7  # of the learning rate for weights that begin finished: what they know must not be shaken too much
HIDDEN = 32  # rows and columns a matrix must have to be Muon's; Adam takes thinner ones, and the vectors
KEEP_EVERY = 150.0  # seconds between two checkpoints on the way


@dataclass(frozen=True)
class Recipe:
    """Sizes of pictures, clips, networks and batches. Clip lengths count the chunks after the bootstrap."""

    size: tuple[int, int] = (256, 448)
    reference_size: tuple[int, int] = (160, 288)
    short: int = 12  # 132 frames
    medium: int = 40  # 370 frames
    long: int = 81  # 719 frames
    long_share: int = 20  # one long and one medium clip in so many
    held_long: int = 2  # of the held-out clips
    held_looks: int = 12
    text_dim: int = 96
    tae: TAEWidths = field(default_factory=lambda: TAEWidths(encoder=56, decoder=(96, 72, 56, 40)))
    vit: ViTConfig = field(default_factory=lambda: ViTConfig(layers=6, hidden=256, heads=4, ffn=512, window=8))
    h3: H3Config = field(
        default_factory=lambda: H3Config(
            hidden=384, layers=12, refiner_layers=1, heads=6, head_dim=64, ffn=768, text_dim=96, freq_dim=256,
            time_hidden=128, time_dim=16, rope_freqs=8,
        )
    )  # fmt: skip
    crop: tuple[int, int] = (160, 224)
    tae_photos: int = 8
    tae_maps: int = 2
    vit_clips: int = 4
    vit_latents: int = 10
    clips: int = 8  # per step of the transformer
    windows: int = 4  # continuation windows per clip, which share its prefix rows
    pictures: int = 3  # windows per step that also get the decoded-picture loss
    rollouts: int = 48
    shards: int = 4
    text_step: int = 32  # captions are cut to a multiple of this many rows, so that layouts repeat
    eval_every: float = 75.0

    @property
    def geometry(self) -> Geometry:
        return Geometry.from_sizes(self.size, self.reference_size, self.size)

    def frames(self, chunks: int) -> int:
        return RELEASE.frames_through(chunks)


def autocast(device: torch.device) -> Any:
    """bfloat16 on a GPU. Without the weight cache, which would lose gradients where a pass without them came first."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)


class Stage:
    """One stage's budget, weights, optimiser and record. It survives in `folder/NAME.safetensors`; `update` makes one step.

    `seconds` is the stage's own budget over all calls, `deadline` (time.time) the end of this call. `begin` are files of
    finished weights to start from.
    """

    def __init__(self, name: str, folder: Path, network: nn.Module, *, seconds: float, deadline: float, lr: float,
                 decay: float = 0.999, max_steps: int | None = None, begin: Sequence[Path] = ()) -> None:  # fmt: skip
        if begin:
            weights = {key: tensor for path in begin for key, tensor in load_file(path).items()}
            network.load_state_dict({key.removeprefix(PREFIX): tensor for key, tensor in weights.items()})
            lr = BEGUN * lr
        self.name, self.path, self.network = name, folder / f"{name}.safetensors", network
        self.seconds, self.deadline, self.lr, self.decay, self.max_steps = seconds, deadline, lr, decay, max_steps
        self.average = copy.deepcopy(network).requires_grad_(False).eval()
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        hidden = [p for p in self.parameters if p.ndim > 1 and min(p.flatten(1).shape) >= HIDDEN]
        known = set(map(id, hidden))
        thin = [p for p in self.parameters if p.ndim > 1 and id(p) not in known]
        vectors = [p for p in self.parameters if p.ndim <= 1]
        groups = [{"params": thin, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
        adam = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=self.device.type == "cuda")
        self.optimisers: list[torch.optim.Optimizer] = [adam, *([Muon(hidden, lr=lr)] if hidden else [])]
        self.steps, self.spent, self.started, self.kept = 0, 0.0, time.time(), time.time()
        self.facts: dict[str, Any] = {}
        self.record: list[dict[str, Any]] = []
        self.restarts = 0
        if self.path.exists():
            self._resume()

    def _resume(self) -> None:
        """Weights, average and record go on where they were; the optimiser's moments start again."""
        state = load_file(self.path, device=str(self.device))
        for name, module in (("network", self.network), ("average", self.average)):
            prefix = f"{name}."
            module.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        saved = json.loads(self.path.with_suffix(".json").read_text(encoding="utf-8"))
        self.steps, self.spent, self.facts = saved["steps"], saved["spent"], saved["facts"]
        self.record, self.restarts = saved["record"], saved["restarts"]

    @property
    def elapsed(self) -> float:
        return self.spent + time.time() - self.started

    @property
    def fraction(self) -> float:
        """Share of the stage that is done, 0 to 1: of its steps if they are limited, else of its seconds."""
        if self.max_steps:
            return min(1.0, self.steps / self.max_steps)
        return min(1.0, self.elapsed / self.seconds)

    @property
    def running(self) -> bool:
        return self.fraction < 1 and time.time() < self.deadline

    @property
    def done(self) -> bool:
        return self.fraction >= 1

    def rate(self) -> float:
        """Learning rate: warm-up over 2 percent of the budget, then a cosine down to 3 percent."""
        warm = min(1.0, (self.steps + 1) / 100, self.fraction / 0.02 + 0.05)
        return self.lr * warm * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * self.fraction)))

    def update(self, loss: Tensor) -> None:
        """Backward, clip, step, average. A step whose gradient is not finite changes nothing."""
        loss.backward()
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        factor = torch.where(norm.isfinite(), 1.0 / norm.clamp_min(1.0), torch.zeros_like(norm))
        for grad in grads:
            grad.nan_to_num_(0.0, 0.0, 0.0)
        torch._foreach_mul_(grads, factor)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.rate()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        with torch.no_grad():
            mine: list[Tensor] = list(self.network.parameters())
            average: list[Tensor] = list(self.average.parameters())
            torch._foreach_lerp_(average, mine, 1.0 - decay)

    def heal(self, loss: Tensor) -> None:
        """After a loss that is not finite, go back to the averaged weights."""
        if math.isfinite(float(loss.detach())):
            return
        self.restarts += 1
        self.network.load_state_dict(self.average.state_dict())
        for optimiser in self.optimisers:
            optimiser.state.clear()

    def log(self, **figures: float | int | str) -> None:
        """Print one line and keep it for the report."""
        line = {"stage": self.name, "seconds": round(self.elapsed, 1), "step": self.steps, **figures}
        self.record.append(line)
        print(" ".join(f"{k}={round(v, 4) if isinstance(v, float) else v}" for k, v in line.items()), flush=True)

    def keep(self) -> None:
        """Save now and then, so that a call that is killed loses little."""
        if time.time() - self.kept > KEEP_EVERY:
            self.save()

    def save(self) -> None:
        self.kept = time.time()
        self.spent, self.started = self.elapsed, time.time()
        tensors = {
            f"{name}.{key}": tensor.contiguous()
            for name, module in (("network", self.network), ("average", self.average))
            for key, tensor in module.state_dict().items()
        }
        facts = {
            "steps": self.steps, "spent": self.spent, "facts": self.facts, "record": self.record, "restarts": self.restarts,
        }  # fmt: skip
        self.path.with_suffix(".json").write_text(json.dumps(facts), encoding="utf-8")
        scratch = self.path.with_suffix(".part")
        save_file(tensors, scratch)
        scratch.replace(self.path)


def psnr(error: Tensor) -> float:
    """Decibels of a mean squared error of values in [0, 1]."""
    return float(-10 * torch.log10(error.clamp_min(1e-10)))
