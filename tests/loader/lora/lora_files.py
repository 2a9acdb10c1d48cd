"""One set of low-rank changes, written to disk as every trainer writes them."""

import json

import torch
from safetensors.torch import save_file

CPU = {"dtype": torch.float32, "device": "cpu"}
TIMES = (0.0, 1 / 7, 0.4, 0.999)

STACKS = [*(f"blocks.{i}" for i in range(3)), *(f"token_refiner.blocks.{i}" for i in range(2))]
CORE = [f"{stack}.{module}" for stack in STACKS for module in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")]
ADALN = [*(f"blocks.{i}.adaln_proj.linear" for i in range(3)), "final_layer.adaln_proj.linear"]
TIME = ["time_embedder.proj_in", "time_embedder.proj_out"]
BOUNDARY = ["video_patch_proj", "audio_patch_proj", "condition_proj", "final_layer.video_out", "final_layer.audio_out"]

THEIRS = {
    "video_patch_proj": "proj_in",
    "audio_patch_proj": "audio_proj_in",
    "condition_proj": "context_embedder",
    "time_embedder.proj_in": "time_embedder.linear_1",
    "time_embedder.proj_out": "time_embedder.linear_2",
    "final_layer.adaln_proj.linear": "norm_out.linear",
    "final_layer.video_out": "proj_out",
    "final_layer.audio_out": "audio_proj_out",
}


def diffusers_parts(module, up):
    """A native module as diffusers' modules with their rows of `up`, by hand."""
    for ours, theirs in (("token_refiner.blocks", "token_refiner.refiner_blocks"), ("blocks", "transformer_blocks")):
        if module.startswith(ours):
            stack, _, rest = module.removeprefix(ours + ".").partition(".")
            base = f"{theirs}.{stack}."
            if rest == "attn.qkv_proj":
                rows = len(up) // 3
                return [(base + f"attn.to_{part}", up[i * rows : (i + 1) * rows]) for i, part in enumerate("qkv")]
            if rest == "mlp.fc1":
                half = len(up) // 2
                return [(base + "ff.net.0.proj", torch.cat([up[half:], up[:half]]))]
            names = {"attn.out_proj": "attn.to_out.0", "mlp.fc2": "ff.net.2", "adaln_proj.linear": "adaln_proj.linear"}
            return [(base + names[rest], up)]
    return [(THEIRS[module], up)]


def save(path, state, metadata=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path, metadata=metadata)
    return path


def grouped(up):
    """Stacked rows of 4 heads of 32 as [q0 k0 v0 q1 ..]."""
    parts = up.chunk(3)
    return torch.cat([part[32 * head : 32 * head + 32] for head in range(4) for part in parts])


def adapter(layout, folder, factors):
    """Write `factors` as `layout`; returns the file, the modules it holds, and the scale it stands for."""
    path = folder / "adapter" / "a.safetensors"
    pick = lambda modules: {m: factors[m] for m in modules}  # noqa: E731
    native = lambda chosen, a, b: {  # noqa: E731
        key: t for m, (down, up) in chosen.items() for key, t in ((a.format(m), down), (b.format(m), up))
    }
    if layout.startswith("raven"):
        infix = ".default" if "named" in layout else ""
        chosen, text = pick([*CORE, *ADALN, *TIME, *BOUNDARY]), "base_model.model.dit.{}.lora_{}" + infix + ".weight"
        return (
            save(path, native(chosen, text.replace("{}", "{}", 1).replace("_{}", "_A"), text.replace("_{}", "_B"))),
            chosen,
            1.0,
        )
    if layout == "taomate":
        chosen = pick(CORE)
        save(path.with_name("adapter_model.safetensors"), native(chosen, "{}.lora_a", "{}.lora_b"))
        path.with_name("config.json").write_text(json.dumps({"rank": 4, "alpha": 8}))
        return path.with_name("adapter_model.safetensors"), chosen, lambda module, rank: 8 / rank
    if layout == "larryvrh":
        chosen = pick([*CORE, *ADALN])
        return (
            save(path, native(chosen, "diffusion_model.{}.lora_A.weight", "diffusion_model.{}.lora_B.weight")),
            chosen,
            1.0,
        )
    if layout.startswith("lightx2v"):
        prefix = {"bare": "", "peft": "base_model.model.", "comfyui": "diffusion_model.", "diffusers": "transformer."}
        prefix, chosen, state = prefix[layout.split()[1]], pick(CORE), {}
        for module, (down, up) in chosen.items():
            for name, rows in diffusers_parts(module, up):
                state[f"{prefix}{name}.lora_A.weight"], state[f"{prefix}{name}.lora_B.weight"] = down.clone(), rows
        return save(path, state, {"alpha": "2"}), chosen, lambda module, rank: 2 / rank
    if layout == "diffsynth":
        chosen = pick(CORE)
        regrouped = {m: (down, grouped(up) if "qkv" in m else up) for m, (down, up) in chosen.items()}
        return save(path, native(regrouped, "{}.lora_A.default.weight", "{}.lora_B.default.weight")), chosen, 1.0
    if layout == "kohya":
        chosen, state = pick([*CORE, *ADALN]), {}
        for module, (down, up) in chosen.items():
            flat = "lora_unet_" + module.replace(".", "_")
            state |= {
                f"{flat}.lora_down.weight": down,
                f"{flat}.lora_up.weight": up,
                f"{flat}.alpha": torch.tensor(3.0),
            }
        return save(path, state), chosen, lambda module, rank: 3 / rank
    if layout == "comfyui, old diffusers ends":
        chosen, state = pick(CORE), {}
        for module, (down, up) in chosen.items():
            state |= {f"{module}.lora.down.weight": down, f"{module}.lora.up.weight": up}
        return save(path, state), chosen, 1.0
    assert layout == "fastvideo in memory"
    chosen, state = pick(CORE), {}
    for module, (down, up) in chosen.items():
        for name, rows in diffusers_parts(module, up):
            name = (
                name.replace("ff.net.0.proj", "ff.fc_in").replace("ff.net.2", "ff.fc_out").replace("to_out.0", "to_out")
            )
            state[f"{name}.lora_A.weight"], state[f"{name}.lora_B.weight"] = down.clone(), rows
    return save(path, state), chosen, 1.0


LAYOUTS = [
    "raven",
    "raven, named",
    "taomate",
    "larryvrh",
    "lightx2v bare",
    "lightx2v peft",
    "lightx2v comfyui",
    "lightx2v diffusers",
    "diffsynth",
    "kohya",
    "comfyui, old diffusers ends",
    "fastvideo in memory",
]
