"""ComfyUI node: H3 Clip List, a folder of clips in several looks and seeds through ComfyUI's list execution."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comfy_api.latest import io

from .. import host
from ..host import CATEGORY
from ..look import load_picture
from . import BatchError, Item, all_items, find_clips, parse_seeds, read_looks, require_files

log = logging.getLogger(host.PACK)

PATTERN = "*"


class ClipListNode(io.ComfyNode):
    """Lists with one entry per clip, look and seed; the nodes behind run once for each."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SRH3_ClipList",
            display_name="H3 Clip List",
            category=CATEGORY,
            description="Every clip of a folder in every look with every seed: the nodes behind run once for each. An item that "
            "fails does not stop the others, and with 'save' on the sampler what is finished is not rendered again.",
            inputs=[
                io.String.Input(
                    "folder",
                    default="streamrender_h3",
                    tooltip="The folder with the clips on the machine that runs ComfyUI: videos, or folders of frames. A relative "
                    "path begins in the input folder.",
                ),
                io.String.Input(
                    "pattern", default=PATTERN, tooltip="Which clips of the folder, with * and ?, such as race_*.mp4."
                ),
                io.String.Input(
                    "looks",
                    default="streamrender_h3/looks.json",
                    tooltip="The looks file: a JSON list of looks, each with name, prompt and picture. A relative path begins in "
                    "the input folder. Its form is in this node's help.",
                ),
                io.String.Input("seeds", default="1", tooltip="Seeds and ranges of seeds, such as 1, 2, 5-8."),
                io.Image.Input(
                    "picture", optional=True, tooltip="For looks that name no picture of their own: one picture."
                ),
                io.String.Input(
                    "prompt", optional=True, force_input=True, tooltip="For looks that have no prompt of their own."
                ),
            ],
            outputs=[
                io.String.Output(
                    "path",
                    display_name="clip path",
                    is_output_list=True,
                    tooltip="For 'path' of Semantic Palette Encode.",
                ),
                io.Image.Output(
                    "look_picture", display_name="picture", is_output_list=True, tooltip="For 'picture' of H3 Look."
                ),
                io.String.Output(
                    "look_prompt", display_name="prompt", is_output_list=True, tooltip="For 'prompt' of H3 Look."
                ),
                io.Int.Output("seed", display_name="seed", is_output_list=True, tooltip="For H3 Stream Sampler."),
                io.String.Output(
                    "name",
                    display_name="name",
                    is_output_list=True,
                    tooltip="CLIP_LOOK_SEED, for 'name' of H3 Stream Sampler or the prefix of Save Video.",
                ),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def fingerprint_inputs(cls, folder: str = "", pattern: str = "", looks: str = "", **inputs: Any) -> str:
        """Changes with the files behind the names; and when an item has failed, so that it is tried again."""
        try:
            specs, clips = read_looks(host.input_path(looks)), find_clips(host.input_path(folder), pattern or PATTERN)
            paths = [host.input_path(looks), *(clip.path for clip in clips)]
            paths += [file for clip in clips for look in specs for file in look.files(clip.name)]
            stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in dict.fromkeys(paths)]
        except (BatchError, OSError) as error:
            return str(error)
        return f"{hash(tuple(stats))} {host.failed_items()}"

    @classmethod
    def execute(
        cls,
        folder: str,
        pattern: str,
        looks: str,
        seeds: str,
        picture: torch.Tensor | None = None,
        prompt: str | None = None,
    ) -> io.NodeOutput:
        clips, specs = find_clips(host.input_path(folder), pattern or PATTERN), read_looks(host.input_path(looks))
        require_files(specs, [clip.name for clip in clips])
        chosen = parse_seeds([seeds])
        if not chosen:
            raise BatchError(f"H3 Clip List: seeds is {seeds!r}; write at least one number, such as 1")
        items = all_items(clips, specs, chosen)
        words = [_words(item, prompt) for item in items]
        pictures = _pictures(items, picture)
        count = f"{len(clips)} clips x {len(specs)} looks x {len(chosen)} seeds = {len(items)} renders"
        log.info("H3 Clip List: %s", count)
        host.show_text(count, cls.hidden.unique_id)
        paths, names = [str(item.clip.path) for item in items], [item.name for item in items]
        return io.NodeOutput(paths, pictures, words, [item.seed for item in items], names)


def _words(item: Item, given: str | None) -> str:
    words = item.look.words(item.clip.name) or given
    if not words:
        raise BatchError(
            f"H3 Clip List: look {item.look.name!r} has no prompt; write one into the looks file or connect 'prompt'"
        )
    return words


def _pictures(items: Sequence[Item], given: torch.Tensor | None) -> list[torch.Tensor]:
    """IMAGE [1, H, W, 3] per item; items of one file share one tensor."""
    loaded: dict[Path, torch.Tensor] = {}
    found = []
    for item in items:
        path = item.look.picture_path(item.clip.name)
        if path is None:
            if given is None:
                raise BatchError(
                    f"H3 Clip List: look {item.look.name!r} has no picture; name one in the looks file or connect 'picture'"
                )
            found.append(given)
            continue
        if path not in loaded:
            loaded[path] = torch.from_numpy(np.array(load_picture(path))).float()[None] / 255
        found.append(loaded[path])
    return found
