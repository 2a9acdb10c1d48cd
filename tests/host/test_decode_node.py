"""H3 Decode Latent in a real ComfyUI: every kind of latent, every decoder, exact frames, cancel, constant memory."""

from __future__ import annotations

import json

import psutil
import pytest
import torch
from bench import SAMPLER, Bench, add, frames_of, key_of
from safetensors.torch import load_file, save_file
from streamrender_h3.nodes.codec import frames_before, load_decoder
from streamrender_h3.workflows import run as graphs

LATENTS, GRID = 15, (4, 6)
VIT, TAE = "example/vit_decoder_example.safetensors", "example/taeh3_example.safetensors"


@pytest.fixture(scope="module")
def stored(comfy):
    """Three latents of 15 frames in the server's output folder: a pair, a video alone, and one with a hole."""
    torch.manual_seed(0)
    video = torch.randn(1, 24, LATENTS, *GRID)
    holed = video.clone()
    holed[0, 3, 9] = float("nan")
    folder = comfy.base / "output"
    save_file({"video": video, "audio": torch.randn(1, 32, 2, 90)}, folder / "decode_pair.safetensors")
    save_file({"video": video}, folder / "decode_video.safetensors")
    save_file({"video": holed}, folder / "decode_holed.safetensors")
    return video[0]


def prompt_for(name, decoder=VIT, mode="pair", **options):
    prompt = {}
    read = add(prompt, "Test_ReadLatent", name=name)
    chosen = {"mode": mode} if mode else {}  # a graph from before this widget has none
    load = add(prompt, "SRH3_LoadDecoder", decoder_name=decoder, dtype="fp32", **chosen)
    decode = add(prompt, "SRH3_DecodeLatent", latent=[read, 0], decoder=[load, 0], frames=0)
    prompt[decode]["inputs"].update(options)
    add(prompt, "SaveVideo", video=[decode, 0], filename_prefix="video/decoded", format="auto", codec="auto")
    return prompt


def decoded_file(comfy, result):
    (video,) = (entry for entry in result.raise_for_failure().files() if entry["filename"].endswith(".mp4"))
    return comfy.base / "output" / video["subfolder"] / video["filename"]


def pictures_of(video):
    import av

    with av.open(str(video)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return torch.stack([torch.from_numpy(frame) for frame in frames]).permute(0, 3, 1, 2).float() / 255


@pytest.mark.parametrize(
    ("name", "decoder", "mode", "frames"),
    [
        ("decode_pair", VIT, "pair", 0),
        ("decode_video", VIT, "early_single", 0),
        ("decode_video", TAE, None, 20),
    ],
)
def test_the_video_holds_the_decoders_frames(bench, comfy, repository, stored, name, decoder, mode, frames):
    result = bench.run(prompt_for(f"{name}.safetensors", decoder, mode, frames=frames))
    video = decoded_file(comfy, result)
    expected = frames or frames_before(LATENTS)
    assert frames_of(video) == (expected, 24.0, (16 * GRID[1], 16 * GRID[0]))
    file = repository / "workflows" / "assets" / "vae_approx" / decoder.removeprefix("example/")
    stream = load_decoder(file, mode=mode or "pair").stream()
    exact = torch.cat((stream.push(stored), stream.flush()))[:expected]
    error = (pictures_of(video) - exact).square().mean()
    assert -10 * error.log10() > 20  # noise through H.264 with halved colours


def test_the_example_graph_decodes_the_samplers_latent_again(comfy, object_info, repository):
    """workflows/decode_latent.json with a short clip: the sampler's TAE video and the ViT's, from one latent."""
    workflow = json.loads((repository / "workflows" / "decode_latent.json").read_text(encoding="utf-8"))
    bench = Bench.prepare(comfy, object_info, workflow)
    assert bench.inputs_of(bench.base, "SRH3_DecodeLatent")["latent"] == [key_of(bench.base, SAMPLER), 1]
    prompt = bench.prompt(20260830)
    add(prompt, "Test_WriteLatent", samples=[key_of(prompt, SAMPLER), 1], name="sampled.safetensors")
    files = {entry["filename"]: entry for entry in bench.run(prompt).raise_for_failure().files()}
    (video,) = (entry for name, entry in files.items() if name.startswith("decoded_again"))
    assert any(name.startswith("rendered") for name in files)
    latents = load_file(comfy.base / "output" / "sampled.safetensors")["video"].shape[2]
    count, _, size = frames_of(comfy.base / "output" / video["subfolder"] / video["filename"])
    assert (count, size) == (frames_before(latents), (128, 128))


def test_the_servers_memory_does_not_grow_with_the_length(bench, comfy):
    """Keeping the frames of the second half of this latent would take 120 MB in float32, 30 MB in uint8."""
    latents, server, used = 240, psutil.Process(comfy.process.pid), []
    save_file({"video": torch.randn(1, 24, latents, 8, 12)}, comfy.base / "output" / "decode_long.safetensors")

    def note(event):
        if event.kind == "progress":
            used.append((event.data["value"], server.memory_info().rss))

    prompt = prompt_for("decode_long.safetensors", mode="early_pair")
    decoded = decoded_file(comfy, bench.run(prompt, on_event=note))
    assert frames_of(decoded)[0] == frames_before(latents)
    early, late = ([rss for done, rss in used if (done > latents // 2) == second] for second in (False, True))
    assert len(early) > 5 and len(late) > 5
    assert max(late) - max(early) < 15e6


def test_progress_goes_pair_by_pair_with_a_picture_each(bench, stored):
    prompt = prompt_for("decode_pair.safetensors", frames=50)
    result = bench.run(prompt)
    result.raise_for_failure()
    key = key_of(prompt, "SRH3_DecodeLatent")
    values = [e.data["value"] for e in result.events if e.kind == "progress" and e.data["node"] == key]
    assert sorted(set(values)) == [2, 4, 6, 8, 10, 12, 14, 15][-len(set(values)) :]
    assert {picture.node for picture in result.previews} == {key}


def test_cancel_keeps_the_frames_done_and_nothing_else(bench, comfy, stored):
    def files(folder):
        return {path for path in (comfy.base / folder).rglob("*.*") if path.is_file()}

    before, kept = files("temp"), files("output/streamrender_h3")
    prompt = prompt_for("decode_video.safetensors", frames=50)
    key = key_of(prompt, "SRH3_DecodeLatent")

    def cancel(event):
        if event.kind == "progress" and event.data["node"] == key and event.data["value"] == 4:
            comfy.post("/interrupt")

    result = bench.run(prompt, on_event=cancel)
    assert result.end.kind == "execution_interrupted"
    assert files("temp") <= before
    (partial,) = files("output/streamrender_h3") - kept
    assert 0 < frames_of(partial)[0] < 50


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("decode_pair.safetensors", {"frames": 52}, "52 frames are asked for and the latent holds 51"),
        ("decode_holed.safetensors", {}, "Latent 9 of the stream, in chunk 4, holds NaN"),
        ("decode_pair.safetensors", {"mode": "telepathy"}, "telepathy"),
    ],
)
def test_what_is_wrong_is_named(bench, stored, name, options, words):
    with pytest.raises(graphs.WorkflowError, match=words):
        bench.run(prompt_for(name, **options)).raise_for_failure()
