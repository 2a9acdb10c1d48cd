"""Node classes with bad input, run in this process against ComfyUI's own modules: clear errors, nothing left behind."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streamrender_h3.nodes.codec.tae_stream import TAEDecoderStream
from streamrender_h3.nodes.model import H3
from streamrender_h3.nodes.palette import RACING
from streamrender_h3.nodes.preview import VideoFile, VideoFileError, playable_frames
from streamrender_h3.nodes.sampler import RenderError
from streamrender_h3.nodes.sampler.latent_file import LatentFile
from streamrender_h3.workflows.nano.weights import TINY, WeightFiles, write_weights

SIZE, MAP_SIZE = (64, 96), (64, 64)
FRAMES = 46  # three chunks
SAMPLER = {
    "seed": 1,
    "steps": 2,
    "guidance": "fitted (one call)",
    "text_scale": 1.5,
    "structure_scale": 3.0,
    "attention": "prefix bank",
}


@dataclass(frozen=True)
class Host:
    """ComfyUI's modules in this process, with folders of their own, and the pack's nodes."""

    base: Path
    weights: WeightFiles
    nodes: dict[str, Any]

    def run(self, node: str, **inputs: Any) -> Any:
        """What the node's outputs are, called as ComfyUI calls it."""
        kind = self.nodes[f"SRH3_{node}"]
        return kind.PREPARE_CLASS_CLONE({}).execute(**inputs).args

    @property
    def temporary(self) -> list[Path]:
        return [path for path in (self.base / "temp").rglob("*") if path.is_file()]

    @property
    def journals(self) -> Path:
        return self.base / "user" / "streamrender_h3" / "journals"

    @property
    def partials(self) -> list[Path]:
        return sorted((self.base / "output").rglob("*.mp4"))


@pytest.fixture(scope="module")
def host(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> Host:
    base = tmp_path_factory.mktemp("base")
    for folder in ("input", "output", "temp", "user", "models"):
        (base / folder).mkdir()
    weights = write_weights(base / "models", seed=4)
    sys.path.insert(0, str(comfyui))
    try:
        args = importlib.import_module("comfy.cli_args").args
        args.cpu, args.base_directory = True, str(base)
        folder_paths = importlib.import_module("folder_paths")
        for kind in ("input", "output", "temp", "user"):
            getattr(folder_paths, f"set_{kind}_directory")(str(base / kind))
        room = importlib.import_module("streamrender_h3.nodes.node")
    finally:
        sys.path.remove(str(comfyui))
    sys.path.append(str(comfyui))  # ComfyUI imports more of itself later
    return Host(base, weights, {node.GET_SCHEMA().node_id: node for node in room.NODES})


@pytest.fixture(autouse=True)
def clean(host: Host) -> None:
    for path in [*host.temporary, *host.partials]:
        path.unlink()
    shutil.rmtree(host.journals, ignore_errors=True)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every forward of the transformer."""
    original, ran = H3.forward, []

    def watched(self: H3, *args: Any, **kwargs: Any) -> Any:
        ran.append(1)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(H3, "forward", watched)
    return ran


def class_frames(count: int, size: tuple[int, int] = MAP_SIZE) -> torch.Tensor:
    """IMAGE batch: sky over road, a car that drives."""
    frames = np.empty((count, *size, 3), np.uint8)
    frames[:, :30], frames[:, 30:] = RACING.colours[11], RACING.colours[1]
    for k in range(count):
        frames[k, 40:52, k % 50 : k % 50 + 12] = RACING.colours[12]
    return torch.from_numpy(frames).float() / 255


PICTURE = torch.full((1, *SIZE, 3), 0.4)
PALETTE_ENCODE = {"palette": "racing", "reference_width": 64, "reference_height": 64, "fps": 24.0}
LOOK = {"picture": PICTURE, "prompt": "a road by the sea", "width": 96, "height": 64, "text_encoder": "none"}


def conditioning(rows: int = 9, width: int = TINY.text_dim, **extras: Any) -> list[list[Any]]:
    """CONDITIONING as native H3 nodes make it: four picture rows, then text."""
    text = torch.randn(1, rows, width, generator=torch.Generator().manual_seed(0))
    tags = torch.tensor([0 if 0 < k < 4 else 1 for k in range(rows)])
    return [[text, {"minimax_token_tags": tags, **extras}]]


@pytest.fixture(scope="module")
def inputs(host: Host) -> dict[str, Any]:
    """Good inputs of the sampler."""
    codec = host.weights.codec.name
    return {
        "model": host.run("LoadModel", model_name=host.weights.model.name, dtype="fp32", qkv_order="auto")[0],
        "clip": host.run("SemanticPaletteEncode", **PALETTE_ENCODE, images=class_frames(FRAMES))[0],
        "look": host.run("Look", **LOOK, positive=conditioning())[0],
        "schedule": host.run("StreamSchedule", preset="release (2, 2, 2, 7)", sink=0, window=0, chunk=1, bootstrap=1)[
            0
        ],
        "encoder": host.run("LoadEncoder", encoder_name=codec, dtype="auto")[0],
        "decoder": host.run("LoadDecoder", decoder_name=codec, dtype="auto")[0],
        **SAMPLER,
    }


def refused(host: Host, node: str, *words: str, kind: type[Exception] = ValueError, **inputs: Any) -> None:
    with pytest.raises(kind) as caught:
        host.run(node, **inputs)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


# ------------------------------------------------------------------------------------------------------------- loaders


@pytest.mark.parametrize(
    ("node", "name", "folder"),
    [
        ("LoadModel", "model_name", "diffusion_models"),
        ("LoadEncoder", "encoder_name", "vae_approx"),
        ("LoadDecoder", "decoder_name", "vae_approx"),
    ],
)
def test_a_model_file_that_is_gone_is_named_with_its_folder(host, node, name, folder):
    order = {"qkv_order": "auto"} if node == "LoadModel" else {}
    values = {name: "gone.safetensors", "dtype": "auto", **order}
    refused(host, node, "'gone.safetensors'", folder, "refresh the page", kind=FileNotFoundError, **values)


def test_unknown_choices_of_the_loaders_are_named(host):
    model, codec = host.weights.model.name, host.weights.codec.name
    refused(host, "LoadModel", "'fp8'", "choose dtype from", model_name=model, dtype="fp8", qkv_order="auto")
    refused(host, "LoadModel", "'mixed'", "qkv_order from", model_name=model, dtype="auto", qkv_order="mixed")
    refused(host, "LoadEncoder", "Load H3 Encoder", "'fp8'", "choose one of", encoder_name=codec, dtype="fp8")
    refused(host, "LoadDecoder", "Load H3 Decoder", "'fp8'", "choose one of", decoder_name=codec, dtype="fp8")


def test_files_of_another_kind_are_refused(host):
    model, codec = host.weights.model, host.weights.codec
    (host.base / "models" / "vae_approx" / "h3.safetensors").write_bytes(model.read_bytes())
    (host.base / "models" / "diffusion_models" / "tae.safetensors").write_bytes(codec.read_bytes())
    refused(host, "LoadModel", "TAE", "Load H3 Encoder", model_name="tae.safetensors", dtype="auto", qkv_order="auto")
    refused(host, "LoadEncoder", "no video codec of MiniMax-H3", encoder_name="h3.safetensors", dtype="auto")
    refused(host, "LoadDecoder", "no video codec of MiniMax-H3", decoder_name="h3.safetensors", dtype="auto")


# -------------------------------------------------------------------------------------------------------- palette encode


def test_exactly_one_of_video_and_images_is_taken(host):
    refused(host, "SemanticPaletteEncode", "neither 'video' nor 'images' is", "exactly one", **PALETTE_ENCODE)
    both = {"video": object(), "images": class_frames(1)}
    refused(host, "SemanticPaletteEncode", "both 'video' and 'images' are", "exactly one", **PALETTE_ENCODE, **both)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"palette": "rallye"}, ("'rallye'", "Choose a built-in name")),
        ({"reference_width": 100}, ("100x64", "multiples of 32", "Set it to")),
        ({"reference_height": 32}, ("64x32", "at least 64", "Set it to")),
        ({"fps": -1.0}, ("frame rate is -1.0", "Set fps to 24")),
        ({"images": class_frames(0)}, ("holds no frames", "Connect a clip that is not empty")),
        ({"images": class_frames(2, (64, 60))}, ("60x64", "at least 64")),
    ],
)
def test_a_clip_that_cannot_be_read_is_refused(host, changes, words):
    refused(host, "SemanticPaletteEncode", *words, **{**PALETTE_ENCODE, "images": class_frames(2), **changes})


def test_video_files_that_cannot_be_read_are_refused(host, tmp_path):
    from comfy_api.latest import InputImpl

    (tmp_path / "junk.mp4").write_bytes(b"\1\2\3" * 500)
    for name in ("junk.mp4", "absent.mp4"):
        video = InputImpl.VideoFromFile(str(tmp_path / name))
        refused(host, "SemanticPaletteEncode", name, **PALETTE_ENCODE, video=video)


def test_a_video_made_of_frames_keeps_its_labels_and_its_clock(host):
    from comfy_api.latest import InputImpl, Types

    parts = Types.VideoComponents(images=class_frames(10), audio=None, frame_rate=Fraction(12))
    video = InputImpl.VideoFromComponents(parts)
    clip, legend, report, _ = host.run("SemanticPaletteEncode", **PALETTE_ENCODE, video=video)
    assert clip.frames == 20 and "20 frames, 1 chunks" in report  # 12 fps becomes 24
    first = next(clip.open())
    assert {int(k) for k in np.unique(first)} == {1, 11, 12} and legend.shape[-1] == 3


# ------------------------------------------------------------------------------------------------------------------ look


def test_a_look_needs_a_text_source(host):
    refused(host, "Look", "no text source", "connect 'clip' or 'positive'", **LOOK)
    values = {**LOOK, "text_encoder": "gone"}
    refused(host, "Look", "'gone'", "text_encoders", "config.json", kind=FileNotFoundError, **values)


def test_an_empty_prompt_is_refused(host):
    refused(host, "Look", "prompt is empty", **{**LOOK, "prompt": " ", "text_encoder": host.weights.text_encoder.name})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 100}, ("output size 100x64", "multiples of 32", "Use for example")),
        ({"height": 32}, ("output size 96x32", "at least 64", "Use for example")),
        ({"picture": torch.zeros(2, *SIZE, 3)}, ("holds 2 images", "exactly one", "Image From Batch")),
        ({"picture": torch.zeros(1, *SIZE)}, ("shape", "Connect an IMAGE output")),
    ],
)
def test_a_picture_that_does_not_fit_is_refused(host, changes, words):
    refused(host, "Look", *words, **{**LOOK, "positive": conditioning(), **changes})


def test_a_picture_of_wrong_aspect_is_stretched_and_that_is_logged(host, caplog):
    with caplog.at_level(logging.INFO, "streamrender_h3"):
        look, picture = host.run("Look", **{**LOOK, "picture": torch.zeros(1, 64, 64, 3)}, positive=conditioning())
    assert look.size == SIZE and picture.shape == (1, *SIZE, 3)
    assert "stretched from 64x64 to 96x64" in caplog.text and "50 % too wide" in caplog.text


@pytest.mark.parametrize(
    ("positive", "words"),
    [
        (conditioning(minimax_keyframes=[object()]), ("keyframes", "ref_image_0")),
        (conditioning(minimax_refs=[{"kind": "video"}]), ("video reference", "Semantic Palette Encode")),
        (
            conditioning(minimax_refs=[{"kind": "video_audio"}]),
            ("video and audio reference", "Semantic Palette Encode"),
        ),
        (conditioning(minimax_refs=[{"kind": "image"}] * 2), ("2 reference pictures", "only ref_image_0")),
        (conditioning() * 2, ("2 entries", "exactly one")),
        ([], ("0 entries", "exactly one")),
        (conditioning(minimax_token_tags=torch.ones(3, dtype=torch.long)), ("3 modality tags for 9 text rows",)),
        (conditioning(minimax_token_tags=torch.full((9,), 2)), ("[2]", "Encode the prompt again")),
        ([[torch.zeros(2, 9, 96), {}]], ("a batch of one", "Encode a single prompt")),
    ],
)
def test_conditioning_that_does_not_fit_is_refused(host, positive, words):
    refused(host, "Look", *words, **LOOK, positive=positive)


def test_a_clip_of_another_type_is_refused(host):
    class OtherClip:
        def tokenize(self, text: str) -> None: ...

    refused(host, "Look", "does not take pictures", "type to 'minimax'", **LOOK, clip=OtherClip())


# -------------------------------------------------------------------------------------------------------------- schedule


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preset": "fast"}, ("preset 'fast'", "choose one of")),
        ({"chunk": 0}, ("chunk is 0", "at least 1", "Set chunk to 2")),
        ({"sink": -1}, ("sink is -1", "at least 0")),
        ({"bootstrap": 0}, ("bootstrap is 0", "Set bootstrap to 7")),
    ],
)
def test_a_schedule_out_of_range_is_refused(host, changes, words):
    values = {"preset": "custom", "sink": 2, "window": 2, "chunk": 2, "bootstrap": 7}
    refused(host, "StreamSchedule", *words, **{**values, **changes})


# --------------------------------------------------------------------------------------------------------------- sampler


def test_the_good_inputs_are_good(host, inputs, forwards):
    video, latent, metrics, report = host.run("StreamSampler", **inputs)
    assert playable_frames(Path(video.get_stream_source())) == FRAMES
    assert len(forwards) == 2 + 2 * (2 + 2) - 2  # bootstrap, then two chunks of two steps and two prefills
    assert host.partials == [] and '"frames": 46' in metrics and "samples" in latent
    assert report.shape[0] == 1 and report.shape[3] == 3 and not list(host.journals.iterdir())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": "sparse"}, ("attention 'sparse'", "choose one of")),
        ({"guidance": "magic"}, ("guidance 'magic'", "choose one of")),
        ({"guidance": "chain (three calls)", "text_scale": 21.0}, ("text scale is 21.0", "from 0 to 20")),
        ({"guidance": "chain (three calls)", "structure_scale": -1.0}, ("structure scale is -1.0", "from 0 to 20")),
        ({"steps": 0}, ("steps is 0", "from 1 to 200")),
        ({"seed": -1}, ("seed is -1", "from 0 to 18446744073709551615")),
        ({"seed": 2**64}, ("seed is 18446744073709551616", "from 0 to 18446744073709551615")),
    ],
)
def test_settings_out_of_range_are_refused_before_any_forward(host, inputs, forwards, changes, words):
    refused(host, "StreamSampler", *words, **{**inputs, **changes})
    assert not forwards and not host.temporary


def test_a_sink_larger_than_the_bootstrap_is_refused_with_the_bank(host, inputs, forwards):
    schedule = host.run("StreamSchedule", preset="custom", sink=4, window=2, chunk=2, bootstrap=3)[0]
    words = ("sink is 4 units but the bootstrap makes only 3", "dense windows")
    refused(host, "StreamSampler", *words, **{**inputs, "schedule": schedule})
    assert not forwards and not host.temporary


def test_text_of_another_width_is_refused_before_any_forward(host, inputs, forwards):
    look = host.run("Look", **LOOK, positive=conditioning(width=80))[0]
    refused(host, "StreamSampler", "80 wide", f"text_dim {TINY.text_dim}", **{**inputs, "look": look})
    assert not forwards and not host.temporary


def test_sizes_that_hide_a_remainder_are_refused_before_any_forward(host, inputs, forwards):
    odd = replace(inputs["look"], rgb=torch.zeros(70, 96, 3, dtype=torch.uint8))
    refused(host, "StreamSampler", "96x70", "multiples of 32", **{**inputs, "look": odd})
    assert not forwards and not host.temporary


@pytest.mark.parametrize("tags", [[0] * 9, [1] * 9], ids=["picture rows only", "no picture rows"])
def test_chain_guidance_works_without_caption_or_picture_rows(host, inputs, tags):
    positive = conditioning(minimax_token_tags=torch.tensor(tags))
    look = host.run("Look", **LOOK, positive=positive)[0]
    video, *_ = host.run("StreamSampler", **{**inputs, "look": look, "guidance": "chain (three calls)"})
    assert playable_frames(Path(video.get_stream_source())) == FRAMES


# ----------------------------------------------------------------------------------------------------- stopped half-way


def open_files(folder: Path) -> list[str]:
    """Paths below `folder` that this process holds open or mapped (Linux)."""
    links = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    return [link for link in links if link.startswith(str(folder))]


def stopped(host: Host, inputs: dict[str, Any], kind: type[BaseException], match: str | None = None) -> None:
    """Run the sampler, which must stop with `kind`; no temporary file, open file or thread may be left."""
    threads = threading.active_count()
    with pytest.raises(kind, match=match):
        host.run("StreamSampler", **inputs)
    assert host.temporary == []
    assert threading.active_count() == threads
    if Path("/proc/self/fd").exists():
        assert open_files(host.base / "temp") == []


def at_forward(monkeypatch: pytest.MonkeyPatch, number: int, deed: Any) -> None:
    original, calls = H3.forward, []

    def counting(self: H3, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            deed()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(H3, "forward", counting)


def test_cancel_keeps_what_is_done_as_a_playable_file(host, inputs, monkeypatch, caplog):
    from comfy import model_management

    at_forward(monkeypatch, 7, model_management.interrupt_current_processing)  # first step of the third chunk
    stopped(host, inputs, model_management.InterruptProcessingException)
    (partial,) = host.partials
    assert partial.parent.name == "streamrender_h3" and partial.name == "partial_00001.mp4"
    assert playable_frames(partial) == 39
    assert str(partial) in caplog.text

    monkeypatch.undo()
    video, *_ = host.run("StreamSampler", **inputs)  # the same again is not disturbed
    assert playable_frames(Path(video.get_stream_source())) == FRAMES


def test_cancel_before_the_first_chunk_leaves_nothing(host, inputs, monkeypatch):
    from comfy import model_management

    at_forward(monkeypatch, 1, model_management.interrupt_current_processing)
    stopped(host, inputs, model_management.InterruptProcessingException)
    assert host.partials == []


def test_partial_files_get_numbers_of_their_own(host, inputs, monkeypatch):
    from comfy import model_management

    for _ in range(2):
        at_forward(monkeypatch, 4, model_management.interrupt_current_processing)
        stopped(host, inputs, model_management.InterruptProcessingException)
        monkeypatch.undo()
    assert [path.name for path in host.partials] == ["partial_00001.mp4", "partial_00002.mp4"]


def test_a_decoder_that_raises_keeps_what_is_done(host, inputs, monkeypatch):
    push, calls = TAEDecoderStream.push, []

    def failing(self: TAEDecoderStream, latents: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the decoder is out of memory")
        return push(self, latents)

    monkeypatch.setattr(TAEDecoderStream, "push", failing)
    stopped(host, inputs, RuntimeError, "the decoder is out of memory")
    assert [playable_frames(path) for path in host.partials] == [30]
    monkeypatch.undo()
    assert resumed(host, inputs) == [1]


def resumed(host: Host, inputs: dict[str, Any]) -> list[int]:
    """Run the sampler, which must end like an undisturbed one; the chunks at which it went on. No journal is left."""
    video, _, metrics, _ = host.run("StreamSampler", **inputs)
    undisturbed = json.loads(host.run("StreamSampler", **inputs, resume=False)[2])
    assert playable_frames(Path(video.get_stream_source())) == FRAMES
    assert json.loads(metrics)["latents_sha256"] == undisturbed["latents_sha256"]
    assert undisturbed["resumed_at_chunks"] == [] and not list(host.journals.iterdir())
    return json.loads(metrics)["resumed_at_chunks"]


def test_a_full_disk_keeps_what_is_done(host, inputs, monkeypatch):
    add, calls = VideoFile.add, []

    def full(self: VideoFile, frames: torch.Tensor) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise VideoFileError("cannot write the video: No space left on device")
        add(self, frames)

    monkeypatch.setattr(VideoFile, "add", full)
    stopped(host, inputs, VideoFileError, "No space left on device")
    assert [playable_frames(path) for path in host.partials] == [39]
    monkeypatch.undo()
    assert resumed(host, inputs) == [2]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 90 MB, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=90m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all room left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\1" * 2**16):
            pass
    return filler


def test_a_disk_that_really_runs_full_costs_one_chunk_and_a_try_before_it_is_freed_costs_nothing(
    host, inputs, monkeypatch, small_disk
):
    import folder_paths

    with monkeypatch.context() as patch:
        patch.setattr(folder_paths, "get_user_directory", lambda: str(small_disk / "user"))
        with patch.context() as later:
            at_forward(later, 7, lambda: fill(small_disk))  # first step of the third chunk
            stopped(host, inputs, VideoFileError, "has 0 MB free and the next chunk of .* Free disk space")
        assert [playable_frames(path) for path in host.partials] == [39]
        stopped(host, inputs, VideoFileError, r"has 0 MB free and a render of 46 frames needs about")
        (small_disk / "filler").unlink()
        metrics = json.loads(host.run("StreamSampler", **inputs)[2])
        assert metrics["resumed_at_chunks"] == [2] and metrics["complete"]
    assert (
        metrics["latents_sha256"] == json.loads(host.run("StreamSampler", **inputs, resume=False)[2])["latents_sha256"]
    )


def test_a_disk_too_full_for_latents_is_told_with_the_folder(host, inputs, monkeypatch):
    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    opened = LatentFile.__init__

    def full(self: LatentFile, video: Path, audio: Path) -> None:
        opened(self, video, audio)
        for file in self._files:
            file.close()
        self._files = (Full(), Full())

    monkeypatch.setattr(LatentFile, "__init__", full)
    stopped(
        host, inputs, OSError, rf"cannot write the latents to {host.base}.*No space left on device; free disk space"
    )


def test_a_model_that_does_not_fit_into_memory_leaves_no_files(host, inputs, monkeypatch):
    from comfy import model_management

    def no_memory(*args: Any, **options: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model_management, "load_models_gpu", no_memory)
    stopped(host, inputs, RuntimeError, "out of memory")
    assert host.partials == []


def test_an_output_folder_that_cannot_be_written_does_not_hide_the_error(host, inputs, monkeypatch, caplog):
    import folder_paths

    (host.base / "file").write_text("x")
    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(host.base / "file" / "output"))
    at_forward(monkeypatch, 4, lambda: (_ for _ in ()).throw(RenderError("stop")))
    with pytest.raises(RenderError, match="stop"):
        host.run("StreamSampler", **inputs)
    (left,) = host.journals.rglob("*.mp4")
    assert playable_frames(left) == 30 and str(left) in caplog.text and not host.temporary
    monkeypatch.undo()
    assert resumed(host, inputs) == [1]


def test_a_user_folder_that_cannot_be_written_costs_only_the_journal(host, inputs, monkeypatch, caplog):
    import folder_paths

    (host.base / "file").write_text("x")
    monkeypatch.setattr(folder_paths, "get_user_directory", lambda: str(host.base / "file" / "user"))
    video, *_ = host.run("StreamSampler", **inputs)
    assert playable_frames(Path(video.get_stream_source())) == FRAMES and "keeps no journal" in caplog.text
    at_forward(monkeypatch, 7, lambda: (_ for _ in ()).throw(RenderError("stop")))
    for path in host.temporary:
        path.unlink()
    stopped(host, inputs, RenderError, "stop")
    assert [playable_frames(path) for path in host.partials] == [39]


def test_an_output_folder_deleted_on_the_way_is_made_again(host, inputs, monkeypatch):
    def stop() -> None:
        shutil.rmtree(host.base / "output")
        raise RenderError("stop")

    at_forward(monkeypatch, 7, stop)
    stopped(host, inputs, RenderError, "stop")
    assert [playable_frames(path) for path in host.partials] == [39]
    monkeypatch.undo()
    assert resumed(host, inputs) == [2]


def test_a_journal_deleted_on_the_way_is_told_and_the_next_try_starts_afresh(host, inputs, monkeypatch):
    at_forward(monkeypatch, 7, lambda: shutil.rmtree(host.journals))
    stopped(host, inputs, VideoFileError, "the file was deleted or replaced while it was written")
    monkeypatch.undo()
    assert resumed(host, inputs) == []


@pytest.mark.parametrize("part", ["progress", "preview"])
def test_a_display_that_fails_does_not_stop_the_render(host, inputs, monkeypatch, caplog, part):
    from streamrender_h3.nodes import host as pack_host
    from streamrender_h3.nodes.preview.live import Preview

    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("no display")

    if part == "progress":
        monkeypatch.setattr(pack_host, "progress", lambda total, node: broken)
    else:
        monkeypatch.setattr(Preview, "_take", broken)
    video, *_ = host.run("StreamSampler", **inputs)
    assert playable_frames(Path(video.get_stream_source())) == FRAMES
    assert caplog.text.count("no display") == (part == "progress")


def test_a_video_encoder_that_is_missing_is_named_before_any_forward(host, inputs, monkeypatch, forwards):
    import av

    real = av.codec.Codec

    def missing(name: str, mode: str) -> Any:
        if name == "libx265":
            raise ValueError(name)
        return real(name, mode)

    monkeypatch.setattr(av.codec, "Codec", missing)
    words = r"H.265 \(MP4\) cannot be written: this PyAV has no encoder libx265. Choose another video format"
    stopped(host, {**inputs, "video_format": "H.265 (MP4)"}, VideoFileError, words)
    assert not forwards and not host.partials
    monkeypatch.undo()
    video, *_ = host.run("StreamSampler", **{**inputs, "video_format": "H.265 (MP4)"})
    assert playable_frames(Path(video.get_stream_source())) == FRAMES


def test_a_video_encoder_that_goes_missing_on_the_way_costs_nothing_of_what_is_done(host, inputs, monkeypatch):
    import av

    h265 = {**inputs, "video_format": "H.265 (MP4)"}
    with monkeypatch.context() as patch:
        at_forward(patch, 7, lambda: (_ for _ in ()).throw(RenderError("stop")))
        stopped(host, h265, RenderError, "stop")
    with monkeypatch.context() as patch:
        patch.setattr(av.codec, "Codec", lambda name, mode: (_ for _ in ()).throw(ValueError(name)))
        stopped(host, h265, VideoFileError, "has no encoder libx265")
    assert [playable_frames(path) for path in host.partials] == [39]
    assert resumed(host, h265) == [2]


def test_an_unknown_video_format_is_named(host, inputs, forwards):
    refused(host, "StreamSampler", "'GIF'", "choose one of", kind=VideoFileError, **{**inputs, "video_format": "GIF"})
    assert not forwards and not host.temporary


@pytest.mark.parametrize("name", ["ProRes 4444 (MOV)", "FFV1 lossless (MKV)", "PNG images"])
def test_other_formats_are_written_beside_the_video(host, inputs, name):
    host.run("StreamSampler", **inputs, video_format=name)
    (made,) = (host.base / "output" / "streamrender_h3").iterdir()
    assert made.stem == "render_00001"
    assert (len(list(made.iterdir())) if made.is_dir() else playable_frames(made)) == FRAMES
    shutil.rmtree(made) if made.is_dir() else made.unlink()


def test_a_saved_video_of_the_very_same_render_is_taken_and_any_other_is_not(host, inputs, forwards):
    from comfy_execution.graph import ExecutionBlocker

    named = {**inputs, "name": "night/bend_noon", "save": True, "video_format": "FFV1 lossless (MKV)"}
    first = Path(host.run("StreamSampler", **named)[0].get_stream_source())
    folder = host.base / "output" / "streamrender_h3" / "night"
    assert first == folder / "bend_noon_00001.mp4" and playable_frames(first) == FRAMES
    spent = len(forwards)
    video, latent, metrics, _ = host.run("StreamSampler", **named)
    assert len(forwards) == spent and Path(video.get_stream_source()) == first
    assert isinstance(latent, ExecutionBlocker) and json.loads(metrics)["complete"]
    (folder / "bend_noon_00001.mkv").unlink()  # not all of its formats are there any more
    host.run("StreamSampler", **named)
    host.run("StreamSampler", **{**named, "seed": 2})
    assert len(forwards) == 3 * spent
    numbers = {1: [".mp4"], 2: [".mkv", ".mp4"], 3: [".mkv", ".mp4"]}
    left = [f"bend_noon_{number:05}{suffix}" for number, suffixes in numbers.items() for suffix in suffixes]
    assert sorted(path.name for path in folder.iterdir()) == left
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a/", "a:b"])
def test_a_name_that_leaves_the_output_folder_is_refused_before_any_forward(host, inputs, forwards, name):
    refused(host, "StreamSampler", repr(name), "a file name is needed", **{**inputs, "name": name})
    assert not forwards and not host.temporary


def test_temporary_files_go_when_the_host_lets_go_of_the_outputs(host, inputs):
    import gc

    outputs = host.run("StreamSampler", **inputs)
    assert sorted(path.suffix for path in host.temporary) == [".f32", ".f32", ".mp4"]
    del outputs
    gc.collect()
    assert host.temporary == []


LOOKS = {"looks": [{"name": "noon", "prompt": "high sun"}]}


@pytest.mark.parametrize(
    ("looks", "changes", "words"),
    [
        (LOOKS, {"folder": "none"}, ("folder", "none does not exist")),
        (LOOKS, {"pattern": "*.mov"}, ("no clip that fits '*.mov'",)),
        (LOOKS, {"seeds": " "}, ("seeds is ' '", "at least one number")),
        (LOOKS, {"seeds": "one"}, ("the seed 'one'",)),
        (LOOKS, {}, ("look 'noon' has no picture", "connect 'picture'")),
        ({"looks": [{"name": "noon"}]}, {}, ("look 'noon' has no prompt", "connect 'prompt'")),
        ({"looks": [{"name": "noon", "picture": "none.png"}]}, {}, ("none.png, which is not there",)),
    ],
)
def test_a_list_that_cannot_be_made_is_refused_as_a_whole(host, looks, changes, words):
    folder = host.base / "input" / "clips"
    folder.mkdir(exist_ok=True)
    (folder / "bend.mp4").write_bytes(b"x")
    (folder / "looks.json").write_text(json.dumps(looks))
    values = {"folder": "clips", "pattern": "*", "looks": "clips/looks.json", "seeds": "1", **changes}
    refused(host, "ClipList", *words, **values)


def test_a_list_has_an_entry_per_clip_look_and_seed_and_takes_what_looks_leave_out_from_its_inputs(host):
    folder = host.base / "input" / "clips"
    folder.mkdir(exist_ok=True)
    (folder / "bend.mp4").write_bytes(b"x")
    (folder / "looks.json").write_text(json.dumps({"looks": [{"name": "noon"}, {"name": "dusk", "prompt": "low sun"}]}))
    values = {"folder": "clips", "pattern": "*", "looks": "clips/looks.json", "seeds": "1-2"}
    paths, pictures, prompts, seeds, names = host.run("ClipList", **values, picture=PICTURE, prompt="as given")
    assert paths == [str(folder / "bend.mp4")] * 4 and seeds == [1, 2, 1, 2]
    assert prompts == ["as given"] * 2 + ["low sun"] * 2 and all(picture is PICTURE for picture in pictures)
    assert names == ["bend_noon_1", "bend_noon_2", "bend_dusk_1", "bend_dusk_2"]


def test_without_resume_nothing_is_kept_but_the_frames(host, inputs, monkeypatch):
    at_forward(monkeypatch, 7, lambda: (_ for _ in ()).throw(RenderError("stop")))
    stopped(host, {**inputs, "resume": False}, RenderError, "stop")
    assert [playable_frames(path) for path in host.partials] == [39] and not host.journals.exists()


def test_after_a_failure_the_prefix_bank_is_let_go_although_the_error_is_kept(host, inputs, monkeypatch):
    """ComfyUI holds the error of the last prompt, and an error holds the variables of every function on its way."""
    import gc
    import weakref

    from streamrender_h3.nodes.sampler.bank import PrefixBank

    banks = []
    store = PrefixBank.store

    def watched(self: PrefixBank, *args: Any) -> Any:
        bank = store(self, *args)
        banks.append(weakref.ref(bank))
        return bank

    monkeypatch.setattr(PrefixBank, "store", watched)
    at_forward(monkeypatch, 7, lambda: (_ for _ in ()).throw(RenderError("stop")))
    with pytest.raises(RenderError, match="stop") as kept:
        host.run("StreamSampler", **inputs)
    gc.collect()
    assert kept.value.__traceback__ is not None
    assert len(banks) == 2 and all(bank() is None for bank in banks)
