"""What watching costs: the example model renders with the preview on and off in turn. Minutes, so only with SRH3_LONG=1."""

from __future__ import annotations

import os
import statistics
import time

import pytest
from streamrender_h3.nodes import host
from streamrender_h3.nodes.codec import load_decoder, load_encoder
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.look import encode_text, load_picture, make_look, prepare_picture, with_picture_latent
from streamrender_h3.nodes.palette import RACING, clip_from_video
from streamrender_h3.nodes.preview import live
from streamrender_h3.nodes.sampler.grids import TimeGrid
from streamrender_h3.nodes.sampler.render import Settings, render
from streamrender_h3.nodes.schedule import RELEASE

SIZE, REFERENCE, STEPS, RUNS = (256, 448), (160, 288), 2, 3


@pytest.mark.skipif(os.environ.get("SRH3_LONG") != "1", reason="takes minutes; set SRH3_LONG=1")
@pytest.mark.timeout(3000)
def test_the_preview_costs_less_than_three_percent(repository, monkeypatch, tmp_path):
    """Wall and processor time as medians of runs that alternate, which need a quiet machine, and the share of the processor
    time that the preview's own thread takes, which does not and is what is asserted.
    """
    import torch

    assets = repository / "workflows" / "assets"
    monkeypatch.setattr(host, "client_id", lambda: "client")
    monkeypatch.setattr(host, "prompt_id", lambda: "prompt")
    monkeypatch.setattr(host, "send", lambda *rest: None)
    monkeypatch.setattr(host, "preview_folder", lambda: tmp_path / "ring")
    monkeypatch.setattr(host, "memory_use", lambda: {"used": 0, "total": 1, "device": "cpu"})

    device, dtype = torch.device("cpu"), torch.float32
    codec = assets / "vae_approx" / "taeh3_example.safetensors"
    encoder, decoder = (load(codec, device=device, dtype=dtype) for load in (load_encoder, load_decoder))
    picture = prepare_picture(load_picture(assets / "picture.jpg"), SIZE)
    prompt = (assets / "prompt.txt").read_text(encoding="utf-8")
    states = encode_text(assets / "text_encoders" / "qwen3vl_example", prompt, picture.rgb, device=device, dtype=dtype)
    look = with_picture_latent(make_look(states, rgb=torch.from_numpy(picture.rgb.copy()), prompt=prompt), encoder)
    model = load_h3(assets / "diffusion_models" / "h3_example.safetensors.index.json", dtype=dtype, device=device)
    clip = clip_from_video(assets / "semantic_clip.mp4", RACING, REFERENCE)
    settings = Settings(RELEASE, TimeGrid.trailing(STEPS))

    shares, publish = [], live.Preview._publish

    def timed(self: live.Preview) -> None:
        publish(self)
        shares.append(time.thread_time())

    monkeypatch.setattr(live.Preview, "_publish", timed)

    def run(watched: bool) -> tuple[float, float]:
        monkeypatch.setenv(live.SWITCH, "1" if watched else "0")
        processor, wall = time.process_time(), time.perf_counter()
        with live.open_preview("9", None, clip.frames, SIZE, RELEASE, STEPS) as preview:
            for chunk in render(clip, look, model, encoder, decoder, settings):
                preview.chunk(chunk)
        wall = time.perf_counter() - wall
        if watched:
            assert preview.wait(60)
            assert len(preview.session.chunks) == RELEASE.chunks_for(clip.frames)
            assert not any(chunk.dropped for chunk in preview.session.chunks)
        return time.process_time() - processor, wall

    run(True)  # warm up
    runs = [(run(False), run(True)) for _ in range(RUNS)]
    for name, number in (("processor", 0), ("wall", 1)):
        off, on = (statistics.median(pair[which][number] for pair in runs) for which in (0, 1))
        each = ", ".join(f"{pair[1][number] / pair[0][number] - 1:+.2%}" for pair in runs)
        print(f"{name}: off {off:.1f} s, on {on:.1f} s, ratio of medians {on / off - 1:+.2%} (pairs: {each})")
    share = statistics.median(shares) / statistics.median(pair[0][0] for pair in runs)
    print(f"the preview's thread: {share:.2%} of the processor time of the render")
    assert share < 0.03
