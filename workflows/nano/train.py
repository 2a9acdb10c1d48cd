"""Train the example models on one GPU within a budget of seconds and write them as the loaders read them.

    python -m streamrender_h3.workflows.nano.train --work WORK --out OUT --seconds 560
    python -m streamrender_h3.workflows.nano.train --work WORK --out OUT --seconds 560     (again: goes on)

Stages: data, tae, vit, dit; each has its own budget over all calls. WORK keeps drawn clips and checkpoints, OUT gets the
weights and `training_report.json`. The last two stages do not need each other and may run in two processes, each `--without`
the other's stage, into different OUT; a last call without that option writes everything.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from ...nodes.codec import CausalViT
from ...nodes.loader import EXAMPLE_KEY, write_h3
from ...nodes.model import FLOAT32_TENSORS, H3
from .qwen import write_qwen
from .train_codec import encode, train_tae, train_vit
from .train_data import FIRST_SEED, Clips, load_clips, make_data
from .train_dit import FURTHER, Shares, train_dit
from .train_recipe import Recipe, Stage
from .train_stream import Latents
from .weights import WeightFiles

ABOUT = "example model, procedural world"
REPORT = "training_report.json"
QWEN_SEED = 1
STAGES = {"data": 90.0, "tae": 200.0, "vit": 130.0, "dit": 600.0}
EXPORT_SECONDS = 35.0  # kept free at the end of a call, for the last measurement and the files
STAGE_SECONDS = 60.0  # a stage with less than this left is not begun


def facts(recipe: Recipe) -> dict[str, str]:
    (height, width), (map_height, map_width) = recipe.size, recipe.reference_size
    return {EXAMPLE_KEY: ABOUT, "size": f"{width}x{height}", "reference_size": f"{map_width}x{map_height}"}


def export_codec(module: nn.Module, path: Path, recipe: Recipe, **more: str) -> None:
    """TAE or ViT decoder in float16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().half().cpu().contiguous() for name, t in module.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt", **facts(recipe), **more})


def export_dit(model: H3, path: Path, recipe: Recipe) -> None:
    """bfloat16 but for the float32 tensors of the format, in shards."""
    state = {n: t if n in FLOAT32_TENSORS else t.to(torch.bfloat16) for n, t in model.state_dict().items()}
    write_h3(path, state, facts(recipe), shards=recipe.shards)


def vit_path(files: WeightFiles) -> Path:
    return files.codec.with_name("vit_decoder_example.safetensors")


def train(work: Path, out: Path, recipe: Recipe, device: torch.device, *, seconds: float, budgets: dict[str, float],
          workers: int, shares: Shares | None = None, most_clips: int | None = None,
          max_steps: int | None = None, without: Sequence[str] = (), begin: Path | None = None) -> dict[str, Any]:  # fmt: skip
    """Run or continue all stages but those of `without` for at most `seconds`; returns the report, which is also written.

    `begin` is a folder of finished weights, such as the bundled ones, from which the stages start instead of from noise.
    The clips those were trained on are left out, and their report becomes part of this one.
    """
    deadline = time.time() + seconds - min(EXPORT_SECONDS, seconds / 10)
    work.mkdir(parents=True, exist_ok=True)
    files = WeightFiles.below(out)
    report: dict[str, Any] = {"model": ABOUT, "budgets": budgets, "stages": {}}
    skip = 0
    if begin:
        report["began_from"] = before = json.loads((begin / REPORT).read_text(encoding="utf-8"))
        skip = max(before["data"]["training_seeds"]) + 1 - FIRST_SEED
    write_qwen(files.text_encoder, QWEN_SEED, hidden_text=recipe.text_dim)
    done = work / "data.json"
    if not done.exists():
        made = make_data(
            work / "clips",
            recipe,
            files.text_encoder,
            device,
            seconds=budgets["data"],
            workers=workers,
            most=most_clips,
            skip=skip,
        )
        done.write_text(json.dumps(made), encoding="utf-8")
    report["data"] = json.loads(done.read_text(encoding="utf-8"))
    clips = load_clips(work / "clips", device)
    report["data"] |= _data_facts(clips)
    print(f"loaded {len(clips)} clips, {len(clips.photos)} frames", flush=True)

    known = WeightFiles.below(begin) if begin else None
    starts = {
        "tae": [known.codec] if known else [],
        "vit": [vit_path(known)] if known else [],
        "dit": sorted(known.model.parent.glob("*.safetensors")) if known else [],
    }

    def options(name: str) -> dict[str, Any]:
        common = {"folder": work, "seconds": budgets[name], "deadline": deadline, "max_steps": max_steps}
        return common | {"begin": starts[name]}

    def ends_soon() -> bool:
        return max_steps is None and deadline - time.time() < STAGE_SECONDS

    def note(stage: Stage, network: nn.Module) -> bool:
        size = sum(p.numel() for p in network.parameters())
        report["stages"][stage.name] = {
            "parameters": size, "steps": stage.steps, "seconds": round(stage.elapsed, 1), "done": stage.done,
            "restarts": stage.restarts, "record": stage.record,
        }  # fmt: skip
        out.mkdir(parents=True, exist_ok=True)
        (out / REPORT).write_text(json.dumps(report, indent=1), encoding="utf-8")
        return stage.done

    tae, stage = train_tae(clips, recipe, options("tae"))
    export_codec(tae, files.codec, recipe)
    if not note(stage, tae) or ends_soon() or {"vit", "dit"} <= set(without):
        return report
    _reset(device)
    with torch.no_grad():
        encoded = [encode(tae, clips, i, recipe) for i in range(len(clips))]
    if "vit" not in without:
        vit, stage = train_vit(clips, [photos for photos, _ in encoded], tae, recipe, options("vit"))
        _export_vit(vit, vit_path(files), recipe)
        if not note(stage, vit) or ends_soon():
            return report
        _reset(device)
    if "dit" in without:
        return report
    model, stage = train_dit(
        clips, Latents.gather(encoded), tae, recipe, shares or (FURTHER if begin else Shares()), options("dit")
    )
    export_dit(model, files.model, recipe)
    note(stage, model)
    return report


def _export_vit(vit: CausalViT, path: Path, recipe: Recipe) -> None:
    export_codec(vit, path, recipe, **vit.config.metadata())


def _data_facts(clips: Clips) -> dict[str, Any]:
    return {
        "held_out_seeds": [clips.seeds[i] for i in range(len(clips)) if clips.held[i]],
        "training_seeds": [clips.seeds[i] for i in clips.training()], "first_training_seed": FIRST_SEED,
        "frames": len(clips.photos), "sound": "zeros, weight 0.02",
    }  # fmt: skip


def _reset(device: torch.device) -> None:
    """Forget compiled code and cached memory of the stage before."""
    if device.type == "cuda":
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True, help="clips and checkpoints; keep it between calls")
    parser.add_argument("--out", type=Path, required=True, help="weights and report")
    parser.add_argument("--seconds", type=float, default=560, help="wall-clock limit of this call")
    for name, default in STAGES.items():
        parser.add_argument(
            f"--{name}", type=float, default=default, help=f"seconds of the {name} stage, all calls together"
        )
    parser.add_argument("--workers", type=int, default=4, help="drawing processes of the data stage, dealt to all GPUs")
    parser.add_argument(
        "--without",
        nargs="*",
        choices=("vit", "dit"),
        default=(),
        help="stages left to another process on the same WORK",
    )
    parser.add_argument(
        "--begin", type=Path, metavar="FOLDER", help="start from finished weights, such as the bundled ones"
    )
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        torch._dynamo.config.recompile_limit = 64
    train(
        arguments.work, arguments.out, Recipe(), device, seconds=arguments.seconds,
        budgets={name: getattr(arguments, name) for name in STAGES}, workers=arguments.workers,
        without=arguments.without, begin=arguments.begin,
    )  # fmt: skip
    if device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)


if __name__ == "__main__":
    main()
