"""From chunks to files: whatever stops a render and wherever, the same render again ends with the same files."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from streamrender_h3.nodes.codec.tae_stream import TAEDecoderStream, TAEEncoderStream
from streamrender_h3.nodes.palette import clip_from_video
from streamrender_h3.nodes.preview import VideoFileError, playable_frames
from streamrender_h3.nodes.preview.finish import metadata_of, read_report
from streamrender_h3.nodes.preview.formats import FFV1, FORMATS, H264, PNG
from streamrender_h3.nodes.sampler import DENSE, RenderError, TimeGrid, chain, render
from streamrender_h3.nodes.sampler.fingerprint import clip_identity, differences, fingerprint
from streamrender_h3.nodes.sampler.journal import open_in
from streamrender_h3.nodes.sampler.looks import add_change
from streamrender_h3.nodes.sampler.network import Network
from streamrender_h3.nodes.sampler.record import Recorder
from streamrender_h3.nodes.sampler.report import MAX_ROWS, RenderReport
from streamrender_h3.nodes.sampler.report_picture import report_picture
from streamrender_h3.nodes.schedule import TEACHER

sys.path.insert(0, str(Path(__file__).parent))
from small_render import BASE, look_of, moving_clip

FRAMES = 60


class Bench:
    """Renders into one store, and can be killed at a chosen chunk, before or after its commit."""

    def __init__(self, parts, folder: Path, forms=(H264,), frames=FRAMES):
        self.parts, self.folder, self.forms = parts, folder, forms
        self.clip, self.look = moving_clip(frames), look_of(0, parts[0].config.text_dim)
        self.fingerprint = fingerprint(self.clip, self.look, *parts, BASE, [form.name for form in forms])

    def recorder(self):
        store = self.folder / "store"
        store.mkdir(exist_ok=True)
        journal = open_in(store, self.fingerprint, lambda: self.folder / "temporary")
        targets = [(form, journal.folder / f"video_{k}{form.suffix}") for k, form in enumerate(self.forms)]
        return Recorder(journal, self.clip, self.look, BASE, targets)

    def render(self, until=None, *, committed=True):
        """The recorder after rendering; `until` kills the process in this chunk, `committed` says on which side of its end."""
        recorder = self.recorder()
        for chunk in render(self.clip, self.look, *self.parts, BASE, resume=recorder.resume):
            if chunk.index == until and not committed:
                recorder._commit = lambda chunk: None
            recorder.add(chunk)
            if chunk.index == until:
                recorder.journal.release()  # as the system does for a dead process
                return recorder
        return recorder

    def files(self, recorder):
        """Finish, then: the frames of every format, latents' sha256, report."""
        report, found = recorder.result(), []
        for output in recorder.outputs:
            target = self.folder / f"final{output.form.suffix}"
            recorder.finish(output, target, metadata_of(report=report))
            found.append(decoded(target))
            shutil.rmtree(target) if target.is_dir() else None
        recorder.close(finished=True)
        return found, report


def decoded(path: Path) -> list[np.ndarray]:
    if path.is_dir():
        from PIL import Image

        return [np.array(Image.open(file)) for file in sorted(path.iterdir())]
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def without_times(report):
    """What must be equal however often a render was interrupted."""
    rows = [{k: v for k, v in row.items() if not k.endswith("_ms")} for row in report["chunks"]]
    fixed = ("frames", "latents_sha256", "suspects", "suspect_chunks", "complete", "figures")
    return rows, {name: report[name] for name in fixed}


@pytest.fixture(scope="module")
def reference(tiny_parts, tmp_path_factory):
    """An undisturbed render of every format."""
    bench = Bench(tiny_parts, tmp_path_factory.mktemp("reference"), tuple(FORMATS.values()))
    return bench.files(bench.render())


@pytest.mark.parametrize(("chunk", "committed", "forms"), [(0, True, 1), (1, False, 5), (3, True, 1), (4, False, 1)])
def test_a_render_killed_anywhere_ends_like_an_undisturbed_one(
    tiny_parts, reference, tmp_path, chunk, committed, forms
):
    bench = Bench(tiny_parts, tmp_path, tuple(FORMATS.values())[:forms])
    bench.render(until=chunk, committed=committed)
    again = bench.render()
    found, report = bench.files(again)
    assert report["resumed_at_chunks"] == [chunk + committed]
    assert without_times(report) == without_times(reference[1])
    for form, expected, made in zip(bench.forms, reference[0], found, strict=False):
        assert len(made) == FRAMES and all(map(np.array_equal, expected, made)), form.name
    assert list((tmp_path / "store").iterdir()) == []
    names = ["final.mkv", "final.mov", "final.mp4", "store"] if forms == 5 else ["final.mp4", "store"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_half_written_frames_and_latents_are_cut_off(tiny_parts, reference, tmp_path):
    bench = Bench(tiny_parts, tmp_path)
    killed = bench.render(until=2)
    for name in ("video_0.mp4", "video.f32", "audio.f32"):
        with (killed.journal.folder / name).open("ab") as file:
            file.write(b"\\1" * 1001)
    found, report = bench.files(bench.render())
    assert report["latents_sha256"] == reference[1]["latents_sha256"]
    assert all(map(np.array_equal, reference[0][0], found[0]))


def test_lossless_formats_keep_every_pixel(reference):
    assert all(map(np.array_equal, reference[0][3], reference[0][4]))  # FFV1 and PNG


def test_killed_between_the_last_chunk_and_the_finished_file_nothing_is_rendered_again(tiny_parts, reference, tmp_path):
    bench = Bench(tiny_parts, tmp_path)
    bench.render(until=4)
    recorder = bench.recorder()
    assert recorder.chunks_done == 5
    assert list(render(bench.clip, bench.look, *tiny_parts, BASE, resume=recorder.resume)) == []
    assert bench.files(recorder)[1]["latents_sha256"] == reference[1]["latents_sha256"]


def test_a_journal_whose_files_are_gone_starts_afresh_and_says_so(tiny_parts, reference, tmp_path, caplog):
    bench = Bench(tiny_parts, tmp_path)
    killed = bench.render(until=1)
    (killed.journal.folder / "video_0.mp4").write_bytes(b"something else, and longer than what was there" * 10_000)
    found, report = bench.files(bench.render())
    assert "cannot be continued" in caplog.text and report["resumed_at_chunks"] == []
    assert all(map(np.array_equal, reference[0][0], found[0]))


@pytest.mark.parametrize("form", [H264, FFV1, PNG], ids=lambda form: form.codec)
def test_what_is_there_after_a_kill_plays(tiny_parts, tmp_path, form):
    bench = Bench(tiny_parts, tmp_path, (form,))
    killed = bench.render(until=1, committed=False)
    path = killed.outputs[0].path
    shown = len(list(path.iterdir())) if form is PNG else playable_frames(path)
    assert shown == killed.report.frames == 39


def test_a_disk_without_room_is_told_before_the_first_chunk(tiny_parts, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**26))
    with pytest.raises(VideoFileError, match=r"has 67 MB free and a render of 60 frames needs about 6\d MB"):
        Bench(tiny_parts, tmp_path).recorder()
    assert list((tmp_path / "store").iterdir()) == []


def test_every_difference_between_two_renders_has_a_name(tiny_parts, tmp_path):
    model, encoder, decoder = tiny_parts
    bench = Bench(tiny_parts, tmp_path)
    same = fingerprint(moving_clip(FRAMES), look_of(0, model.config.text_dim), *tiny_parts, BASE, [H264.name])
    assert differences(bench.fingerprint, same) == []
    look = bench.look
    inputs = {"clip": bench.clip, "look": look, "model": model, "encoder": encoder, "decoder": decoder}
    inputs |= {"settings": BASE, "output": [H264.name]}
    changes = {
        "clip": {"clip": moving_clip(FRAMES + 1)},
        "look": {"look": look_of(1, model.config.text_dim)},
        "seed": {"settings": replace(BASE, seed=8)},
        "steps": {"settings": replace(BASE, grid=TimeGrid.trailing(3))},
        "schedule": {"settings": replace(BASE, schedule=TEACHER)},
        "attention": {"settings": replace(BASE, attention=DENSE)},
        "guidance": {"settings": replace(BASE, branches=chain())},
        "model": {"model": replace(model, identity="another")},
        "video format": {"output": ["FFV1"]},
    }
    for name, change in changes.items():
        assert differences(bench.fingerprint, fingerprint(**{**inputs, **change})) == [name]
    sequence = add_change(look, look_of(1, model.config.text_dim), 2.0)
    later = add_change(look, look_of(1, model.config.text_dim), 2.5)
    made = [fingerprint(bench.clip, one, *tiny_parts, BASE)["look"] for one in (look, sequence, later)]
    assert len(set(made)) == 3


def test_the_clip_part_depends_on_its_pixels(tmp_path):
    from PIL import Image

    folders = []
    for level in (1, 2):
        folder = tmp_path / str(level)
        folder.mkdir()
        Image.fromarray(np.full((64, 64, 3), level, np.uint8)).save(folder / "a.png")
        folders.append(clip_identity(clip_from_video(folder, reference_size=(64, 64))))
    assert folders[0] != folders[1]


# -------------------------------------------------------------------------------------------------------- what is told


def poison(monkeypatch, target, name, at, value=float("nan")):
    """From call `at` of a method on, its result is not finite."""
    original, calls = getattr(target, name), []

    def bad(self, *args, **kwargs):
        calls.append(1)
        found = original(self, *args, **kwargs)
        if len(calls) < at:
            return found
        return tuple(part * value for part in found) if isinstance(found, tuple) else found * value

    monkeypatch.setattr(target, name, bad)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("encoder", "chunk 1: the encoder returned, for the class maps, NaN"),
        ("model", "chunk 1: the model returned, in step 2 of 2 for the picture, NaN"),
        ("decoder", "chunk 1: the decoder returned NaN"),
    ],
)
def test_the_first_stage_with_a_nan_stops_the_render_and_is_named(tiny_parts, tmp_path, monkeypatch, where, words):
    bench = Bench(tiny_parts, tmp_path)
    target, name, at = {
        "encoder": (TAEEncoderStream, "push", 35),
        "model": (Network, "__call__", 4),
        "decoder": (TAEDecoderStream, "push", 2),
    }[where]
    recorder = bench.recorder()
    poison(monkeypatch, target, name, at)
    with pytest.raises(RenderError, match=words) as caught, recorder:
        for chunk in render(bench.clip, bench.look, *tiny_parts, BASE):
            recorder.add(chunk)
    stopped = recorder.result()["stopped"]
    assert stopped["after_chunk"] == 0 and words in stopped["reason"] and not recorder.result()["complete"]
    assert caught.value.chunk == 1 and stopped["stage"] == caught.value.stage
    monkeypatch.undo()
    assert bench.recorder().chunks_done == 1  # and it goes on from there


def test_the_report_is_in_the_file_and_as_a_picture(tiny_parts, tmp_path):
    bench = Bench(tiny_parts, tmp_path)
    recorder = bench.render()
    report = recorder.result()
    recorder.finish(recorder.outputs[0], tmp_path / "v.mp4", metadata_of({"1": {}}, {"workflow": {"a": 1}}, report))
    recorder.close(finished=True)
    assert read_report(tmp_path / "v.mp4") == json.loads(json.dumps(report))
    assert report["complete"] and report["fingerprint"]["seed"] == "7" and "pack" in report["fingerprint"]["versions"]
    with av.open(str(tmp_path / "v.mp4")) as container:
        assert json.loads(container.metadata["workflow"]) == {"a": 1}
        assert json.loads(container.metadata["prompt"]) == {"1": {}}
    head = (tmp_path / "v.mp4").read_bytes()
    assert head.index(b"moov") < head.index(b"mdat")  # seekable at once, also over a network
    picture = np.array(report_picture(report))
    assert picture.shape[1:] == (1200, 3) and len(np.unique(picture.reshape(-1, 3), axis=0)) > 8


def test_the_report_stays_small_however_long_the_render(tiny_parts):
    chunk = next(render(moving_clip(30), look_of(0, tiny_parts[0].config.text_dim), *tiny_parts, BASE))
    report, sizes = RenderReport(BASE, 10**6), {}
    for index in range(1300):
        report.add(replace(chunk, index=index, frames=chunk.frames[:9, :, ::8, ::8]))
        if index + 1 in (283, 1300):
            sizes[index + 1] = len(report.as_json("x"))
    rows = report.as_dict("x")["chunks"]
    assert len(rows) <= MAX_ROWS and sum(row["chunks"] for row in rows) == 1300 and rows[-1]["chunk"] < 1300
    assert sum(row["latents"] for row in rows) == 1300 * chunk.video.shape[1]
    assert max(sizes.values()) < 200_000 and len(report.suspects) <= 60 < report.suspect_count


def test_look_changes_are_told_as_beyond_the_training(tiny_parts, tmp_path):
    bench = Bench(tiny_parts, tmp_path)
    bench.look = add_change(bench.look, look_of(1, tiny_parts[0].config.text_dim), 2.0)
    report = bench.recorder().result()
    assert report["look_changes"] == [{"chunk": 3, "frame": 47, "seconds": 1.958}]
    assert "beyond what the weights were trained for" in report["look_changes_note"]
