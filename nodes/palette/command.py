"""The command `palette`: the verdict on a class-colour clip."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from . import audit, chunk_lines, clip_from_video, clip_report, load_palette, write_labels
from .bench import bench
from .clip import REPAIRS
from .reader import VideoSource


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "clip", type=Path, metavar="CLIP", help="video file, picture or folder of pictures in class colours"
    )
    parser.add_argument(
        "--palette", default="racing", help="built-in palette name or palette file (default: %(default)s)"
    )
    parser.add_argument("--repair", choices=REPAIRS, default="auto", help="of doubtful pixels (default: %(default)s)")
    parser.add_argument("--fps", type=float, help="frames per second of pictures (default: 24)")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--labels", type=Path, metavar="DIR", help="also write class ids, one grey PNG per frame")
    parser.add_argument("--bench", action="store_true", help="measure how fast the clip is read, instead")


def run(args: Namespace) -> int:
    clip = clip_from_video(args.clip, load_palette(args.palette), fps=args.fps, repair=args.repair)
    if args.fps is not None and isinstance(clip.source, VideoSource) and not clip.source.without_stamps:
        print("note: --fps is ignored, the video goes by its own time stamps", file=sys.stderr)
    if args.bench:
        print("\n".join(bench(clip)))
        return 0
    found = audit(clip)
    if args.labels:
        write_labels(clip, args.labels)
    if args.json:
        print(json.dumps(clip_report(clip, found), indent=2))
        return 0
    timeline = clip.source.timeline
    print(found.as_text())
    print(f"read from {timeline.source_frames} frames, {float(timeline.seconds):.2f} s, {clip.size[1]}x{clip.size[0]}")
    print("\n".join(chunk_lines(clip.frames)))
    return 0
