"""kill -9 at random moments of a long render in a real ComfyUI: the same prompt again ends like an undisturbed one.

2 kills by default, 20 with SRH3_LONG=1.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import os
import random
import shutil
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import comfy_server
import pytest
from bench import SAMPLER, Bench, add, key_of, write_clip, write_picture
from streamrender_h3.nodes.preview.finish import read_report
from streamrender_h3.nodes.sampler.journal import read_state
from streamrender_h3.nodes.schedule import RELEASE
from streamrender_h3.workflows import run as graphs
from streamrender_h3.workflows.nano.weights import WeightFiles, write_weights

KILLS = 20 if os.environ.get("SRH3_LONG") == "1" else 2
CHUNKS = 40
FRAMES = RELEASE.frames_through(CHUNKS - 1)
STEPS = 2
MOMENTS = random.Random(20260830)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs kill -9")


def digest(video: Path) -> str:
    """sha256 over every decoded frame."""
    import av

    found = hashlib.sha256()
    with av.open(str(video)) as container:
        for frame in container.decode(video=0):
            found.update(frame.to_ndarray(format="rgb24").tobytes())
    return found.hexdigest()


@dataclass
class Machine:
    """A ComfyUI folder in which servers die and start again."""

    comfyui: Path
    base: Path
    weights: WeightFiles
    prompt: dict[str, Any] = field(default_factory=dict)
    server: comfy_server.ComfyServer | None = None

    def start(self) -> comfy_server.ComfyServer:
        shutil.rmtree(self.base / "custom_nodes", ignore_errors=True)
        self.server = comfy_server.start(self.comfyui, self.base)
        return self.server

    def kill(self) -> None:
        """As the out-of-memory killer does it: no goodbye to anyone."""
        assert self.server is not None
        self.server.process.send_signal(signal.SIGKILL)
        self.server.process.wait()

    def prepare(self, workflow: dict[str, Any]) -> None:
        """The shipped graph with the tiny weights, a clip of 40 chunks and metrics on display."""
        assert self.server is not None
        folder = self.base / "input" / "long"
        folder.mkdir()
        write_clip(folder / "clip.mp4", FRAMES)
        write_picture(folder / "picture.png", (64, 96))
        prompt = graphs.to_api(workflow, self.server.get("/object_info"))
        changes = {
            "LoadVideo": {"file": "long/clip.mp4"},
            "LoadImage": {"image": "long/picture.png"},
            "SRH3_SemanticPaletteEncode": {"reference_width": 64, "reference_height": 64},
            "SRH3_Look": {"width": 96, "height": 64, "text_encoder": self.weights.text_encoder.name},
            "SRH3_LoadModel": {"model_name": self.weights.model.name},
            "SRH3_LoadEncoder": {"encoder_name": self.weights.codec.name},
            "SRH3_LoadDecoder": {"decoder_name": self.weights.codec.name},
        }
        for kind, inputs in changes.items():
            Bench.inputs_of(prompt, kind).update(inputs)
        add(prompt, "PreviewAny", source=[key_of(prompt, SAMPLER), 2])
        self.prompt = prompt

    def render(self, on_event: Any = None) -> tuple[dict[str, Any], Path]:
        """Run the prompt to its end: the metrics and the saved video."""
        assert self.server is not None
        prompt = copy.deepcopy(self.prompt)
        result = asyncio.run(graphs.run_prompt(self.server.url, prompt, on_event=on_event, timeout=300))
        result.raise_for_failure()
        metrics = json.loads(result.history["outputs"][key_of(prompt, "PreviewAny")]["text"][0])
        (video,) = (entry for entry in result.files() if entry["filename"].endswith(".mp4"))
        return metrics, self.base / "output" / video["subfolder"] / video["filename"]

    def render_until_killed(self, step: int, delay: float) -> int:
        """Start the prompt and kill the server `delay` seconds after its step `step`; how many steps it had told by then,
        0 when the prompt had come to its end.
        """
        told, ended = [0], []
        reached = threading.Event()

        def listen(event: graphs.Event) -> None:
            if event.kind == "progress" and event.data["node"] == key_of(self.prompt, SAMPLER):
                told[0] = max(told[0], int(event.data["value"]))
                if told[0] >= step:
                    reached.set()

        def run() -> None:
            try:
                ended.append(self.render(listen))
            except Exception as error:  # the connection dies with the server
                print(f"the client saw: {error}")

        thread = threading.Thread(target=run)
        thread.start()
        assert reached.wait(200)
        time.sleep(delay)
        self.kill()
        thread.join(60)
        return 0 if ended else told[0]

    def journals(self) -> list[Path]:
        folder = self.base / "user" / "streamrender_h3" / "journals"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def wait_for_no_journal(self) -> None:
        """A finished render's journal goes when the host is done with the prompt."""
        deadline = time.monotonic() + 20
        while self.journals():
            assert time.monotonic() < deadline, self.journals()
            time.sleep(0.1)

    def files(self) -> set[str]:
        """Everything the pack may have left anywhere, by name; what ComfyUI itself saves is not counted."""
        found = set()
        for folder in ("output", "temp", "user/streamrender_h3/journals"):
            found |= {str(p.relative_to(self.base)) for p in (self.base / folder).rglob("*") if p.is_file()}
        # neither the live player's, which stay as long as the server lives, nor pictures ComfyUI shows
        return {name for name in found if "/previews/" not in name and not name.startswith("temp/ComfyUI_")}


@pytest.fixture(scope="module")
def machine(comfyui, tmp_path_factory, shipped):
    base = tmp_path_factory.mktemp("machine")
    machine = Machine(comfyui, base, write_weights(base / "models", seed=4))
    machine.start()
    try:
        machine.prepare(shipped)
        yield machine
    finally:
        if machine.server is not None:
            machine.server.stop()


def test_killed_at_random_moments_every_render_ends_like_the_undisturbed_one(machine):
    times: list[float] = []

    def listen(event: graphs.Event) -> None:
        if event.kind == "progress" and event.data["node"] == key_of(machine.prompt, SAMPLER):
            times.append(time.monotonic())

    reference, video = machine.render(listen)
    assert reference["complete"] and reference["frames"] == FRAMES and reference["resumed_at_chunks"] == []
    frames, pace = digest(video), (times[-1] - times[0]) / len(times)
    machine.wait_for_no_journal()
    rendered_again = []
    for number in range(KILLS):
        # without effect here, but a server that has rendered the very same prompt would answer from its cache
        Bench.inputs_of(machine.prompt, SAMPLER)["text_scale"] = 2 + number / 10
        steps = machine.render_until_killed(MOMENTS.randint(1, CHUNKS * STEPS), MOMENTS.uniform(0, 3 * pace))
        left = [read_state(folder) for folder in machine.journals()]
        complete = int(left[0][1].tensors["index"]) if left and left[0] else 0
        begun = -(-steps // STEPS)
        rendered_again.append(max(0, begun - complete))

        print(f"kill {number + 1}: {steps} of {CHUNKS * STEPS} steps told, {complete} chunks complete", flush=True)
        machine.start()
        metrics, video = machine.render()
        assert metrics["latents_sha256"] == reference["latents_sha256"]
        assert digest(video) == frames
        assert metrics["resumed_at_chunks"] == ([complete] if complete else [])
        assert read_report(video)["complete"]
        machine.wait_for_no_journal()
        made = [name for name in machine.files() if not name.startswith("output/streamrender_h3/render")]
        assert sorted(Path(name).suffix for name in made) == [".f32", ".f32", ".mp4"], (
            made
        )  # of the prompt just finished
    assert max(rendered_again) <= 1, rendered_again
