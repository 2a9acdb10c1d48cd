"""The graphs of whole clips in a real ComfyUI: as they open, cut down to a few frames, through to a video that plays."""

from __future__ import annotations

import json

import pytest
from bench import Bench, add, frames_of, key_of
from streamrender_h3.workflows import run as graphs

SAMPLER = "SRH3_ClipSampler"


@pytest.fixture(scope="module")
def graph(repository, object_info, bench):
    """A shipped graph in API format, its example inputs replaced by short ones where it has such."""

    def read(name, **changes):
        workflow = json.loads((repository / "workflows" / f"{name}.json").read_text(encoding="utf-8"))
        prompt = graphs.to_api(workflow, object_info)
        kinds = {node["class_type"] for node in prompt.values()}
        if "LoadVideo" in kinds:
            bench.inputs_of(prompt, "LoadVideo")["file"] = "short/clip.mp4"
            bench.inputs_of(prompt, "LoadImage")["image"] = "short/picture.png"
            bench.inputs_of(prompt, "SRH3_SemanticPaletteEncode").update(reference_width=64, reference_height=64)
        size = "SRH3_Look" if "SRH3_Look" in kinds else "SRH3_Text"
        bench.inputs_of(prompt, size).update(width=128, height=128)
        bench.inputs_of(prompt, SAMPLER).update(changes)
        add(prompt, "PreviewAny", source=[key_of(prompt, SAMPLER), 2])
        return prompt

    return read


def test_text_becomes_a_video_of_the_length_asked_for(graph, bench):
    render = bench.render(graph("fasth3_text_to_video", frames=40))
    assert frames_of(render.video) == (40, 24.0, (128, 128))
    assert render.metrics["complete"] and render.metrics["recipe"] == "FastH3 V2 (8 steps)"
    assert render.metrics["recipe_reason"] == "asked for"


def test_a_semantic_clip_becomes_a_video_of_its_length(graph, bench):
    render = bench.render(graph("base_ref2va"))
    assert frames_of(render.video) == (Bench.FRAMES, 24.0, (128, 128))
    assert render.metrics["segments"] == [{"frames": [0, 50], "made": 56}]


def test_a_semantic_clip_in_segments_is_one_video(graph, bench):
    prompt = graph("base_ref2va", segment_frames=22)
    render = bench.render(prompt)
    assert frames_of(render.video)[0] == Bench.FRAMES and len(render.metrics["segments"]) == 3
    bars = [e.data for e in render.result.events if e.kind == "progress" and e.data["node"] == key_of(prompt, SAMPLER)]
    steps, chunks = 3 * 4, 3 * 2
    assert max(bar["value"] for bar in bars if bar["max"] == steps + chunks) == steps + chunks
    pictures = [p for p in render.result.previews if p.node == key_of(prompt, SAMPLER)]
    assert len(pictures) == sum(chunk["frames"] > 0 for chunk in render.metrics["chunks"])


def test_the_latent_of_a_clip_goes_through_the_packs_decoder(graph, bench, comfy):
    prompt = graph("fasth3_text_to_video", frames=22)
    add(
        prompt,
        "SRH3_DecodeLatent",
        latent=[key_of(prompt, SAMPLER), 1],
        decoder=[key_of(prompt, "SRH3_LoadDecoder"), 0],
        frames=22,
    )
    add(prompt, "SaveVideo", video=[f"added{len(prompt) - 1}", 0], filename_prefix="again", format="auto", codec="auto")
    result = bench.run(prompt).raise_for_failure()
    videos = [entry for entry in result.files() if entry["filename"].endswith(".mp4")]
    assert len(videos) == 2
    for entry in videos:
        assert frames_of(comfy.base / "output" / entry["subfolder"] / entry["filename"])[0] == 22


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("fasth3_text_to_video", {"recipe": "telepathy"}, "telepathy"),
        ("fasth3_text_to_video", {"attention_mode": "vsa", "vsa_min_rows": 0}, "was not trained for it"),
        ("base_ref2va", {"guidance": "telepathy"}, "guidance"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it(graph, bench, name, changes, words):
    with pytest.raises(graphs.WorkflowError, match=words):
        bench.run(graph(name, **changes)).raise_for_failure()


def test_a_clip_that_is_not_connected_is_asked_for(graph, bench):
    prompt = graph("base_ref2va")
    del bench.inputs_of(prompt, SAMPLER)["clip"]
    with pytest.raises(graphs.WorkflowError, match="no semantic clip is connected"):
        bench.run(prompt).raise_for_failure()
