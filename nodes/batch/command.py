"""The command `queue`: a folder of clips in several looks and seeds, one prompt each, in a running ComfyUI."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from .client import Disconnected, Server
from .errors import BatchError
from .graph import BASE, CLIP_NODE, LOOK_NODE, SAMPLER_NODE
from .items import all_items, find_clips, parse_seeds, plain_name
from .looks_file import read_looks, require_files
from .queue_run import make_jobs, read_workflow, run_batch
from .table import as_text, exit_code, rows
from .tracker import State, Track, Tracker

EPILOG = """\
The looks file is JSON; paths in it begin in its folder, and {clip} stands for the name of the clip:
  {"looks": [{"name": "noon", "prompt": "...", "picture": "noon.jpg"},
             {"name": "dusk", "prompt_file": "dusk.txt", "picture": "pictures/{clip}_dusk.png"}]}
What a look leaves out stays as the workflow has it. Videos come to output/streamrender_h3/FOLDER as CLIP_LOOK_SEED.
The same command again renders only what is missing, whatever was stopped in between. Exit code: 0 every video is there,
1 some are not (the table says why), 2 nothing was queued, 130 stopped watching (the queue goes on)."""


def arguments(parser: ArgumentParser) -> None:
    from argparse import RawDescriptionHelpFormatter

    parser.formatter_class, parser.epilog = RawDescriptionHelpFormatter, EPILOG
    parser.add_argument(
        "workflow", type=Path, metavar="WORKFLOW", help="workflow file, as saved by the editor or API format"
    )
    parser.add_argument(
        "--clips", type=Path, required=True, metavar="DIR", help="folder of class-colour clips, or one clip"
    )
    parser.add_argument("--pattern", default="*", help="which clips of the folder (default: %(default)s)")
    parser.add_argument("--looks", type=Path, required=True, metavar="FILE", help="the looks, see below")
    parser.add_argument("--seeds", nargs="+", default=[], metavar="N", help="such as 1 2 5-8 (default: the workflow's)")
    parser.add_argument("--server", default="http://127.0.0.1:8188", metavar="URL", help="default: %(default)s")
    parser.add_argument("--folder", default="queue", help=f"below output/{BASE} on the server (default: %(default)s)")
    parser.add_argument("--upload", action="store_true", help="send the clips to a server that cannot read DIR itself")
    parser.add_argument(
        "--wait", type=float, default=600.0, metavar="SECONDS", help="for a server that is away (default: %(default)s)"
    )
    for option, kind in (("clip", "Semantic Palette Encode"), ("look", "H3 Look"), ("sampler", "H3 Stream Sampler")):
        parser.add_argument(f"--{option}-node", metavar="ID", help=f"which {kind} node, where the workflow has several")
    parser.add_argument("--json", action="store_true", help="the table as JSON")


def run(args: Namespace) -> int:
    workflow = read_workflow(args.workflow)
    looks, clips = read_looks(args.looks), find_clips(args.clips, args.pattern)
    require_files(looks, [clip.name for clip in clips])
    items = all_items(clips, looks, parse_seeds(args.seeds))
    folder = "/".join(plain_name(part) for part in args.folder.split("/") if part.strip("./ "))
    if not folder:
        raise BatchError(f"the folder {args.folder!r} arrived; a name such as 'queue' is needed")
    chosen = {CLIP_NODE: args.clip_node, LOOK_NODE: args.look_node, SAMPLER_NODE: args.sampler_node}
    url = args.server.rstrip("/")

    async def batch() -> Tracker:
        async with Server.at(url) as server:
            try:
                jobs = await make_jobs(server, workflow, items, folder, chosen=chosen, upload=args.upload)
            except Disconnected as error:
                raise BatchError(f"{error}; start ComfyUI, or name its address with --server") from None
            return await run_batch(server, jobs, patience=args.wait, tell=teller(len(jobs)))

    try:
        tracks = asyncio.run(batch()).tracks
    except KeyboardInterrupt:
        print("stopped watching; what is queued goes on, and the same command goes on watching", file=sys.stderr)
        return 130
    print(json.dumps(rows(tracks), indent=1) if args.json else as_text(tracks))
    return exit_code(tracks)


def teller(total: int) -> Callable[[Track], None]:
    """Says a line when a job starts or ends, with how many of all have ended."""
    ended = [0]

    def tell(track: Track) -> None:
        state = track.state
        if state in (State.QUEUED, State.WAITING):
            return
        ended[0] += not state.open
        words = f"[{ended[0]}/{total}] {track.job.item.name}: {state.value}"
        if track.saved and track.saved.frames is not None:
            words += f", {track.saved.frames} frames"
        print(words + (f": {track.error}" if track.error else ""), file=sys.stderr, flush=True)

    return tell
