"""The command `palette`: the verdict on a class-colour clip."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from . import clip_from_video, clip_report, load_palette, write_labels


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("clip", type=Path, metavar="CLIP", help="video file or folder of pictures in palette colours")
    parser.add_argument(
        "--palette", default="racing", help="built-in palette name or palette file (default: %(default)s)"
    )
    parser.add_argument("--repair", choices=("auto", "on", "off"), default="auto", help="of doubtful pixels")
    parser.add_argument("--fps", type=float, help="frames per second of a folder (default: 24)")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--labels", type=Path, metavar="DIR", help="also write class ids, one grey PNG per frame")


def run(args: Namespace) -> int:
    clip = clip_from_video(args.clip, load_palette(args.palette), fps=args.fps, repair=args.repair)
    report = clip_report(clip)
    if args.labels:
        write_labels(clip, args.labels)
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    print(f"{report['verdict']}: {report['frames']} frames at 24 fps, {report['doubtful_share']:.2%} doubtful pixels")
    print("\n".join(f"  {share:7.2%}  {name}" for name, share in report["classes"].items() if share))
    if report["advice"]:
        print(report["advice"])
    return 0
