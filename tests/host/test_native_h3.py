"""Beside ComfyUI's own MiniMax-H3 nodes: their CONDITIONING and CLIP drive the sampler, and latents go both ways.

Needs a ComfyUI with native H3 (0.33 or newer): COMFYUI_PATH and, where it has an interpreter of its own,
COMFYUI_PYTHON. The files are random and small, see tiny_native_pack; loaders, nodes and networks are ComfyUI's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fetch_comfyui
import pytest
import torch
from bench import SAMPLER, Bench, add, frames_of, key_of, write_picture
from safetensors.torch import load_file
from streamrender_h3.nodes.codec import frames_before
from streamrender_h3.nodes.look import encode_text, load_picture
from streamrender_h3.nodes.look.presentation import present
from streamrender_h3.workflows import run as graphs

SIZE = 128
WORDS = "A silver car on a wet road at dusk."
SHORT = {"width": SIZE, "height": SIZE, "length": 22}
TINY_QWEN = {  # the sizes of tiny_native_pack as transformers names them
    "model_type": "qwen3_vl",
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "text_config": {
        "model_type": "qwen3_vl_text",
        "vocab_size": 151936,
        "hidden_size": 96,
        "intermediate_size": 64,
        "num_hidden_layers": 50,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000000,
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
    },
    "vision_config": {
        "model_type": "qwen3_vl",
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 2304,
        "out_hidden_size": 96,
        "deepstack_visual_indexes": [0, 1, 2],
    },
}


class Native:
    """Graphs with ComfyUI's H3 nodes, on one server with tiny H3 files."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.output = bench, bench.server.base / "output"
        self.rendered: dict[str, dict[str, torch.Tensor]] = {}

    def prompt(self) -> dict[str, Any]:
        """The short render without a text encoder folder."""
        prompt = self.bench.prompt(7)
        self.bench.inputs_of(prompt, "SRH3_Look")["text_encoder"] = "none"
        return prompt

    def clip(self, prompt: dict[str, Any]) -> list[Any]:
        return [add(prompt, "CLIPLoader", clip_name="tiny_h3_text.safetensors", type="minimax"), 0]

    def vae(self, prompt: dict[str, Any], kind: str = "video") -> list[Any]:
        return [add(prompt, "VAELoader", vae_name=f"tiny_h3_{kind}_vae.safetensors"), 0]

    def references(self, prompt: dict[str, Any], words: str, /, **references: Any) -> list[Any]:
        """CONDITIONING of MiniMaxH3ReferenceToVideo."""
        node = add(
            prompt,
            "MiniMaxH3ReferenceToVideo",
            clip=self.clip(prompt),
            vae=self.vae(prompt),
            audio_vae=self.vae(prompt, "audio"),
            prompt=words,
            ref_image_size="match",
            **SHORT,
            **{name.replace("__", "."): value for name, value in references.items()},
        )
        return [node, 0]

    def with_picture(self, prompt: dict[str, Any], words: str) -> list[Any]:
        return self.references(prompt, words, ref_images__ref_image_0=picture(prompt))

    def look(self, prompt: dict[str, Any], /, **inputs: Any) -> None:
        self.bench.inputs_of(prompt, "SRH3_Look").update(inputs)

    def latents(self, name: str, source: str, words: str) -> dict[str, torch.Tensor]:
        """The sampler's latents with its text from `source`, "clip" or "positive"; once per `name`."""
        if name not in self.rendered:
            prompt = self.prompt()
            given = self.clip(prompt) if source == "clip" else self.with_picture(prompt, words)
            self.look(prompt, **{source: given, "prompt": words if source == "clip" else "not this prompt"})
            add(prompt, "Test_WriteLatent", samples=[key_of(prompt, SAMPLER), 1], name=f"{name}.safetensors")
            self.bench.render(prompt)
            self.rendered[name] = load_file(self.output / f"{name}.safetensors")
        return self.rendered[name]

    def refusal(self, prompt: dict[str, Any], positive: list[Any]) -> str:
        """What the Look says to this CONDITIONING."""
        self.look(prompt, positive=positive)
        with pytest.raises(graphs.WorkflowError) as failure:
            self.bench.run(prompt).raise_for_failure()
        return str(failure.value)


def picture(prompt: dict[str, Any]) -> list[Any]:
    return [key_of(prompt, "LoadImage"), 0]


@pytest.fixture(scope="module")
def native(comfyui, comfy_server_factory, shipped):
    if not (comfyui / "comfy_extras" / "nodes_minimax_h3.py").is_file():
        version = fetch_comfyui.comfyui_version(comfyui)
        pytest.skip(f"ComfyUI {version} has no MiniMax-H3 nodes; set COMFYUI_PATH to 0.33 or newer")
    here = Path(__file__).resolve().parent
    packs = {"srh3_test_probe": here / "probe_pack", "srh3_tiny_native": here / "tiny_native_pack"}
    server = comfy_server_factory(packs=packs)
    return Native(Bench.prepare(server, server.get("/object_info"), shipped))


def test_native_conditioning_has_the_rows_and_tags_of_our_own_presentation(native, comfyui):
    from transformers import Qwen2Tokenizer

    prompt = native.prompt()
    wanted = {"name": "native.safetensors", "conditioning": native.with_picture(prompt, WORDS)}
    key = add(prompt, "Test_WriteNative", **wanted)
    native.bench.run(only(prompt, key)).raise_for_failure()
    found = load_file(native.output / "native.safetensors")
    tokenizer = Qwen2Tokenizer.from_pretrained(comfyui / "comfy" / "text_encoders" / "qwen25_tokenizer")
    tokens = (SIZE // 32) ** 2
    ours = present(lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], WORDS, tokens)
    assert found["text"].shape == (1, len(ours.ids), 96) and found["text"].dtype == torch.float32
    assert torch.equal(found["tags"], ours.tags)
    assert found["ref_0_image"].shape == (1, 24, 1, SIZE // 16, SIZE // 16)
    assert found["text"].isfinite().all() and found["text"].std() > 0.1


def test_our_text_encoder_gives_the_states_of_the_native_one(native, comfyui, tmp_path):
    """The same weights, words and picture through ComfyUI's CLIP and through the pack's own Qwen3-VL route."""
    size = {"width": 320, "height": 256, "length": 22}
    folders = native.bench.server.base
    file = write_picture(folders / "input" / "short" / "larger.png", (256, 320))
    prompt = native.prompt()
    native.bench.inputs_of(prompt, "LoadImage")["image"] = "short/larger.png"
    positive = native.with_picture(prompt, WORDS)
    prompt[positive[0]]["inputs"].update(size)
    key = add(prompt, "Test_WriteNative", name="states.safetensors", conditioning=positive)
    native.bench.run(only(prompt, key)).raise_for_failure()
    found = load_file(native.output / "states.safetensors")

    folder = tmp_path / "qwen"
    shutil.copytree(comfyui / "comfy" / "text_encoders" / "qwen25_tokenizer", folder)
    shutil.copyfile(folders / "models" / "text_encoders" / "tiny_h3_text.safetensors", folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TINY_QWEN))
    ours = encode_text(folder, WORDS, load_picture(file), "cpu", torch.float32)
    assert torch.equal(found["tags"], ours.tags) and ours.media_rows == int((found["tags"] == 0).nonzero().max()) + 1
    error = (found["text"][0] - ours.text.float()).abs().max() / ours.text.abs().max()
    assert error < 5e-4  # other words of the same length: 0.27


def test_native_conditioning_with_only_the_picture_drives_the_sampler(native):
    first = native.latents("first", "positive", WORDS)
    other = native.latents("other", "positive", "A black train in a dry field at noon.")  # as many tokens
    assert first["video"].shape[1] == 24 and first["video"].isfinite().all()
    assert first["video"].shape == other["video"].shape
    assert (first["video"] - other["video"]).abs().max() > 1e-3


def test_the_native_clip_gives_the_same_video_without_its_vaes(native):
    given, made = native.latents("first", "positive", WORDS), native.latents("clip", "clip", WORDS)
    assert all(torch.equal(given[name], made[name]) for name in ("video", "audio"))


def test_our_latent_decodes_in_the_native_nodes(native):
    latent = native.latents("first", "positive", WORDS)
    prompt = native.prompt()
    read = [add(prompt, "Test_ReadLatent", name="first.safetensors"), 0]
    image = [add(prompt, "VAEDecode", samples=read, vae=native.vae(prompt)), 0]
    audio = [add(prompt, "VAEDecodeAudio", samples=read, vae=native.vae(prompt, "audio")), 0]
    key = add(prompt, "Test_WriteNative", name="decoded.safetensors", image=image, audio=audio)
    native.bench.run(only(prompt, key)).raise_for_failure()
    found = load_file(native.output / "decoded.safetensors")
    count = latent["video"].shape[2]
    assert count % 5 == 2
    frames = frames_before(count)
    assert found["image"].shape == (frames, SIZE, SIZE, 3) and found["image"].isfinite().all()
    heard = latent["audio"].shape[3]
    assert heard == round(frames / 24 * 40)
    assert found["audio"].shape == (1, 2, 800 * heard) and found["rate"] == 32000


def test_the_samplers_output_goes_straight_into_the_native_decoder(native):
    """As people wire it, with nothing written in between: VAEDecode, CreateVideo with the sound, SaveVideo."""
    prompt = native.prompt()
    native.look(prompt, positive=native.with_picture(prompt, WORDS), prompt="not this prompt")
    latent = [key_of(prompt, SAMPLER), 1]
    images = [add(prompt, "VAEDecode", samples=latent, vae=native.vae(prompt)), 0]
    sound = [add(prompt, "VAEDecodeAudio", samples=latent, vae=native.vae(prompt, "audio")), 0]
    video = [add(prompt, "CreateVideo", images=images, audio=sound, fps=24.0), 0]
    key = add(prompt, "SaveVideo", video=video, filename_prefix="video/native", format="auto", codec="auto")
    result = native.bench.run(only(prompt, key)).raise_for_failure()
    (file,) = (entry for entry in result.files() if entry["filename"].startswith("native"))
    latents = native.latents("first", "positive", WORDS)["video"].shape[2]
    found = frames_of(native.output / file["subfolder"] / file["filename"])
    assert found == (frames_before(latents), 24.0, (SIZE, SIZE))


def test_a_native_latent_decodes_in_ours(native):
    prompt = native.prompt()
    latent = [add(prompt, "EmptyMiniMaxH3LatentAV", **SHORT), 0]
    decoder = [key_of(prompt, "SRH3_LoadDecoder"), 0]
    video = [add(prompt, "SRH3_DecodeLatent", latent=latent, decoder=decoder, frames=0), 0]
    key = add(prompt, "SaveVideo", video=video, filename_prefix="video/ours", format="auto", codec="auto")
    result = native.bench.run(only(prompt, key)).raise_for_failure()
    (file,) = result.files()
    found = frames_of(native.output / file["subfolder"] / file["filename"])
    assert found == (SHORT["length"], 24.0, (SIZE, SIZE))


def test_native_references_without_a_place_here_are_refused_by_name(native):
    prompt = native.prompt()
    frames = [add(prompt, "RepeatImageBatch", image=picture(prompt), amount=5), 0]
    both = native.references(prompt, WORDS, ref_images__ref_image_0=picture(prompt), ref_videos__ref_video_0=frames)
    assert "not to ref_videos" in native.refusal(prompt, both)

    prompt = native.prompt()
    two = native.references(
        prompt, WORDS, ref_images__ref_image_0=picture(prompt), ref_images__ref_image_1=picture(prompt)
    )
    assert "2 reference pictures" in native.refusal(prompt, two)

    prompt = native.prompt()
    inputs = {"clip": native.clip(prompt), "vae": native.vae(prompt), "prompt": WORDS, **SHORT}
    keyframes = [add(prompt, "MiniMaxH3ImageToVideo", first_frame=picture(prompt), **inputs), 0]
    assert "carries keyframes" in native.refusal(prompt, keyframes)


def only(prompt: dict[str, Any], key: str) -> dict[str, Any]:
    """The part of a graph that `key` needs."""
    kept: dict[str, Any] = {}

    def take(name: str) -> None:
        if name not in kept:
            kept[name] = prompt[name]
            for value in prompt[name]["inputs"].values():
                if isinstance(value, list):
                    take(value[0])

    take(key)
    return kept
