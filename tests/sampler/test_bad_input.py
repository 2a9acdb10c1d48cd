"""Bad input on the real command line: one line that names the input and the remedy, before any model runs, exit code 2."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import streamrender_h3.cli as cli
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from streamrender_h3.nodes.codec import TAEDecoder, TAEEncoder
from streamrender_h3.nodes.codec.tae_stream import TAEDecoderStream
from streamrender_h3.nodes.look.qwen import QwenEncoder
from streamrender_h3.nodes.model import H3
from streamrender_h3.nodes.palette import RACING
from streamrender_h3.nodes.preview import playable_frames
from streamrender_h3.nodes.sampler import noise
from streamrender_h3.workflows.nano.weights import TINY, WeightFiles, write_weights

FRAMES = 34  # two chunks


@dataclass(frozen=True)
class Inputs:
    """Good inputs of a small render; every test spoils one of them."""

    folder: Path
    weights: WeightFiles

    def options(self, out: Path) -> dict[str, Any]:
        return {
            "picture": self.folder / "picture.png",
            "prompt-file": self.folder / "prompt.txt",
            "text-encoder": self.weights.text_encoder,
            "model": self.weights.model,
            "encoder": self.weights.codec,
            "decoder": self.weights.codec,
            "out": out,
            "size": "96x64",
            "reference-size": "64x64",
            "device": "cpu",
        }


def write_clip(path: Path, frames: int, size: tuple[int, int] = (64, 64)) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=24, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = size[1], size[0], "rgb24"
        for k in range(frames):
            picture = np.empty((*size, 3), np.uint8)
            picture[:30], picture[30:] = RACING.colours[11], RACING.colours[1]
            picture[40:52, k : k + 12] = RACING.colours[12]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode(None))
    return path


def write_sound(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", layout="mono")
        frame.rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_picture(path: Path, size: tuple[int, int] = (64, 96)) -> Path:
    from PIL import Image

    Image.fromarray(np.full((*size, 3), 90, np.uint8)).save(path)
    return path


@pytest.fixture(scope="session")
def inputs(tmp_path_factory) -> Inputs:
    folder = tmp_path_factory.mktemp("inputs")
    write_clip(folder / "clip.mp4", FRAMES)
    write_picture(folder / "picture.png")
    (folder / "prompt.txt").write_text("a road by the sea", encoding="utf-8")
    return Inputs(folder, write_weights(folder / "weights", seed=4))


@dataclass
class Command:
    """Runs `render` in this process with good inputs but for the changes; keeps what was printed."""

    inputs: Inputs
    folder: Path
    capture: pytest.CaptureFixture[str]
    printed: str = ""

    @property
    def out(self) -> Path:
        return self.folder / "o.mp4"

    def run(self, clip: Path | None = None, **changes: Any) -> tuple[int, str]:
        options = self.inputs.options(self.out) | {name.replace("_", "-"): value for name, value in changes.items()}
        words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]
        self.capture.readouterr()
        try:
            code = cli.main(["render", str(clip or self.inputs.folder / "clip.mp4"), *words])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        self.printed, error = self.capture.readouterr()
        return code, error


@pytest.fixture
def command(inputs, tmp_path, capsys) -> Command:
    before = signal.getsignal(signal.SIGTERM)
    yield Command(inputs, tmp_path, capsys)
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def forwards(monkeypatch) -> list[str]:
    """Names of the networks that ran: text encoder, video encoder, decoder, transformer."""
    ran: list[str] = []

    def watch(owner: type, method: str, name: str) -> None:
        original = getattr(owner, method)

        def watched(*args: Any, **kwargs: Any) -> Any:
            ran.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, method, watched)

    watch(QwenEncoder, "encode", "text encoder")
    watch(TAEEncoder, "encode_picture", "video encoder")
    watch(TAEEncoder, "stream", "video encoder")
    watch(TAEDecoder, "stream", "decoder")
    watch(H3, "forward", "transformer")
    watch(H3, "refine_text", "transformer")
    return ran


@pytest.fixture
def refused(command, forwards, tmp_path):
    """Runs the command, which must fail in one line with `words` before any network ran and leave nothing behind."""

    def refused(*words: str, ran: tuple[str, ...] = (), **changes: Any) -> str:
        before = sorted(tmp_path.rglob("*"))
        code, error = command.run(**changes)
        assert code == 2, error
        assert error.startswith("error: ") and error.endswith("\n") and error.count("\n") == 1
        assert "Traceback" not in error
        for word in words:
            assert word in error, f"{word!r} is not in: {error}"
        assert tuple(forwards) == ran
        assert sorted(tmp_path.rglob("*")) == before
        return error

    return refused


def test_the_good_inputs_are_good(command, forwards):
    code, error = command.run()
    assert (code, error) == (0, "")
    assert playable_frames(command.out) == FRAMES
    assert set(forwards) == {"text encoder", "video encoder", "decoder", "transformer"}  # the guard can fail


# ------------------------------------------------------------------------------------------------------------ the clip


def test_clip_that_is_an_empty_file(refused, tmp_path):
    path = tmp_path / "empty.mp4"
    path.write_bytes(b"")
    refused(f"'{path}' could not be read", "export it again", clip=path)


def test_clip_that_is_no_video(refused, tmp_path):
    path = tmp_path / "junk.mp4"
    path.write_bytes(b"\1\2\3" * 500)
    refused(f"'{path}' could not be read", "export it again", clip=path)


def test_clip_without_a_video_stream(refused, tmp_path):
    path = write_sound(tmp_path / "sound.mp4")
    refused(f"'{path}' has no video stream (it holds audio)", "Choose another file", clip=path)


def test_clip_that_is_cut(refused, tmp_path, inputs):
    path = tmp_path / "cut.mp4"
    path.write_bytes((inputs.folder / "clip.mp4").read_bytes()[:-400])
    refused(str(path), "again", clip=path)


def test_clip_too_small_to_read(refused, tmp_path):
    path = write_clip(tmp_path / "small.mp4", 2, (60, 64))
    refused(str(path), "64x60", "at least 64", clip=path)


def test_clip_folder_without_images(refused, tmp_path):
    (tmp_path / "frames").mkdir()
    refused("holds no images", "Choose the folder", clip=tmp_path / "frames")


# ------------------------------------------------------------------------------------------------------- missing files


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("clip", "Check the path"),
        ("picture", "Check the path"),
        ("prompt_file", "name a text file"),
        ("text_encoder", "Check the path"),
        ("model", "Check the path"),
        ("encoder", "Check the path"),
        ("decoder", "Check the path"),
        ("palette", "give the full path of a palette file"),
    ],
)
def test_a_file_that_is_not_there(refused, tmp_path, name, remedy):
    path = tmp_path / "absent.safetensors"
    refused(str(path), remedy, **{name: path})


@pytest.mark.parametrize("name", ["picture", "prompt_file", "text_encoder", "model", "encoder", "decoder", "palette"])
def test_a_folder_where_a_file_is_needed(refused, tmp_path, name):
    (tmp_path / "folder").mkdir()
    refused(str(tmp_path / "folder"), **{name: tmp_path / "folder"})


# ----------------------------------------------------------------------------------------- picture, prompt and palette


def test_picture_that_is_no_picture(refused, tmp_path):
    path = tmp_path / "picture.png"
    path.write_text("no picture")
    refused(f"{path} could not be read", "Save it again as PNG", picture=path)


def test_a_picture_of_wrong_aspect_is_stretched_and_that_is_said(command, tmp_path):
    code, error = command.run(picture=write_picture(tmp_path / "square.png", (64, 64)))
    assert code == 0, error
    assert "picture stretched from 64x64 to 96x64 (LANCZOS, nothing cropped)" in command.printed
    assert "50 % too wide. Crop it to 96:64 first" in command.printed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ("is empty", "write the prompt into it")),
        (b" \n\t\n", ("is empty", "write the prompt into it")),
        ("caf\u00e9".encode("latin-1"), ("is not UTF-8", "byte 4", "save it again as UTF-8")),
    ],
)
def test_prompt_file_without_text(refused, tmp_path, content, words):
    path = tmp_path / "prompt.txt"
    path.write_bytes(content)
    refused(str(path), *words, prompt_file=path)


def test_palette_that_is_unknown(refused):
    refused("Palette 'rallye' was not found", "racing", "Choose a built-in name", palette="rallye")


@pytest.mark.parametrize(
    "content", ["junk", "[1, 2]", '{"road": [300, 0, 0], "sky": [0, 0, 0]}', '{"road": [9, 9, 9]}']
)
def test_palette_file_that_is_wrong(refused, tmp_path, content):
    path = tmp_path / "palette.json"
    path.write_text(content)
    refused(str(path), palette=path)


# --------------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(("which", "kind"), [("codec", "TAE"), ("text_encoder", "Qwen3-VL")])
def test_model_that_is_something_else(refused, inputs, which, kind):
    path = getattr(inputs.weights, which)
    refused(str(path), f"it is a {kind} file", "pick the H3 transformer", model=path)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_codec_that_is_something_else(refused, inputs, name):
    refused(inputs.weights.model.name, "no video codec of MiniMax-H3", "Use taeh3", **{name: inputs.weights.model})


def test_text_encoder_that_is_something_else(refused, tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    refused(str(folder), "'llama'", "Choose the text_encoder folder", text_encoder=folder)


@pytest.mark.parametrize("damage", ["cut", "corrupt"])
@pytest.mark.parametrize("name", ["model", "encoder", "decoder"])
def test_damaged_safetensors(refused, tmp_path, inputs, name, damage):
    raw = (inputs.weights.model if name == "model" else inputs.weights.codec).read_bytes()
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(raw[:-10] if damage == "cut" else raw[:9] + b"!" + raw[10:])
    refused(path.name, "ownload", "again", **{name: path})


def test_damaged_text_encoder(refused, tmp_path, inputs):
    folder = tmp_path / "qwen"
    folder.mkdir()
    for file in inputs.weights.text_encoder.iterdir():
        raw = file.read_bytes()
        (folder / file.name).write_bytes(raw[:-10] if file.suffix == ".safetensors" else raw)
    refused(str(folder), "could not be read", "Copy it again", text_encoder=folder)


def rewritten(source: Path, target: Path, change: Any) -> Path:
    state = load_file(source)
    change(state)
    save_file(state, target)
    return target


def test_model_with_a_block_too_few_in_the_middle(refused, tmp_path, inputs):
    def drop(state: dict[str, torch.Tensor]) -> None:
        for name in [name for name in state if name.startswith("dit.blocks.1.")]:
            del state[name]

    path = rewritten(inputs.weights.model, tmp_path / "m.safetensors", drop)
    refused(str(path), "no number 1", model=path)


def test_model_with_a_missing_tensor(refused, tmp_path, inputs):
    name = "dit.blocks.1.mlp.fc2.weight"
    path = rewritten(inputs.weights.model, tmp_path / "m.safetensors", lambda state: state.pop(name))
    refused(str(path), name, model=path)


def test_model_of_another_text_width(refused, tmp_path):
    """The text encoder has to run to know its width here; the transformer does not."""
    other = write_weights(tmp_path / "other", 1, replace(TINY, text_dim=80)).model
    refused("96 wide", "text_dim 80", "Encode the prompt", ran=("text encoder",), model=other)


# ---------------------------------------------------------------------------------------------------- sizes and numbers


@pytest.mark.parametrize("size", ["100x64", "96x72", "32x64", "96x32", "0x0", "-96x64"])
def test_video_size_that_does_not_fit(refused, size):
    refused(f"output size {size}", "multiples of 32 and at least 64", "Use for example", size=size)


@pytest.mark.parametrize("size", ["100x64", "96x72", "32x64", "96x32", "0x0", "-96x64"])
def test_map_size_that_does_not_fit(refused, size):
    refused(f"reference size is {size}", "multiples of 32 and at least 64", "Set it to", reference_size=size)


@pytest.mark.parametrize("name", ["size", "reference_size"])
@pytest.mark.parametrize("text", ["big", "96", "96x64x3", "96.0x64"])
def test_size_that_is_no_size(refused, name, text):
    refused(f"{name.replace('_', ' ')} is {text!r}", "write width x height", **{name: text})


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("0,0,0,0", ("chunk is 0", "at least 1 is needed", "Set chunk to 2")),
        ("a,b", ("schedule is 'a,b'", "Write for example 2,2,2,7")),
        ("2,2,2", ("schedule is '2,2,2'", "Write for example 2,2,2,7")),
        ("-1,2,2,7", ("sink is -1", "at least 0 is needed")),
        ("2,-2,2,7", ("window is -2", "at least 0 is needed")),
        ("2,2,2,0", ("bootstrap is 0", "at least 1 is needed", "Set bootstrap to 7")),
        ("4,2,2,3", ("sink is 4 units but the bootstrap makes only 3", "Set sink to 3 or less, or use dense windows")),
    ],
)
def test_schedule_out_of_range(refused, schedule, words):
    refused(*words, schedule=schedule)


@pytest.mark.parametrize("steps", ["0", "-1", "x", "1.5", "201"])
def test_steps_out_of_range(refused, steps):
    refused("steps", steps, steps=steps)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_out_of_range(refused, seed):
    refused(f"seed is {seed}", "from 0 to 18446744073709551615", seed=seed)


def test_the_largest_seed_is_one(command):
    code, error = command.run(seed=2**64 - 1)
    assert code == 0, error


def test_cuda_without_a_device(refused):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    refused("no CUDA device", "use --device cpu", device="cuda")


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
