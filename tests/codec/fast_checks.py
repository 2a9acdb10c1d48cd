"""The fast pass of the ViT decoder against the plain modules, in every mode, with fused kernels: a script, for Triton's
interpreter (TRITON_INTERPRET=1, CPU) and for a GPU, where CUDA graphs join in. Prints one JSON line per check.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from streamrender_h3.kernels.dispatch import choose
from streamrender_h3.nodes.codec import CausalViT, ViTConfig, ViTDecoder, vit_stream
from streamrender_h3.nodes.codec.vit_form import ALL_KERNELS, Form

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
GOLDEN = Path(__file__).parents[1] / "golden" / "vit_tiny.safetensors"
TINY = ViTConfig(layers=4, hidden=32, heads=2, ffn=128, window=4, patch=4)
# The interpreter takes seconds per pair; a GPU does several rounds of the ring, so that graphs are replayed.
LATENTS, GOLDEN_PAIRS = (3, 1) if INTERPRETED else (60, 6)
LONG = not INTERPRETED or os.environ.get("SRH3_LONG") == "1"
LIMIT = 2e-5


def network(golden: dict[str, torch.Tensor]) -> CausalViT:
    made = CausalViT(TINY)
    made.load_state_dict({name[2:]: tensor for name, tensor in golden.items() if name.startswith("w.")})
    return made.requires_grad_(False)


def decode(decoder: ViTDecoder, z: torch.Tensor, clock: int) -> torch.Tensor:
    stream = decoder.stream(clock)
    frames = [stream.push(latent).cpu() for latent in z.split(1, dim=1)]
    if stream._fast is not None:
        decode.graphs = max(decode.graphs, stream._fast.graphs)  # type: ignore[attr-defined]
    return torch.cat([*frames, stream.flush().cpu()])


def main() -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    vit_stream.pixels_to_rgb = lambda pixels: pixels  # a clamp would hide differences
    golden, bad = load_file(GOLDEN), 0
    z = torch.randn(24, LATENTS, 5, 7, generator=torch.Generator().manual_seed(0))
    names = ["triton"] if INTERPRETED else ["triton", "sdpa", "auto"]
    for mode in ("pair", "early_single", "early_pair") if LONG else ():
        expected = decode(ViTDecoder(network(golden), mode=mode), z, 100)
        for name in names:
            graph = not INTERPRETED and name != "sdpa"
            attention = choose(DEVICE, torch.float32, TINY.head_dim, name)
            form = Form(attention, fast=True, kernels=ALL_KERNELS, graph=graph)
            decode.graphs = 0  # type: ignore[attr-defined]
            frames = decode(ViTDecoder(network(golden).to(DEVICE), mode=mode, form=form), z, 100)
            error = float((frames - expected).abs().max())
            graphs = decode.graphs  # type: ignore[attr-defined]
            passed = frames.shape == expected.shape and error <= LIMIT and (graphs > 0) == graph
            bad += not passed
            line = {"mode": mode, "attention": str(attention), "graphs": graphs, "error": error, "passed": passed}
            print(json.dumps(line), flush=True)
    pairs = ViTDecoder(
        network(golden).to(DEVICE),
        form=Form(choose(DEVICE, torch.float32, TINY.head_dim, "triton"), fast=True, kernels=ALL_KERNELS),
    ).stream()
    made = pairs.push(golden["z"][0].transpose(0, 1)[:, : 2 * GOLDEN_PAIRS]).cpu()
    expected = torch.cat([golden[f"pair.{pair}.px"][0].transpose(0, 1) for pair in range(GOLDEN_PAIRS)])
    error = float((made - expected).abs().max())
    bad += error > LIMIT
    print(json.dumps({"mode": "golden pairs", "error": error, "passed": error <= LIMIT}), flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
