"""Write a complete tiny checkpoint set from a seed, in the real file formats: H3 transformer, TAE and Qwen3-VL folder.

The numbers are random: a render with them is noise, but every file goes through the same loaders as the released ones, so
graphs and tests run anywhere. `python -m streamrender_h3.workflows.nano.weights FOLDER --seed 1`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ...nodes.codec import TAE, TAEWidths
from ...nodes.loader import EXAMPLE_KEY, write_h3
from ...nodes.model import H3, H3Config
from .qwen import write_qwen

TEXT_DIM = 96
SIZE, REFERENCE_SIZE = "448x256", "288x160"
TINY = H3Config(
    hidden=96,
    layers=3,
    refiner_layers=2,
    heads=4,
    head_dim=32,
    ffn=160,
    text_dim=TEXT_DIM,
    freq_dim=256,
    time_hidden=96,
    time_dim=48,
    rope_freqs=4,
)


@dataclass(frozen=True)
class WeightFiles:
    """Where a checkpoint set lies, in the folders ComfyUI gives these kinds of file."""

    model: Path
    codec: Path
    text_encoder: Path

    @classmethod
    def below(cls, folder: Path) -> WeightFiles:
        return cls(
            model=folder / "diffusion_models" / "h3_example.safetensors",
            codec=folder / "vae_approx" / "taeh3_example.safetensors",
            text_encoder=folder / "text_encoders" / "qwen3vl_example",
        )


def randomise(module: nn.Module, generator: torch.Generator, spread: float) -> None:
    """Norm weights near 1, everything else N(0, spread); default initialisation would hide mistakes in the layout."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if parameter.ndim == 1 and "norm" in name else spread * noise)


def write_weights(folder: str | Path, seed: int, config: H3Config = TINY) -> WeightFiles:
    """Write the set below `folder` and return its files; the same arguments give the same bytes."""
    from safetensors.torch import save_file

    files = WeightFiles.below(Path(folder))
    for path in (files.model, files.codec, files.text_encoder):
        path.parent.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)

    model = H3(config, dtype=torch.float32)
    randomise(model, generator, 0.08)
    facts = {EXAMPLE_KEY: "random weights", "size": SIZE, "reference_size": REFERENCE_SIZE}
    write_h3(files.model, model, facts)

    codec = TAE(TAEWidths(encoder=8, decoder=(16, 8, 8, 8)))
    randomise(codec, generator, 0.15)
    save_file({name: t.half() for name, t in codec.state_dict().items()}, files.codec, {"format": "pt"})

    write_qwen(files.text_encoder, seed, hidden_text=config.text_dim)
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="where to write; sub-folders are named as ComfyUI names them")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for path in vars(write_weights(args.folder, args.seed)).values():
        print(path)


if __name__ == "__main__":
    main()
