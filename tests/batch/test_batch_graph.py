"""Where a graph takes clip, look, seed and name, and what makes two jobs the same."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from streamrender_h3.nodes.batch import BatchError, ClipSpec, Item, LookSpec
from streamrender_h3.nodes.batch.graph import (
    CLIP_NODE,
    JOB,
    LOOK_NODE,
    PICTURE,
    SAMPLER_NODE,
    Sources,
    find_places,
    make_job,
)

GRAPH = {
    "1": {"class_type": "LoadVideo", "inputs": {"file": "old.mp4"}},
    "2": {"class_type": CLIP_NODE, "inputs": {"video": ["1", 0], "path": "", "palette": "racing"}},
    "3": {"class_type": LOOK_NODE, "inputs": {"picture": ["9", 0], "prompt": "old"}},
    "4": {
        "class_type": SAMPLER_NODE,
        "inputs": {"seed": 7, "name": "", "save": False, "clip": ["2", 0], "look": ["3", 0]},
    },
    "6": {"class_type": "SRH3_DecodeLatent", "inputs": {"latent": ["4", 1]}},
    "5": {"class_type": "SaveVideo", "inputs": {"video": ["6", 0], "filename_prefix": "a/again"}},
    "8": {"class_type": "SaveVideo", "inputs": {"video": ["4", 0], "filename_prefix": "a/render"}},
}
ITEM = Item(ClipSpec("bend", Path("/clips/bend.mp4")), LookSpec("noon"), 3)
SOURCES = Sources("/clips/bend.mp4", "hash", "high sun", "streamrender_h3/queue/abc.png")


def job(graph=GRAPH, item=ITEM, sources=SOURCES, folder="queue", known=lambda kind, name: True):
    return make_job(graph, find_places(graph, {}), item, sources, folder, known)


def test_every_place_gets_its_value_and_the_graph_given_stays_as_it_is():
    before = copy.deepcopy(GRAPH)
    made = job()
    inputs = {key: node["inputs"] for key, node in made.prompt.items()}
    assert inputs["2"] == {"path": "/clips/bend.mp4", "palette": "racing"}
    assert inputs["3"] == {"picture": [PICTURE, 0], "prompt": "high sun"}
    assert made.prompt[PICTURE]["class_type"] == "LoadImage" and inputs[PICTURE]["image"] == SOURCES.picture
    assert inputs["4"] == {**GRAPH["4"]["inputs"], "seed": 3, "name": "queue/bend_noon_3"}
    assert inputs["8"]["filename_prefix"] == "streamrender_h3/queue/bend_noon_3"
    assert inputs["5"]["filename_prefix"] == "streamrender_h3/queue/bend_noon_3_again"
    assert made.stems == ("bend_noon_3", "bend_noon_3_again") and before == GRAPH
    assert made.extra["extra_pnginfo"][JOB] == {"key": made.key, "clip": "bend", "look": "noon", "seed": 3}


def test_without_save_video_the_sampler_saves():
    graph = {key: node for key, node in GRAPH.items() if node["class_type"] != "SaveVideo"}
    made = job(graph)
    assert made.prompt["4"]["inputs"]["save"] is True and made.stems == ("bend_noon_3",)
    again = job({**graph, "5": GRAPH["5"]})
    assert again.stems == ("bend_noon_3", "bend_noon_3_again") and again.sampler_saves
    with pytest.raises(BatchError, match="saves no video; put a Save Video node behind"):
        job(graph, known=lambda kind, name: False)


def test_the_key_is_that_of_the_content_and_not_of_names():
    key = job().key
    other = Sources("/elsewhere/b.mp4", "hash", "high sun", SOURCES.picture)
    assert job(folder="other").key == key and job(sources=other).key == key
    assert job(item=Item(ClipSpec("x", Path("x")), LookSpec("dusk"), 3)).key == key
    beside = {**GRAPH, "20": {"class_type": "PreviewImage", "inputs": {"images": ["2", 1]}}}
    assert job(beside).key == key  # what only looks on changes nothing
    changed = copy.deepcopy(GRAPH)
    changed["2"]["inputs"]["palette"] = "cityscapes"
    made = [
        job(changed).key,
        job(item=Item(ITEM.clip, ITEM.look, 4)).key,
        job(sources=Sources("/clips/bend.mp4", "another", "high sun", SOURCES.picture)).key,
        job(sources=Sources("/clips/bend.mp4", "hash", "low sun", SOURCES.picture)).key,
        job(sources=Sources("/clips/bend.mp4", "hash", "high sun", "streamrender_h3/queue/def.png")).key,
    ]
    assert len({key, *made}) == 6


def test_words_from_conditioning_are_not_overruled_in_silence():
    graph = copy.deepcopy(GRAPH)
    graph["3"]["inputs"]["positive"] = ["11", 0]
    with pytest.raises(BatchError, match="takes its words from 'positive'"):
        job(graph)
    job(graph, sources=Sources("/clips/bend.mp4", "hash", None, SOURCES.picture))


@pytest.mark.parametrize(
    ("change", "chosen", "words"),
    [
        ({"3": None}, {}, r"no H3 Look node \(SRH3_Look\); add one in the editor"),
        ({"7": GRAPH["3"]}, {}, r"2 H3 Look nodes: 3 \(H3 Look\), 7 \(H3 Look\); say which with --look-node ID"),
        ({}, {SAMPLER_NODE: "3"}, "--sampler-node is 3, which is no H3 Stream Sampler node of the workflow: .* are 4"),
        ({"7": {"class_type": "SRH3_ClipList", "inputs": {}}}, {}, "H3 Clip List .* makes a batch itself; press Run"),
    ],
)
def test_a_graph_with_none_or_several_says_so(change, chosen, words):
    graph = {key: node for key, node in {**GRAPH, **change}.items() if node}
    with pytest.raises(BatchError, match=words):
        find_places(graph, chosen)
    assert find_places({**GRAPH, "7": GRAPH["3"]}, {LOOK_NODE: "7"}).look == "7"
