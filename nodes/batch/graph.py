"""Where a workflow takes its clip, look, seed and output name: found by class of node, and set for one item of a batch."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from .errors import BatchError
from .items import Item

CLIP_NODE, LOOK_NODE, SAMPLER_NODE = "SRH3_SemanticPaletteEncode", "SRH3_Look", "SRH3_StreamSampler"
LIST_NODE, SAVE_NODE = "SRH3_ClipList", "SaveVideo"
DISPLAY = {CLIP_NODE: "Semantic Palette Encode", LOOK_NODE: "H3 Look", SAMPLER_NODE: "H3 Stream Sampler"}
OPTIONS = {CLIP_NODE: "--clip-node", LOOK_NODE: "--look-node", SAMPLER_NODE: "--sampler-node"}
BASE = "streamrender_h3"  # below the host's output folder
JOB = "streamrender_h3_job"  # key in the metadata of what is saved
PICTURE = "srh3_batch_picture"  # id of the node added for a look's picture

Prompt = dict[str, Any]


@dataclass(frozen=True)
class Places:
    """Ids of the nodes that a batch changes. `savers` are Save Video nodes, the one behind the sampler first."""

    clip: str
    look: str
    sampler: str
    savers: tuple[str, ...]


def find_places(prompt: Mapping[str, Any], chosen: Mapping[str, str | None]) -> Places:
    """The places in an API graph; `chosen` gives ids by class where a graph has several. Raises `BatchError`."""
    if found := _of_class(prompt, LIST_NODE):
        raise BatchError(
            f"the workflow has an H3 Clip List (node {found[0]}), which makes a batch itself; press Run in ComfyUI, or "
            "queue a workflow for one clip"
        )
    clip, look, sampler = (_the_one(prompt, kind, chosen.get(kind)) for kind in (CLIP_NODE, LOOK_NODE, SAMPLER_NODE))
    savers = sorted(_of_class(prompt, SAVE_NODE), key=lambda key: prompt[key]["inputs"].get("video") != [sampler, 0])
    return Places(clip, look, sampler, tuple(savers))


def _of_class(prompt: Mapping[str, Any], kind: str) -> list[str]:
    return [key for key, node in prompt.items() if node.get("class_type") == kind]


def _the_one(prompt: Mapping[str, Any], kind: str, chosen: str | None) -> str:
    found, name, option = _of_class(prompt, kind), DISPLAY[kind], OPTIONS[kind]
    if chosen is not None:
        if chosen not in found:
            have = f"its nodes of this kind are {', '.join(found)}" if found else "it has none"
            raise BatchError(f"{option} is {chosen}, which is no {name} node of the workflow: {have}")
        return chosen
    if not found:
        raise BatchError(f"the workflow has no {name} node ({kind}); add one in the editor, then save")
    if len(found) > 1:
        titles = ", ".join(f"{key} ({prompt[key].get('_meta', {}).get('title', name)})" for key in found)
        raise BatchError(f"the workflow has {len(found)} {name} nodes: {titles}; say which with {option} ID")
    return found[0]


@dataclass(frozen=True)
class Job:
    """One item as the server gets it. `stems` are what its saved files are called, without number and suffix.

    `key` is the same for the same clip, look, seed and graph, whatever they are called and wherever they lie. With
    `sampler_saves` the server may take a video of the very same render with another key.
    """

    item: Item
    prompt: Prompt
    key: str
    folder: str
    stems: tuple[str, ...]
    sampler_saves: bool = False

    @property
    def extra(self) -> dict[str, Any]:
        """What the host writes into the saved files."""
        about = {"key": self.key, "clip": self.item.clip.name, "look": self.item.look.name, "seed": self.item.seed}
        return {"extra_pnginfo": {JOB: about}}


@dataclass(frozen=True)
class Sources:
    """What the server reads for an item: the clip's path there, the uploaded picture's name, and what is in the clip."""

    clip: str
    clip_hash: str
    prompt: str | None
    picture: str | None


def make_job(graph: Mapping[str, Any], places: Places, item: Item, sources: Sources, folder: str, known: Any) -> Job:
    """The graph for one item. `known` says whether a node class has an input (class, input): older packs have fewer."""
    prompt = copy.deepcopy(dict(graph))
    clip, look, sampler = (prompt[key]["inputs"] for key in (places.clip, places.look, places.sampler))
    for name in ("video", "images"):
        clip.pop(name, None)
    if sources.prompt is not None:
        if "positive" in look:
            raise BatchError(
                f"the H3 Look node {places.look} takes its words from 'positive', so prompts of the looks file would be "
                "ignored; connect 'clip' or choose a text_encoder folder instead"
            )
        look["prompt"] = sources.prompt
    if sources.picture is not None:
        prompt[PICTURE] = {
            "class_type": "LoadImage",
            "inputs": {"image": sources.picture},
            "_meta": {"title": "Picture"},
        }
        look["picture"] = [PICTURE, 0]
    if item.seed is not None:
        sampler["seed"] = item.seed
    clip["path"] = sources.clip_hash
    key = _key(prompt, places)
    clip["path"] = sources.clip
    stems, sampler_saves = _name_outputs(prompt, places, item, folder, known)
    return Job(item, prompt, key, folder, stems, sampler_saves)


def _key(prompt: Mapping[str, Any], places: Places) -> str:
    """Hash of everything that leads to the videos, but names and titles."""
    plain: dict[str, Any] = {}
    waiting = [places.sampler, *places.savers]
    while waiting:
        key = waiting.pop()
        if key in plain or key not in prompt:
            continue
        node, left_out = prompt[key], {"filename_prefix"} | ({"name", "save"} if key == places.sampler else set())
        inputs = {name: value for name, value in node["inputs"].items() if name not in left_out}
        plain[key] = [node["class_type"], inputs]
        waiting += [str(value[0]) for value in inputs.values() if isinstance(value, list) and len(value) == 2]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:32]


def _name_outputs(prompt: Prompt, places: Places, item: Item, folder: str, known: Any) -> tuple[tuple[str, ...], bool]:
    """Name what is saved: (stems, whether the sampler saves)."""
    stems: list[str] = []
    for key in places.savers:
        inputs, stem = prompt[key]["inputs"], item.name
        if stem in stems or inputs.get("video") != [places.sampler, 0]:
            stem += f"_{PurePosixPath(str(inputs.get('filename_prefix', ''))).name or key}"
            stem += f"_{key}" if stem in stems else ""
        inputs["filename_prefix"] = f"{BASE}/{folder}/{stem}"
        stems.append(stem)
    sampler, saves = prompt[places.sampler]["inputs"], False
    if known(SAMPLER_NODE, "name"):
        sampler["name"] = f"{folder}/{item.name}"
        saves = sampler.get("save") is True or item.name not in stems
        if saves and item.name not in stems:
            sampler["save"] = True
            stems.insert(0, item.name)
    if item.name not in stems:
        raise BatchError("the workflow saves no video; put a Save Video node behind the H3 Stream Sampler")
    return tuple(stems), saves
