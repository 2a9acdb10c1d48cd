"""Where a render goes, what goes wrong on the way, and going on: nothing that was rendered is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from command_inputs import FRAMES, Command
from safetensors import SafetensorError
from safetensors.torch import load_file
from streamrender_h3.nodes.codec.tae_stream import TAEDecoderStream
from streamrender_h3.nodes.preview import playable_frames
from streamrender_h3.nodes.sampler import noise

# -------------------------------------------------------------------------------------------------------- where it goes


@pytest.mark.parametrize(("option", "what"), [("out", "video"), ("save_latents", "latents")])
def test_target_that_cannot_be_written(refused, tmp_path, option, what):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "absent" / "t", tmp_path / "file" / "t", tmp_path / "folder", Path("/proc/t")):
        refused(f"the {what} cannot be written to {path}", "an existing folder", **{option: path})
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("option", ["out", "save_latents"])
def test_target_that_is_an_input(refused, inputs, option):
    for path in (inputs.folder / "clip.mp4", inputs.weights.model, inputs.folder / "prompt.txt"):
        before = path.read_bytes()
        refused(f"would overwrite {path}", "name another file", **{option: path})
        assert path.read_bytes() == before


def test_latents_and_video_in_one_file(refused, command):
    refused("would overwrite", "name another file", save_latents=command.out)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_that_is_full_from_the_start(command, forwards):
    code, error = command.run(out="/dev/full")
    assert code == 2 and "transformer" not in forwards
    assert "cannot write the video /dev/full: No space left on device" in error and "Free disk space" in error


LIMITED = """
import resource, signal, sys
import streamrender_h3.cli as cli
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit on the size of files")
def test_disk_that_fills_up_during_the_render(command, inputs, tmp_path):
    """The first chunk gets through, the second does not; what was whole plays, and the render goes on when there is room."""
    assert command.run()[0] == 0
    undisturbed = command.printed.split("sha256 ")[1].strip()
    size = 131_000  # 30 frames are smaller, 34 are larger
    options = inputs.options(tmp_path / "o.mp4")
    words = [str(inputs.folder / "clip.mp4"), *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(size), "render", *words], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2, done.stderr
    assert f"cannot write the video {tmp_path / 'o.mp4'} after 30 frames" in done.stderr
    assert "Free disk space" in done.stderr and "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == [tmp_path / "o.mp4", tmp_path / "o.mp4.journal"]
    assert playable_frames(tmp_path / "o.mp4") == 30

    assert command.run(resume=True)[0] == 0
    assert "going on after 1 chunks, 30 frames" in command.printed and undisturbed in command.printed
    assert list(tmp_path.iterdir()) == [tmp_path / "o.mp4"] and playable_frames(tmp_path / "o.mp4") == FRAMES


def test_disk_that_is_full_when_the_latents_are_written(command, monkeypatch):
    def full(*args: Any, **options: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    target = command.folder / "l.safetensors"
    code, error = command.run(save_latents=target)
    assert code == 2 and f"the latents cannot be written to {target}" in error
    assert "No space left on device" in error and "Free disk space" in error
    assert playable_frames(command.out) == FRAMES


def test_decoder_that_raises_in_the_middle(command, monkeypatch):
    push, calls = TAEDecoderStream.push, []

    def failing(self: TAEDecoderStream, latent: torch.Tensor) -> torch.Tensor:
        calls.append(latent)
        if len(calls) == 2:
            raise RuntimeError("the decoder is out of memory")
        return push(self, latent)

    monkeypatch.setattr(TAEDecoderStream, "push", failing)
    code, error = command.run(save_latents=command.folder / "l.safetensors")
    assert (code, error) == (2, "error: the decoder is out of memory\n")
    assert playable_frames(command.out) == 30  # the first chunk
    assert sorted(command.folder.iterdir()) == [command.out, command.out.with_name("o.mp4.journal")]
    monkeypatch.undo()
    assert command.run(resume=True)[0] == 0 and "going on after 1 chunks" in command.printed
    assert list(command.folder.iterdir()) == [command.out] and playable_frames(command.out) == FRAMES


def test_interrupt_in_the_middle(command, monkeypatch):
    draw, calls = noise.Noise.draw, []

    def stopping(self: noise.Noise, *shape: int) -> torch.Tensor:
        calls.append(shape)
        if len(calls) == 5:  # the first number of the second chunk
            raise KeyboardInterrupt
        return draw(self, *shape)

    monkeypatch.setattr(noise.Noise, "draw", stopping)
    code, error = command.run()
    assert (code, error) == (130, "stopped\n")
    assert playable_frames(command.out) == 30


# ------------------------------------------------------------------------------------------------------ going on, reports


def interrupted(command: Command, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Render up to the second chunk, where the decoder fails."""
    push, calls = TAEDecoderStream.push, []

    def failing(self: TAEDecoderStream, latent: torch.Tensor) -> torch.Tensor:
        calls.append(latent)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return push(self, latent)

    with monkeypatch.context() as patch:
        patch.setattr(TAEDecoderStream, "push", failing)
        assert command.run(**changes)[0] == 2


def test_going_on_with_other_inputs_is_refused_by_name_and_does_no_harm(command, monkeypatch):
    interrupted(command, monkeypatch)
    before = command.out.read_bytes()
    code, error = command.run(resume=True, seed=5, steps=3)
    assert code == 2 and "is another one: steps, seed differ. Render with the same inputs, or without --resume" in error
    assert command.out.read_bytes() == before
    assert command.run(resume=True)[0] == 0 and "going on after 1 chunks" in command.printed


def test_without_resume_an_interrupted_render_starts_afresh(command, monkeypatch):
    interrupted(command, monkeypatch)
    assert command.run()[0] == 0 and "going on" not in command.printed
    assert list(command.folder.iterdir()) == [command.out]


def test_going_on_with_a_finished_render_does_nothing(command, forwards):
    report = command.folder / "r.json"
    assert command.run(resume=True, report=report)[0] == 0
    told = json.loads(report.read_text())
    assert told["complete"] and told["frames"] == FRAMES and told["fingerprint"]["seed"] == str(told["seed"])
    assert report.with_suffix(".png").stat().st_size > 1000
    forwards.clear()
    assert command.run(resume=True)[0] == 0 and "finished already" in command.printed
    assert "transformer" not in forwards
    assert command.run(resume=True, seed=5)[0] == 0 and "finished already" not in command.printed


def test_saved_latents_of_a_continued_render_are_those_of_an_undisturbed_one(command, monkeypatch):
    interrupted(command, monkeypatch)
    assert command.run(resume=True, save_latents=command.folder / "a.safetensors")[0] == 0
    assert command.run(save_latents=command.folder / "b.safetensors")[0] == 0
    made, expected = (load_file(command.folder / f"{name}.safetensors") for name in "ab")
    assert made.keys() == expected.keys() and all(torch.equal(made[name], expected[name]) for name in made)


@pytest.mark.parametrize(("name", "codec"), [("o.mov", "prores"), ("o.mkv", "ffv1")])
def test_the_name_of_the_file_chooses_the_format(command, name, codec):
    assert command.run(out=command.folder / name)[0] == 0
    with av.open(str(command.folder / name)) as container:
        assert container.streams.video[0].codec_context.name == codec
    assert playable_frames(command.folder / name) == FRAMES


def test_images_go_into_a_folder(command):
    assert command.run(out=command.folder / "images", format="png")[0] == 0
    assert len(list((command.folder / "images").glob("frame_*.png"))) == FRAMES
