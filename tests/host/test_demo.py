"""`cli.py demo` from its environment on: the shipped graph, the shipped clip, a video with every frame."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request

import demo
import pytest
from bench import frames_of
from streamrender_h3.nodes.preview import read_report


@pytest.fixture
def kept(capfd):
    """Ends the server that `--keep` left, whatever the test did."""
    lines = []
    yield lines
    for found in re.findall(r"kill (\d+)", "".join(lines) + capfd.readouterr().out):
        os.kill(int(found), signal.SIGTERM)


def test_the_demo_renders_the_shipped_workflow_and_keeps_its_server(
    comfyui, repository, shipped, tmp_path, capfd, kept
):
    assert demo.run(repository, tmp_path / "out", keep=True) == 0
    out = capfd.readouterr().out
    kept.append(out)
    (video,) = (tmp_path / "out").iterdir()
    assert f"Video: {video}" in out

    frames, fps, size = frames_of(video)
    clip = next(node["widgets_values"][0] for node in shipped["nodes"] if node["type"] == "LoadVideo")
    asked = next(node["widgets_values"][1:3] for node in shipped["nodes"] if node["type"] == "SRH3_Look")
    assert frames == frames_of(repository / "workflows" / "assets" / os.path.basename(clip))[0]
    assert fps == 24
    assert list(size) == asked
    report = read_report(video)  # inside the file that Save Video wrote
    assert report["complete"] and report["suspects"] == [], report["suspects"]

    url = re.search(r"keeps running at (http://[\d.:]+)", out).group(1)
    with urllib.request.urlopen(url + "/object_info/SRH3_StreamSampler") as answer:
        assert "SRH3_StreamSampler" in json.load(answer)
    os.kill(int(re.search(r"kill (\d+)", out).group(1)), signal.SIGTERM)  # what the printed command sends
    kept.clear()
    for _ in range(200):
        try:
            urllib.request.urlopen(url + "/system_stats", timeout=5).close()
        except (urllib.error.URLError, OSError):
            return
        time.sleep(0.1)
    pytest.fail("the server did not stop")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(repository, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"cannot be written .*--out"):
        demo.run(repository, tmp_path / "file" / "out", keep=False)
