"""A long render costs per chunk what a short one does: memory, time and report do not grow. 2,400 frames with SRH3_LONG=1."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

LONG = os.environ.get("SRH3_LONG") == "1"
FRAMES = 2400 if LONG else 600
SLACK = 1.1 if LONG else 1.4  # of the time per chunk: with few chunks the median is noisy

RENDER = """
import json, resource, statistics, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from small_render import BASE, look_of, moving_clip
import torch
from streamrender_h3.nodes.codec import load_decoder, load_encoder
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.preview.finish import metadata_of
from streamrender_h3.nodes.preview.formats import H264
from streamrender_h3.nodes.sampler import render
from streamrender_h3.nodes.sampler.journal import open_at
from streamrender_h3.nodes.sampler.record import Recorder
from streamrender_h3.workflows.nano.weights import write_weights

torch.set_num_threads(1)
folder, frames = Path(sys.argv[2]), int(sys.argv[3])
files = write_weights(folder / "weights", seed=4)
model = load_h3(files.model, dtype=torch.float32, device="cpu")
parts = load_encoder(files.codec), load_decoder(files.codec)
clip, look = moving_clip(frames), look_of(0, model.config.text_dim)


def recorder(name):
    return Recorder(open_at(folder / (name + ".journal"), {}, resume=False), clip, look, BASE, [(H264, folder / (name + ".mp4"))])


def chunks(recorder):
    # seconds of CPU per chunk, rendered and written
    rendered = render(clip, look, model, *parts, BASE)
    start = time.process_time()
    for chunk in rendered:
        recorder.add(chunk)
        yield time.process_time() - start
        start = time.process_time()


spent, fresh, late = [], [], []
with recorder("v") as long, recorder("w") as other:
    total = BASE.schedule.chunks_for(frames)
    again = chunks(other)
    for index, seconds in enumerate(chunks(long)):
        spent.append(seconds)
        if index == total - total // 10 - 1:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            next(again), next(again)
        if total - total // 10 <= index < total - 1:  # side by side with the first chunks of a second render
            late.append(seconds)
            fresh.append(next(again))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if total < 20 else peak
    report = long.result()
    long.finish(long.outputs[0], folder / "v.mp4", metadata_of(report=report))
report = {"bytes": len(json.dumps(report)), "frames": report["frames"]}
print(json.dumps({"peak": peak, "spent": spent, "late": late, "fresh": fresh, "report": report}))
"""


def measured(folder: Path, frames: int) -> dict:
    """One render in a process of its own, so that peaks are its own: peak kB, CPU seconds per chunk, size of its report."""
    folder.mkdir()
    arguments = [str(Path(__file__).parent), str(folder), str(frames)]
    done = subprocess.run([sys.executable, "-c", RENDER, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(os.name == "nt", reason="needs the resource module")
def test_memory_time_and_report_do_not_grow_with_the_clip(tmp_path):
    """Chunks of the last tenth are timed side by side with the first ones of a second render: both see the same machine."""
    short, long = measured(tmp_path / "short", 124), measured(tmp_path / "long", FRAMES)
    assert (short["report"]["frames"], long["report"]["frames"]) == (124, FRAMES)
    assert long["peak"] <= 1.2 * short["peak"], (short["peak"], long["peak"])
    late, fresh = statistics.median(long["late"]), statistics.median(long["fresh"])
    assert late <= SLACK * fresh, (late, fresh)
    assert long["report"]["bytes"] < 100_000
    tenth = len(long["spent"]) // 10
    parts = long["spent"][2 : 2 + tenth], long["spent"][-2 * tenth : -tenth]
    first, ninth = (statistics.median(part) for part in parts)
    print(f"peak {short['peak']} -> {long['peak']} kB; last tenth {late:.4f}, first chunks beside it {fresh:.4f} s")
    print(f"alone: first tenth {first:.4f}, ninth tenth {ninth:.4f} s")
    print(f"report {short['report']['bytes']} -> {long['report']['bytes']} bytes")
