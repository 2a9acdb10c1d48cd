"""`render --memory GB`: the plan is printed by term, blocks are streamed, and the latents are the same bit for bit."""

import re
import sys
from argparse import ArgumentParser

import pytest
from streamrender_h3.nodes.sampler import command
from streamrender_h3.nodes.sampler.memory_plan import MemoryRefusal


@pytest.fixture(scope="module")
def render(repository, tmp_path_factory):
    """Run the command on a clip of 31 frames with the example weights; returns nothing, the words are printed."""
    sys.path.insert(0, str(repository / "tests" / "host"))
    from bench import write_clip, write_picture

    folder, assets = tmp_path_factory.mktemp("capped"), repository / "workflows" / "assets"
    clip, picture = write_clip(folder / "clip.mp4", frames=31), write_picture(folder / "picture.png")
    (folder / "prompt.txt").write_text("subject_definitions:\na drive", encoding="utf-8")
    parser = ArgumentParser()
    command.arguments(parser)

    def render(name, *more):
        words = {
            "--picture": picture,
            "--prompt-file": folder / "prompt.txt",
            "--text-encoder": next((assets / "text_encoders").iterdir()),
            "--model": assets / "diffusion_models" / "h3_example.safetensors.index.json",
            "--encoder": assets / "vae_approx" / "taeh3_example.safetensors",
            "--decoder": assets / "vae_approx" / "taeh3_example.safetensors",
            "--out": folder / f"{name}.mp4",
            "--size": "128x128",
            "--reference-size": "64x64",
            "--device": "cpu",
        }
        typed = [str(clip), *(str(word) for pair in words.items() for word in pair), *more]
        assert command.run(parser.parse_args(typed)) == 0

    return render


def sha(text):
    return re.search(r"latents sha256 ([0-9a-f]{64})", text)[1]


@pytest.fixture(scope="module")
def free(render):
    """What an unlimited render printed."""
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as said:
        render("free")
    return said.getvalue()


def test_a_capped_render_streams_blocks_and_makes_the_same_latents(render, free, capsys):
    needed = float(re.search(r"memory plan: ([0-9.]+) MB on the device, no limit set", free)[1])
    assert "all blocks resident" in free and "text refiner and heads, weights" in free
    render("capped", "--memory", str((needed - 20) / 1000))
    said = capsys.readouterr().out
    assert re.search(r"[1-9]\d* of 12 blocks streamed from host memory, prefix bank: split", said)
    assert "two staging areas for blocks" in said
    assert sha(said) == sha(free)


def test_a_cap_that_nothing_fits_is_refused_before_anything_runs(render):
    with pytest.raises(MemoryRefusal, match=r"128x128 with .* needs .* 64x64|No size fits"):
        render("refused", "--memory", "0.01")


def test_fp8_weights_and_bank_render(render, free, capsys, monkeypatch):
    monkeypatch.setenv("SRH3_KV_DTYPE", "fp8")
    render("fp8", "--weights", "fp8")
    said = capsys.readouterr().out
    assert "(fp8 rows), weights" in said and "prefix bank: fp8" in said
    assert sha(said) != sha(free)
