"""The graph, executed in a real ComfyUI: exact frames, live progress, the engine's numbers, a cancel that leaves nothing."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from bench import SAMPLER, Bench, add, frames_of, key_of
from einops import rearrange
from safetensors.torch import load_file
from streamrender_h3.nodes.schedule import RELEASE
from streamrender_h3.workflows import run as graphs

SEED = 20260830
CHUNKS = RELEASE.chunks_for(Bench.FRAMES)
STEPS = 2


def sampler_progress(result, prompt):
    """(value, max) of the sampler, in the order in which they came."""
    key = key_of(prompt, SAMPLER)
    return [(e.data["value"], e.data["max"]) for e in result.events if e.kind == "progress" and e.data["node"] == key]


def started(result):
    return [e.data["node"] for e in result.events if e.kind == "executing" and e.data["node"] is not None]


def cancel_at(comfy, value):
    """Presses cancel when the progress stands at `value`."""

    def listen(event):
        if event.kind == "progress" and event.data["value"] == value:
            comfy.post("/interrupt")

    return listen


def temporary_files(comfy):
    return set((comfy.base / "temp").rglob("*.*"))


@pytest.fixture(scope="session")
def first(bench):
    """One undisturbed short render, shared by the tests that only look."""
    prompt = bench.prompt(SEED)
    return prompt, bench.render(prompt)


def test_the_video_has_the_frames_rate_and_size_asked_for(first):
    _, render = first
    assert frames_of(render.video) == (Bench.FRAMES, 24.0, (128, 128))
    assert render.metrics["frames"] == Bench.FRAMES
    assert render.metrics["prefix_prefills"] == STEPS


def test_progress_counts_every_step_of_every_chunk(first):
    prompt, render = first
    bars = sampler_progress(render.result, prompt)
    total = CHUNKS * STEPS
    assert len({top for _, top in bars} - {total}) <= 1  # the lookup tables, once, before the first step
    values = [(value, top) for value, top in bars if top == total]
    assert bars[-len(values) :] == values
    assert sorted({value for value, _ in values}) == list(range(1, total + 1))
    assert [value for value, _ in values] == sorted(value for value, _ in values)


def test_a_preview_picture_comes_with_every_chunk(first):
    from io import BytesIO

    from PIL import Image

    prompt, render = first
    pictures = [p for p in render.result.previews if p.node == key_of(prompt, SAMPLER)]
    assert len(pictures) == sum(chunk["frames"] > 0 for chunk in render.metrics["chunks"])
    assert {Image.open(BytesIO(p.image)).size for p in pictures} == {(128, 128)}


def test_previews_reach_clients_that_announce_nothing(bench):
    """Scripts usually send no feature flags; they get the plain kind of preview."""
    render = bench.render(bench.prompt(SEED + 1), feature_flags=False)
    assert len(render.result.previews) == sum(chunk["frames"] > 0 for chunk in render.metrics["chunks"])
    assert {p.mime for p in render.result.previews} == {"image/jpeg"}


def test_latents_equal_the_engine_without_comfyui(first, headless):
    _, render = first
    assert render.metrics["latents_sha256"] == headless.latents_sha256(SEED)


def test_another_seed_gives_other_latents(bench, first, headless):
    other = bench.render(bench.prompt(SEED + 2))
    assert other.metrics["latents_sha256"] != first[1].metrics["latents_sha256"]
    assert other.metrics["latents_sha256"] == headless.latents_sha256(SEED + 2)


def test_the_latent_output_is_the_engines_audio_video_pair(bench, comfy, headless):
    """Video [1, 24, T, h, w] and audio [1, 32, 2, A], equal to what `render --save-latents` wrote."""
    prompt = bench.prompt(SEED)
    add(prompt, "Test_WriteLatent", samples=[key_of(prompt, SAMPLER), 1], name="pair.safetensors")
    bench.render(prompt)
    made, expected = load_file(comfy.base / "output" / "pair.safetensors"), load_file(headless.latents(SEED))
    length = made["video"].shape[2]
    assert made["video"].shape == (1, 24, length, 8, 8)
    assert torch.equal(made["video"][0], expected["video"][:, :length])
    if "audio" in made:  # hosts without the pair class get the picture alone
        audio = rearrange(made["audio"], "1 channels sides length -> sides channels length")
        assert torch.equal(audio, expected["audio"][:, :, : audio.shape[-1]])


def test_every_example_decoder_gives_every_frame(bench, object_info):
    offered = object_info["SRH3_LoadDecoder"]["input"]["required"]["decoder_name"][1]["options"]
    for name in [name for name in offered if name.startswith("example/")]:
        prompt = bench.prompt(SEED)
        bench.inputs_of(prompt, "SRH3_LoadDecoder")["decoder_name"] = name
        assert frames_of(bench.render(prompt).video) == (Bench.FRAMES, 24.0, (128, 128)), name


def test_cancel_stops_within_a_step_and_leaves_a_playable_file(bench, comfy):
    prompt = bench.prompt(SEED + 3)
    total, before = CHUNKS * STEPS, temporary_files(comfy)
    result = bench.run(prompt, on_event=cancel_at(comfy, total // 2))
    assert result.end.kind == "execution_interrupted"
    assert result.end.data["node_type"] == SAMPLER
    assert max(value for value, _ in sampler_progress(result, prompt)) <= total // 2 + 2
    partial = sorted((comfy.base / "output" / "streamrender_h3").glob("partial_*.mp4"))[-1]
    assert 0 < frames_of(partial)[0] < Bench.FRAMES
    assert temporary_files(comfy) <= before  # those of the render before go now


def test_after_a_cancel_the_same_prompt_gives_the_undisturbed_result(bench, comfy, headless):
    prompt = bench.prompt(SEED, text_scale=1.25)  # has no effect here, but makes the prompt a new one
    result = bench.run(prompt, on_event=cancel_at(comfy, 3))
    assert result.end.kind == "execution_interrupted"
    again = bench.render(prompt)
    assert key_of(prompt, SAMPLER) in started(again.result)
    assert again.metrics["latents_sha256"] == headless.latents_sha256(SEED)
    assert frames_of(again.video)[0] == Bench.FRAMES


def test_two_prompts_in_the_queue_share_no_state(bench, comfy, headless):
    seeds = (SEED, SEED + 2)
    prompts = [bench.prompt(seed, text_scale=1.75) for seed in seeds]  # new again, and again without effect
    results: dict[int, graphs.Result] = {}
    threads = [
        threading.Thread(target=lambda n=n: results.__setitem__(n, bench.run(prompts[n], timeout=400))) for n in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, seed in enumerate(seeds):
        render = bench.finished(prompts[number], results[number])
        assert render.metrics["latents_sha256"] == headless.latents_sha256(seed)
        assert frames_of(render.video)[0] == Bench.FRAMES


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (SAMPLER, {"attention": "telepathy"}, "attention"),
        (SAMPLER, {"guidance": "telepathy"}, "guidance"),
        ("SRH3_StreamSchedule", {"preset": "telepathy"}, "preset"),
        ("SRH3_SemanticPaletteEncode", {"palette": "telepathy"}, "palette"),
        ("SRH3_LoadModel", {"model_name": "telepathy.safetensors"}, "telepathy.safetensors"),
        ("SRH3_LoadEncoder", {"encoder_name": "telepathy.safetensors"}, "telepathy.safetensors"),
        ("SRH3_LoadDecoder", {"decoder_name": "telepathy.safetensors"}, "telepathy.safetensors"),
        ("SRH3_Look", {"text_encoder": "telepathy"}, "telepathy"),
        ("SRH3_Look", {"width": 100}, "100"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it(bench, kind, change, words):
    """Old hosts let any combo value through to the node, newer ones refuse it themselves: either way it is named."""
    prompt = bench.prompt(SEED)
    bench.inputs_of(prompt, kind).update(change)
    with pytest.raises(graphs.WorkflowError, match=words):
        bench.run(prompt).raise_for_failure()


def test_the_video_file_holds_the_workflow(first, comfy, bench, shipped):
    """Dropping the MP4 on the canvas brings the graph back: SaveVideo stores it when it is sent along."""
    import av

    prompt = bench.prompt(SEED)
    result = bench.run(prompt, workflow=shipped).raise_for_failure()
    (video,) = (entry for entry in result.files() if entry["filename"].endswith(".mp4"))
    with av.open(str(comfy.base / "output" / video["subfolder"] / video["filename"])) as container:
        assert json.loads(container.metadata["workflow"]) == shipped
