"""`cli.py queue` and the node H3 Clip List in a real ComfyUI: clips x looks x seeds, whatever fails or goes away in between.

The night has 4 renders by default and 102 with SRH3_LONG=1.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

import comfy_server
import pytest
from batch_bench import CLIPS, FRAMES, LONG, Night, digest, with_widgets
from bench import key_of, write_clip
from streamrender_h3.nodes.preview import playable_frames, read_report
from streamrender_h3.workflows import run as graphs

SEEDS, LEVEL_SEEDS, SAMPLES = (17, 3, 4) if LONG else (1, 1, 1)
POOL = 2  # threads that the server's own pool may still start, and their files
DEED_MOMENT = 12 if LONG else 1  # at which of the moments at which a render runs
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs kill -9 and /proc")


@pytest.fixture(scope="module")
def night(comfyui, tmp_path_factory, shipped, repository):
    night = Night.prepare(repository, comfyui, tmp_path_factory.mktemp("night"), shipped)
    try:
        yield night
    finally:
        night.server.stop()


def states(rows):
    return Counter(row["state"] for row in rows)


def renders(night, folder):
    """Finished videos; a file that Save Video had begun when its host was killed is none."""
    found = (night.base / "output" / "streamrender_h3" / folder).glob("*.mp4")
    return sorted(path for path in found if "partial" not in path.name and read_report(path))


def test_every_clip_in_every_look_a_broken_one_beside(night):
    """Names, reports and skipping; a changed look is rendered anew."""
    (night.work / "clips" / "junk.mp4").write_bytes(b"\1\2\3" * 500)
    chosen = ("--pattern", "[bj]*", "--seeds", "3")
    code, rows, said = night.queue(*chosen)
    assert code == 1 and states(rows) == {"done": 2, "failed": 2}, said
    done = {row["look"]: row for row in rows if row["state"] == "done"}
    for look, row in done.items():
        assert row["file"] == f"streamrender_h3/queue/bend_{look}_3_00001_.mp4"
        assert row["frames"] == FRAMES == playable_frames(night.file(row)) and row["seconds"] > 0
        assert night.report(row)["complete"] and night.report(row)["fingerprint"]["seed"] == "3"
    assert all("junk" in row["error"] and row["clip"] == "junk" for row in rows if row["state"] == "failed")
    frames = {look: digest(night.file(row)) for look, row in done.items()}
    assert frames["noon"] != frames["dusk"]

    night.write_looks(noon={"prompt": "noon by the sea", "picture": "noon.png"}, dusk={"prompt": "now with rain"})
    code, rows, said = night.queue(*chosen)
    found = {(row["clip"], row["look"]): row for row in rows}
    assert found["bend", "noon"]["state"] == "done before" and found["bend", "dusk"]["state"] == "done", said
    assert found["bend", "dusk"]["file"].endswith("bend_dusk_3_00002_.mp4")
    assert digest(night.file(found["bend", "dusk"])) != frames["dusk"]

    (night.work / "clips" / "junk.mp4").unlink()


def test_a_table_for_people_and_mistakes_before_anything_is_queued(night):
    text = night.start("--pattern", "b*", "--seeds", "3")
    out, _ = text.communicate(timeout=200)
    assert text.returncode == 0 and out.splitlines()[-1] == "2 renders: 2 done before"
    good = (night.work / "looks.json").read_text()
    (night.work / "looks.json").write_text('[{"name": "noon", "picture": "none.png"}]')
    code, _, said = night.queue()
    (night.work / "looks.json").write_text(good)
    assert code == 2 and said.count("\n") == 1 and "none.png, which is not there" in said
    away = night.start("--server", "http://127.0.0.1:9")
    _, said = away.communicate(timeout=100)
    assert away.returncode == 2 and "does not answer" in said and "start ComfyUI" in said
    with pytest.raises(HTTPError, match="404"):
        night.server.get("/streamrender_h3/saved?folder=../../input")
    queue = night.server.get("/queue")
    assert queue["queue_running"] == [] and queue["queue_pending"] == []


def test_clips_and_pictures_can_be_sent_along(night):
    folder = night.work / "sent"
    (folder / "frames").mkdir(parents=True)
    from PIL import Image
    from streamrender_h3.nodes.palette import RACING

    for number in range(3):
        Image.new("RGB", (64, 64), tuple(RACING.entries[number + 1].rgb)).save(folder / "frames" / f"{number:04}.png")
    code, rows, said = night.queue("--upload", "--seeds", "1", clips="sent")
    assert code == 0 and [row["frames"] for row in rows] == [3, 3], said
    shutil.rmtree(folder)


def test_the_command_killed_and_started_again_goes_on_and_doubles_nothing(night):
    arguments = ("--pattern", "b*", "--seeds", "11-13", "--folder", "again")
    first = night.start(*arguments)
    deadline = time.monotonic() + 120
    while len(night.server.get("/queue")["queue_pending"]) < 4:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.communicate()
    assert len(night.server.get("/queue")["queue_pending"]) >= 2
    code, rows, said = night.queue(*arguments)
    assert code == 0 and len(rows) == 6 and states(rows)["done"] >= 3, said
    assert len(renders(night, "again")) == 6
    assert len({digest(night.file(row)) for row in rows}) == 6


# ------------------------------------------------------------------------------------------------------------ the list


@pytest.fixture(scope="module")
def clip_list(night, repository):
    """The shipped list graph with tiny weights, over a folder with two clips of which one is broken."""
    folder = night.base / "input" / "listed"
    folder.mkdir()
    write_clip(folder / "bend.mp4", FRAMES)
    (folder / "junk.mp4").write_bytes(b"\1\2\3" * 500)
    looks = [{"name": name, "prompt": name, "picture": str(night.work / f"{name}.png")} for name in ("noon", "dusk")]
    (folder / "looks.json").write_text(json.dumps(looks))
    workflow = json.loads((repository / "workflows" / "clip_list.json").read_text(encoding="utf-8"))
    weights = night.weights
    small = {
        "SRH3_ClipList": {0: "listed", 1: "*", 2: "listed/looks.json", 3: "5"},
        "SRH3_SemanticPaletteEncode": {1: 64, 2: 64},
        "SRH3_Look": {1: 96, 2: 64, 3: weights.text_encoder.name},
        "SRH3_LoadModel": {0: weights.model.name},
        "SRH3_LoadEncoder": {0: weights.codec.name},
        "SRH3_LoadDecoder": {0: weights.codec.name},
    }
    return graphs.to_api(with_widgets(workflow, small), night.server.get("/object_info"))


def run_list(night, prompt, on_event=None):
    result = asyncio.run(graphs.run_prompt(night.server.url, prompt, on_event=on_event, timeout=300))
    shown = result.history["outputs"].get(key_of(prompt, "PreviewAny"), {}).get("text", [])
    return result, shown


def videos(night):
    return sorted((night.base / "output" / "streamrender_h3").glob("*.mp4"))


def test_a_list_cancelled_in_the_middle_keeps_what_is_finished_and_goes_on(night, clip_list):
    """Then, with the broken clip beside: its items fail alone and are tried again, the others are taken as they are."""
    (night.base / "input" / "listed" / "junk.mp4").rename(night.work / "junk.mp4")
    started = []

    def cancel_in_the_second(event):
        if event.kind == "progress" and event.data["node"] == key_of(clip_list, "SRH3_StreamSampler"):
            started.append(event.data["value"])
            if len(started) > 2 and started[-1] == 3 and 6 in started:
                night.server.post("/interrupt")

    result, _ = run_list(night, clip_list, cancel_in_the_second)
    assert result.end.kind == "execution_interrupted"
    (first,) = (path for path in videos(night) if "partial" not in path.name)
    assert first.name == "bend_noon_5_00001.mp4" and read_report(first)["complete"]
    (partial,) = (path for path in videos(night) if "partial" in path.name)
    assert partial.name == "bend_dusk_5_partial_00001.mp4" and 0 < playable_frames(partial) < FRAMES

    (night.work / "junk.mp4").rename(night.base / "input" / "listed" / "junk.mp4")
    before, mark = first.stat().st_mtime_ns, len(night.server.log_text())
    result, shown = run_list(night, clip_list)
    result.raise_for_failure()
    said = night.server.log_text()[mark:]
    assert f"takes {first}, which is this very render" in said and first.stat().st_mtime_ns == before
    assert "goes on after" in said and said.count("failed for one item of the clip list") == 2
    names = [path.name for path in videos(night) if "partial" not in path.name]
    assert names == ["bend_dusk_5_00001.mp4", "bend_noon_5_00001.mp4"]
    assert [json.loads(text)["complete"] for text in shown] == [True, True]
    pictures = result.history["outputs"][key_of(clip_list, "PreviewImage")]["images"]
    assert len(pictures) == 2

    mark = len(night.server.log_text())
    run_list(night, clip_list)[0].raise_for_failure()  # nothing has changed: what failed is tried, nothing is rendered
    said = night.server.log_text()[mark:]
    assert said.count("failed for one item of the clip list") == said.count("which is this very render") == 2

    write_clip(night.base / "input" / "listed" / "junk.mp4", FRAMES, (96, 128))
    result, shown = run_list(night, clip_list)
    names = [path.name for path in videos(night) if "partial" not in path.name]
    result.raise_for_failure()
    assert len(shown) == 4
    assert names == [f"{clip}_{look}_5_00001.mp4" for clip in ("bend", "junk") for look in ("dusk", "noon")]
    assert len({digest(path) for path in videos(night) if "partial" not in path.name}) == 4


# ----------------------------------------------------------------------------------------------------------- the night


@dataclass(frozen=True)
class Level:
    """What a server holds."""

    kilobytes: int
    threads: int
    files: int
    temporary: int
    journals: int


def level(night):
    process = Path(f"/proc/{night.server.process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    temporary = [path for path in (night.base / "temp" / "streamrender_h3").rglob("*") if path.is_file()]
    return Level(
        int(status["VmRSS"].split()[0]),
        len(list((process / "task").iterdir())),
        len(list((process / "fd").iterdir())),
        len(temporary),
        len(night.journals),
    )


class Disturbance:
    """What goes wrong while a command runs: cancels at random moments, and at its moment one worse deed."""

    def __init__(self, night, dice, deed):
        self.night, self.dice, self.deed = night, dice, deed
        self.cancels, self.done = 0, False

    def run(self, process):
        """Until the command ends."""
        moments = 0
        while process.poll() is None:
            time.sleep(self.dice.uniform(0.3, 2.5) if self.done or LONG else self.dice.uniform(0.1, 0.4))
            if not self.night.server.get("/queue")["queue_running"]:
                continue
            moments += 1
            if not self.done and moments >= DEED_MOMENT:
                self.deed(self.night)
                self.done = True
            elif self.dice.random() < 0.3:
                self.night.server.post("/interrupt")
                self.cancels += 1


def crash(night):
    night.server.process.send_signal(signal.SIGKILL)
    night.server.process.wait()
    night.restart()


def clear(night):
    night.server.post("/queue", {"clear": True})


def test_a_night_of_cancels_a_cleared_queue_and_a_crash_ends_with_every_video_and_nothing_left(night):
    total = len(CLIPS) * 2 * SEEDS
    dice = random.Random(20261130)
    arguments = ("--seeds", f"1-{SEEDS}", "--folder", "night")
    night.write_looks(noon={"prompt": "noon by the sea", "picture": "noon.png"}, dusk={"picture": "dusk.png"})

    def round_with(deed, pattern="*"):
        process = night.start("--json", *arguments, "--pattern", pattern)
        disturbance = Disturbance(night, dice, deed)
        disturbance.run(process)
        code, rows, said = night.finish(process)
        print(f"{deed.__name__}: {dict(states(rows))}, {disturbance.cancels} cancels, exit code {code}", flush=True)
        assert disturbance.done, said
        assert len(rows) == (total if pattern == "*" else total // len(CLIPS))
        assert set(states(rows)) <= {"done", "done before", "cancelled"}, said
        assert code == (1 if "cancelled" in states(rows) else 0)

    round_with(crash, "b*")
    warm = ("--pattern", "b*", "--folder", "level")
    night.queue(*warm, "--seeds", f"900-{899 + LEVEL_SEEDS}")  # the new server has now all it keeps
    before = level(night)
    round_with(clear)
    code, rows, said = night.queue(*arguments)
    assert code == 0 and len(rows) == total, said
    assert len({row["file"] for row in rows}) == total == len(renders(night, "night"))
    reports = [night.report(row) for row in rows]
    assert all(report["complete"] and report["frames"] == FRAMES for report in reports)
    assert len({report["latents_sha256"] for report in reports}) == total  # no copy of another one
    print(f"resumed: {sum(bool(report['resumed_at_chunks']) for report in reports)} of {total}")

    night.queue(*warm, "--seeds", f"910-{909 + LEVEL_SEEDS}")
    deadline = time.monotonic() + 30
    while (after := level(night)).journals or after.temporary > before.temporary:
        assert time.monotonic() < deadline, (before, after)
        time.sleep(0.5)
    print(f"before {before}\nafter  {after}")
    assert after.threads <= before.threads + POOL and after.files <= before.files + POOL
    assert after.kilobytes <= (1.15 if LONG else 1.25) * before.kilobytes

    resumed = [row for row, report in zip(rows, reports, strict=True) if report["resumed_at_chunks"]] or rows
    for row in dice.sample(resumed, min(SAMPLES, len(resumed))):
        again = (f"{row['clip']}*", "--seeds", str(row["seed"]), "--folder", "again once")
        _, second, _ = night.queue("--pattern", *again)
        (same,) = (other for other in second if other["look"] == row["look"])
        assert digest(night.file(same)) == digest(night.file(row))
    assert comfy_server.import_trouble(night.server.log_text()) == []
