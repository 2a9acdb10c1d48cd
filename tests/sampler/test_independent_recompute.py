"""A whole render, through the real command, against a second implementation that shares no code with the engine.

The command leaves the network's inputs and outputs in a file; `recompute.py` makes every chunk again from that file and
the checkpoint, with diffusers' transformer and rules written down apart from the engine's.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from streamrender_h3 import cli
from streamrender_h3.nodes.palette import RACING
from streamrender_h3.workflows.nano.weights import WeightFiles, write_weights

sys.path.insert(0, str(Path(__file__).parent))
from recompute import Saved, plans, recompute, time_grid
from recompute_network import Network
from recompute_rows import RULES, Rules

LIMIT = 1e-5  # measured: at most 7.4e-7; the smallest mistake below changes 7e-5
FRAMES = 75
UNITS = {"release": (2, 2, 2, 7), "teacher": (4, 5, 2, 7)}


@dataclass(frozen=True)
class Case:
    schedule: str
    attention: str
    steps: int
    seed: int = 20260830
    size: str = "128x96"
    reference: str = "96x64"

    def __str__(self) -> str:
        return "-".join(str(part) for part in vars(self).values())


PLAIN = Case("release", "prefix", 2)
CASES = [
    PLAIN,
    Case("release", "dense", 2, seed=7),
    Case("release", "prefix", 4, seed=7, size="96x160", reference="64x128"),
    Case("teacher", "dense", 4),
    Case("teacher", "prefix", 2, seed=7),
    Case("1,3,2,7", "prefix", 1, seed=7),
    Case("1,3,2,7", "dense", 2),
    Case("0,2,1,4", "prefix", 2),
    Case("6,2,2,4", "dense", 2, seed=7),
]


@dataclass(frozen=True)
class World:
    """A tiny checkpoint set, a drawn clip (a folder of PNGs), a picture and a prompt."""

    folder: Path
    files: WeightFiles
    model: Path

    def render(self, case: Case) -> Saved:
        out = self.folder / f"{case}.safetensors"
        inputs = {
            "picture": self.folder / "picture.png",
            "prompt-file": self.folder / "prompt.txt",
            "text-encoder": self.files.text_encoder,
            "model": self.model,
            "encoder": self.files.codec,
            "decoder": self.files.codec,
            "out": out.with_suffix(".mp4"),
            "save-latents": out,
            "device": "cpu",
            "dtype": "fp32",
            "size": case.size,
            "reference-size": case.reference,
            **{name: getattr(case, name) for name in ("schedule", "attention", "steps", "seed")},
        }
        typed = ["render", str(self.folder / "clip")]
        args = cli.parser("render").parse_args(
            typed + [part for name in inputs for part in (f"--{name}", str(inputs[name]))]
        )
        assert args.run(args) == 0
        return Saved.read(out)


def draw(frame: int) -> np.ndarray:
    """Sky, terrain and a narrowing road in three palette colours, a fourth for a car that moves across."""
    sky, terrain, road, car = (RACING.colours[i] for i in (11, 4, 1, 12))
    picture = np.empty((96, 128, 3), np.uint8)
    picture[:40], picture[40:] = sky, terrain
    for row in range(40, 96):
        picture[row, 64 - row // 2 : 64 + row // 2] = road
    picture[60:76, 20 + frame : 40 + frame] = car
    return picture


def sensitive(source: Path, path: Path) -> Path:
    """The checkpoint with the matrices of its blocks doubled: rows then depend on each other enough to see mistakes."""
    tensors = load_file(source)
    for name in tensors:
        if name.startswith("dit.blocks.") and tensors[name].ndim == 2:
            tensors[name] *= 2
    save_file(tensors, path, {"qkv_layout": "stacked"})
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the operations are too small to share, and slow when cores are busy
    folder = tmp_path_factory.mktemp("recompute")
    files = write_weights(folder / "weights", seed=5)
    (folder / "clip").mkdir()
    for frame in range(FRAMES):
        Image.fromarray(draw(frame)).save(folder / "clip" / f"{frame:03}.png")
    noise = np.random.default_rng(0).integers(-40, 40, (96, 128, 3))
    Image.fromarray(np.clip(draw(0).astype(int) + noise, 0, 255).astype(np.uint8)).save(folder / "picture.png")
    (folder / "prompt.txt").write_text("summary:\nA drive at dusk.", encoding="utf-8")
    yield World(folder, files, sensitive(files.model, folder / "h3.safetensors"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def network(world: World) -> Network:
    return Network(world.model)


@pytest.fixture(scope="module")
def rendered(world: World) -> Callable[[Case], Saved]:
    done: dict[Case, Saved] = {}

    def saved(case: Case) -> Saved:
        if case not in done:
            done[case] = world.render(case)
        return done[case]

    return saved


def errors(saved: Saved, network: Network, rules: Rules = RULES) -> Iterator[float]:
    """Relative error (2-norm) of every chunk, the larger of video and sound."""
    video, audio = 0, 0
    for new_video, new_audio in recompute(saved, network, rules):
        theirs = (
            saved.video[:, video : video + new_video.shape[1]],
            saved.audio[:, :, audio : audio + new_audio.shape[2]],
        )
        pairs = zip(theirs, (new_video, new_audio), strict=True)
        yield float(torch.stack([(a.double() - b.double()).norm() / b.double().norm() for a, b in pairs]).max())
        video, audio = video + new_video.shape[1], audio + new_audio.shape[2]
    assert (video, audio) == (saved.video.shape[1], saved.audio.shape[2])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_chunk_agrees_with_an_independent_implementation(case, rendered, network, record_property):
    found = list(errors(rendered(case), network))
    record_property("worst_relative_error", max(found))
    assert len(found) >= 6
    assert all(error <= LIMIT for error in found), found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_file_says_what_was_asked_and_holds_whole_chunks(case, rendered):
    saved = rendered(case)
    width, height, map_width, map_height = (int(n) // 16 for n in f"{case.size}x{case.reference}".split("x"))
    last = list(plans(saved.facts))[-1]
    assert saved.video.shape == (24, last.stop, height, width)
    assert saved.reference.shape == (24, last.stop, map_height, map_width)
    assert saved.picture.shape == (24, 1, height, width)
    assert set(saved.tags.tolist()) == {0, 1}
    assert len(saved.tags) == len(saved.text)
    facts = saved.facts
    units = UNITS.get(case.schedule) or tuple(int(n) for n in case.schedule.split(","))
    assert tuple(facts["schedule"][name] for name in ("sink", "window", "chunk", "bootstrap")) == units
    assert (facts["seed"], facts["attention"], facts["dtype"]) == (case.seed, case.attention, "fp32")
    assert facts["frames"] == FRAMES
    for name, shift in (("video", 6.0), ("audio", 1.5)):
        wanted = time_grid(case.steps, shift)[:-1]
        torch.testing.assert_close(torch.tensor(facts["grids"][name]), wanted, rtol=0, atol=6e-8)


MISTAKES = {
    "audio noise drawn before video noise": {"draws": ("audio", "video", "history", "reference")},
    "reference noise drawn before history noise": {"draws": ("video", "audio", "reference", "history")},
    "history noise drawn without the current rows": {"history_noise_covers_new": False},
    "sink not frozen": {"freeze_sink_at": None},
    "sink frozen at the bootstrap": {"freeze_sink_at": 0},
    "grid rounded to integers": {"integer_grid": True},
    "picture noise of another seed": {"picture_noise_of": "picture.png"},
    "reference on the target's axes": {"reference_axes_of": "video"},
    "sound on the reference's axes": {"audio_axis_of": "reference"},
    "clean rows at time 1": {"clean_time": 1.0},
    "text at the clean time": {"text_time_follows": "clean"},
    "picture rows of the text tagged as text": {"text_tags_as_saved": False},
    "positions that grow with the stream": {"stationary_positions": False},
    "prefix rows that see the moving rows": {"mask_prefix": False},
    "noise on the clean sound": {"renoise_audio_history": True},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_one_rule_is_seen(mistake, rendered, network):
    found = errors(rendered(PLAIN), network, replace(RULES, **MISTAKES[mistake]))
    assert any(error > LIMIT for error in found)


@pytest.mark.parametrize("rules", [RULES, Rules(mask_prefix=False)], ids=["prefix mask", "frozen sink"])
def test_dense_mode_has_neither_mask_nor_frozen_sink(rules, rendered, network):
    dense = rendered(CASES[1])
    as_prefix = replace(dense, facts=dense.facts | {"attention": "prefix"})
    assert any(error > LIMIT for error in errors(as_prefix, network, rules))
