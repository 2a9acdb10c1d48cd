"""Semantic Palette Encode in ComfyUI: verdict before any work, card on the node, JSON, trims, folders, palettes, mapping."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bench import Bench, add, key_of, write_clip
from PIL import Image
from streamrender_h3.nodes.palette import RACING, ClipError, clip_from_video

NODE = "SRH3_SemanticPaletteEncode"
VALUES = {"palette": "racing", "reference_width": 64, "reference_height": 64, "fps": 24.0}
OUTPUTS = ["clip", "legend", "report", "json"]


class InProcess:
    """The pack's nodes on ComfyUI's own modules in this process."""

    def __init__(self, base: Path, nodes: dict[str, Any]) -> None:
        self.base, self.nodes = base, nodes

    def output(self, node: str = NODE, **inputs: Any) -> Any:
        values = {**VALUES, **inputs} if node == NODE else inputs
        return self.nodes[node].PREPARE_CLASS_CLONE({}).execute(**values)

    def clip(self, **inputs: Any) -> Any:
        return self.output(**inputs).args[0]

    def report(self, **inputs: Any) -> dict[str, Any]:
        return json.loads(self.output(**inputs).args[3])


@pytest.fixture(scope="module")
def host(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    base = tmp_path_factory.mktemp("palette")
    sys.path.insert(0, str(comfyui))
    try:
        args = importlib.import_module("comfy.cli_args").args
        args.cpu, args.base_directory = True, str(base)
        folder_paths = importlib.import_module("folder_paths")
        for kind in ("input", "output", "temp", "user"):
            (base / kind).mkdir(exist_ok=True)
            getattr(folder_paths, f"set_{kind}_directory")(str(base / kind))
        room = importlib.import_module("streamrender_h3.nodes.node")
    finally:
        sys.path.remove(str(comfyui))
    sys.path.append(str(comfyui))  # ComfyUI imports more of itself later
    return InProcess(base, {node.GET_SCHEMA().node_id: node for node in room.NODES})


def stripes(count: int = 4, size: tuple[int, int] = (96, 128)) -> np.ndarray:
    """uint8 [count, H, W, 3]: every class as a stripe, moving."""
    ids = (np.arange(size[1]) // 9 + np.arange(count)[:, None]) % 14
    return RACING.colours[np.repeat(ids[:, None], size[0], axis=1)]


def as_images(frames: np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(frames) if dtype == torch.uint8 else (torch.from_numpy(frames).float() / 255).to(dtype)


def frames_of(clip: Any) -> np.ndarray:
    return np.stack(list(clip.open()))


# --- the verdict ------------------------------------------------------------------------------------------------------


def test_a_good_clip_gives_clip_legend_report_and_json(host):
    result = host.output(images=as_images(stripes(31)))
    clip, legend, report, text = result.args
    facts = json.loads(text)
    assert clip.frames == 31
    assert legend.shape[0] == 1 and legend.shape[-1] == 3
    assert report.startswith("verdict: good")
    assert "31 frames, 2 chunks, padding 8, 1.29 s" in report
    assert (facts["verdict"], facts["frames"], facts["chunks"]["chunks"], facts["chunks"]["padding"]) == (
        "good",
        31,
        2,
        8,
    )
    assert facts["chunks"]["frames"] == [[0, 30], [30, 39]]
    assert len(facts["per_frame"]["doubtful"]) == 31


def test_the_card_on_the_node_shows_verdict_and_every_class_colour(host):
    (shown,) = host.output(images=as_images(stripes())).ui.as_dict()["images"]
    with Image.open(host.base / "temp" / shown["subfolder"] / shown["filename"]) as picture:
        card = np.asarray(picture.convert("RGB"))
    assert (card[4, 4] == (60, 160, 80)).all()  # green for good
    for entry in RACING.entries:
        assert (card == entry.rgb).all(-1).any(), entry.name


def test_a_clip_that_cannot_be_rendered_stops_here_with_the_remedy(host):
    noise = np.random.default_rng(0).integers(0, 256, (2, 96, 128, 3), dtype=np.uint8)
    with pytest.raises(ClipError, match=r"cannot be rendered: the verdict is stop.*doubtful pixels.*racing.*is needed"):
        host.output(images=as_images(noise))
    black = np.zeros((2, 96, 128, 3), np.uint8)
    with pytest.raises(ClipError, match=r"nothing labeled.*label pass was rendered"):
        host.output(images=as_images(black))
    assert host.report(images=as_images(black), strict=False)["verdict"] == "stop"


def test_a_swapped_clip_is_repaired_unless_repair_is_off(host):
    swapped = np.ascontiguousarray(stripes()[..., ::-1])
    assert host.report(images=as_images(swapped))["causes"] == ["channel swap"]
    assert np.array_equal(
        frames_of(host.clip(images=as_images(swapped))), frames_of(host.clip(images=as_images(stripes())))
    )
    with pytest.raises(ClipError, match="channel swap"):
        host.output(images=as_images(swapped), repair="off")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32])
def test_image_batches_of_any_type_agree(host, dtype):
    expected = frames_of(host.clip(images=as_images(stripes())))
    assert np.array_equal(frames_of(host.clip(images=as_images(stripes(), dtype))), expected)


# --- where clips come from --------------------------------------------------------------------------------------------


def test_a_folder_and_a_file_are_read_by_path_and_noticed_when_they_change(host):
    folder = host.base / "input" / "frames"
    folder.mkdir()
    for k, frame in enumerate(stripes(3)):
        Image.fromarray(frame).save(folder / f"{k}.png")
    assert host.clip(path="frames").frames == 3
    assert host.clip(path=str(folder), fps=12.0).frames == 6
    node = host.nodes[NODE]
    before = node.fingerprint_inputs(palette="racing", path="frames")
    assert node.fingerprint_inputs(palette="racing", path="frames") == before
    Image.fromarray(stripes(1)[0]).save(folder / "3.png")
    assert node.fingerprint_inputs(palette="racing", path="frames") != before
    with pytest.raises(ClipError, match=r"absent.*does not exist.*Check the path"):
        host.output(path="absent")
    with pytest.raises(ValueError, match="both 'images' and 'path'"):
        host.output(path="frames", images=as_images(stripes()))


def test_fps_0_is_an_error(host):
    with pytest.raises(ClipError, match=r"frame rate is 0.*Set fps to 24"):
        host.output(images=as_images(stripes()), fps=0.0)


def test_a_palette_file_in_the_input_folder_can_be_chosen(host):
    folder = host.base / "input" / "streamrender_h3" / "palettes"
    folder.mkdir(parents=True)
    rows = [
        {"name": name, "rgb": rgb, "as": target}
        for name, rgb, target in (("a", [10, 10, 10], "road"), ("b", [250, 250, 250], "sky"))
    ]
    (folder / "mine.json").write_text(json.dumps({"version": 1, "name": "mine", "target": "racing", "classes": rows}))
    options = next(one for one in host.nodes[NODE].define_schema().inputs if one.id == "palette").options
    assert "mine.json" in options and "racing" in options
    frames = np.full((2, 96, 128, 3), 10, np.uint8)
    frames[:, :, 60:] = 250
    assert set(np.unique(frames_of(host.clip(images=as_images(frames), palette="mine.json")))) == {1, 11}


def test_a_trimmed_video_is_only_its_part(host, tmp_path):
    """Hosts that trim keep the whole file and say which part of it is meant."""
    from comfy_api.latest import InputImpl
    from streamrender_h3.nodes.palette.node import trim_of

    path = str(write_clip(tmp_path / "a.mp4", 48))
    window = SimpleNamespace(get_active_trim_window=lambda: (0.5, 1.0))
    assert trim_of(window) == (0.5, 1.0)
    assert trim_of(InputImpl.VideoFromFile(path)) == (0.0, 0.0)
    try:
        video = InputImpl.VideoFromFile(path, start_time=0.5, duration=1.0)
    except TypeError:
        pytest.skip("this ComfyUI does not trim videos")
    clip = host.clip(video=video)
    assert clip.frames == 24
    whole = frames_of(clip_from_video(path, reference_size=(64, 64)))
    assert np.array_equal(frames_of(clip), whole[12:36])
    behind = InputImpl.VideoFromFile(path, start_time=-0.5)
    assert np.array_equal(frames_of(host.clip(video=behind)), whole[36:])
    with pytest.raises(ClipError, match="Change the trim"):
        host.output(video=InputImpl.VideoFromFile(path, start_time=30.0, duration=1.0))


# --- mapping ----------------------------------------------------------------------------------------------------------


def look(host: InProcess, **inputs: Any) -> torch.Tensor:
    """The prepared picture [H, W, 3] of H3 Look."""
    states = torch.zeros(1, 9, 16)
    tags = torch.tensor([1, 0, 0, 0, 1, 1, 1, 1, 1])
    values = {"prompt": "a road", "width": 128, "height": 64, "text_encoder": "none"}
    return host.output("SRH3_Look", **values, positive=[[states, {"minimax_token_tags": tags}]], **inputs).args[1][0]


@pytest.mark.parametrize("mapping", ["fit", "fill", "stretch"])
def test_picture_and_map_have_the_same_bands(host, mapping):
    clip = host.clip(images=as_images(np.maximum(stripes(2, (96, 96)), 1)), mapping=mapping, reference_height=96)
    picture = look(host, picture=torch.ones(1, 80, 80, 3), semantic_clip=clip)
    (frame, *_) = clip.in_video((64, 128)).reference_frames()
    bands = (picture == 0).all(-1).float().mean()
    assert bands == (0.5 if mapping == "fit" else 0)
    if mapping == "fit":
        assert (frame[:, :, :16] == 0).all() and (frame[:, :, -16:] == 0).all()
        assert torch.equal(look(host, picture=torch.ones(1, 80, 80, 3), mapping="fit"), picture)


def test_new_widgets_stand_behind_the_old_ones_and_all_are_explained(host):
    inputs = host.nodes[NODE].define_schema().inputs
    assert [one.id for one in inputs] == [
        *("palette", "reference_width", "reference_height", "fps", "video", "images"),
        *("repair", "mapping", "path", "strict"),
    ]
    assert all(one.tooltip for one in inputs)
    assert [one.id for one in host.nodes[NODE].define_schema().outputs] == OUTPUTS
    assert {one.id: one.default for one in inputs if one.id in ("repair", "mapping")} == {
        "repair": "auto",
        "mapping": "fit",
    }
    assert [one.id for one in host.nodes["SRH3_Look"].define_schema().inputs][-2:] == ["mapping", "semantic_clip"]


# --- in a server ------------------------------------------------------------------------------------------------------


def test_the_server_shows_the_card_and_stops_before_the_sampler(bench: Bench, tmp_path):
    prompt = bench.prompt(5)
    add(prompt, "PreviewAny", source=[key_of(prompt, NODE), 3])
    wanted = {key: node for key, node in prompt.items() if node["class_type"] in ("LoadVideo", NODE)}
    shown = max(key for key in prompt if key.startswith("added"))
    result = bench.run({**wanted, shown: prompt[shown]})
    result.raise_for_failure()
    assert json.loads(result.history["outputs"][shown]["text"][0])["verdict"] == "usable"
    assert result.history["outputs"][key_of(prompt, NODE)]["images"]

    broken = bench.server.base / "input" / "short" / "noise.mp4"
    frames = np.random.default_rng(0).integers(0, 256, (4, 128, 128, 3), dtype=np.uint8)
    import av

    with av.open(str(broken), "w") as container:
        stream = container.add_stream("libx264rgb", rate=24, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = 128, 128, "rgb24"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode(None))
    prompt = bench.prompt(6)
    Bench.inputs_of(prompt, "LoadVideo")["file"] = "short/noise.mp4"
    result = bench.run(prompt)
    with pytest.raises(Exception, match="the verdict is stop"):
        result.raise_for_failure()
