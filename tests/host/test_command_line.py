"""`python3 cli.py`: plan, inspect, tables and every complaint as one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def command(repository, tmp_path):
    """Runs cli.py in an empty folder, without the help of an installed pack."""

    def run(*arguments, **variables):
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SRH3_DEBUG")}
        return subprocess.run(
            [sys.executable, str(repository / "cli.py"), *map(str, arguments)],
            cwd=tmp_path,
            env={**clean, **variables},
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def assets(repository):
    return repository / "workflows" / "assets"


@pytest.fixture
def example_model(assets):
    return next((assets / "diffusion_models").glob("*.safetensors"))


def test_plan_prints_the_golden_values(command, repository):
    golden = json.loads((repository / "tests" / "golden" / "stream_plan.json").read_text())
    for config in golden["configs"]:
        policy = config["policy"]
        if (
            not policy["merge_single_frame_units"]
            or policy["audio_right_lookahead_latents"]
            or "sink_switch_at" in policy
        ):
            continue
        bootstrap = policy["bootstrap_size"] or policy["window_size"] + policy["chunk_size"]
        sizes = ("--sink", policy["sink_size"], "--window", policy["window_size"], "--chunk", policy["chunk_size"])
        done = command("plan", *sizes, "--bootstrap", bootstrap, "--chunks", 12, "--text-rows", 64, "--json")
        assert done.returncode == 0, done.stderr
        for mine, theirs in zip(json.loads(done.stdout), config["chunks"][:12], strict=True):
            counts = {name: theirs["rows"][name] for name in ("prefix_count", "moving_count")}
            assert mine == {name: theirs[name] for name in mine if name not in counts} | counts, config["name"]


def test_plan_without_options_is_the_released_schedule(command):
    done = command("plan", "--json")
    assert json.loads(done.stdout)[0]["frames"] == [0, 30]
    table = command("plan").stdout.splitlines()
    assert len(table) == 13 and "prefix rows" in table[0]


def test_inspect_describes_the_example_model(command, example_model):
    report = json.loads(command("inspect", example_model, "--json").stdout)
    assert report["missing"] == [] and report["unexpected"] == []
    assert "full" in command("inspect", example_model).stdout


def test_tables_writes_every_modulation_of_the_grid(command, example_model, tmp_path):
    from safetensors import safe_open

    done = command("tables", example_model, "--steps", 2, "--out", "t.safetensors")
    assert done.returncode == 0, done.stderr
    with safe_open(tmp_path / "t.safetensors", "pt") as file:
        assert set(file.keys()) == {"adaln.times", "adaln.blocks", "adaln.final"}
        assert file.get_tensor("adaln.times").tolist() == pytest.approx([0.0, 1 / 7, 0.4, 0.999])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "nothing.safetensors"], "nothing.safetensors"),
        (["tables", "nothing.safetensors", "--out", "x"], "nothing.safetensors"),
        (["tables", "x", "--steps", "0", "--out", "y"], "'0' is not a number of 1 or more"),
        (["plan", "--chunk", "0"], "chunk is 0"),
        (["plan", "--chunks", "0"], "chunks"),
        (["plan", "--what"], "--what"),
        (["render", "clip.mp4"], "--picture"),
        (["queue", "nothing.json", "--clips", ".", "--looks", "x"], "nothing.json cannot be read"),
        (["queue", "nothing.json", "--clips", "."], "--looks"),
        (["nonsense"], "nonsense"),
        ([], "VERB"),
    ],
)
def test_a_mistake_is_one_line_with_exit_code_2(command, arguments, words):
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert words in done.stderr
    assert done.stdout == ""


def test_the_traceback_is_there_when_asked_for(command):
    done = command("plan", "--chunk", "0", SRH3_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("verb", ["demo", "test", "render", "plan", "inspect", "tables", "queue"])
def test_every_verb_explains_itself(command, verb):
    done = command(verb, "--help")
    assert done.returncode == 0
    assert verb in done.stdout and "show this help" in done.stdout


def test_the_command_needs_only_the_standard_library(repository, tmp_path):
    """A bare Python, here one without site-packages, gets the plan and is told where torch is missing."""
    for arguments, code, words in ((["plan"], 0, "prefix rows"), (["inspect", "x"], 2, "no torch")):
        copy = tmp_path / "bare"
        if not copy.exists():
            copy.mkdir()
            shutil.copyfile(repository / "cli.py", copy / "cli.py")
            for name in ("__init__.py", "nodes"):
                (copy / name).symlink_to(repository / name)
        start = f"runpy.run_path({str(copy / 'cli.py')!r}, run_name='__main__')"
        runner = f"import runpy, sys; sys.argv = ['cli.py', *{arguments!r}]; {start}"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", runner], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert words in done.stdout + done.stderr


def test_an_archive_without_tests_says_that_demo_needs_a_checkout(repository, tmp_path):
    (tmp_path / "cli.py").write_bytes((repository / "cli.py").read_bytes())
    done = subprocess.run([sys.executable, str(tmp_path / "cli.py"), "demo"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "checkout" in done.stderr
