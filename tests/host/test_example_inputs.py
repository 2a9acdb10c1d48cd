"""The example files in the input folder follow the pack, and files that a person changed are left alone."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from streamrender_h3.nodes.host import examples


@pytest.fixture
def provide(monkeypatch, tmp_path):
    """Acts as the start of a host with a pack whose example files hold this; the folder where they land."""
    assets = tmp_path / "assets"
    assets.mkdir()
    monkeypatch.setattr(examples, "ASSETS", assets)
    monkeypatch.setattr(examples, "EXAMPLE_INPUTS", ("clip.mp4", "picture.jpg"))
    host = SimpleNamespace(get_input_directory=lambda: str(tmp_path / "input"))
    monkeypatch.setitem(sys.modules, "folder_paths", host)

    def start(clip: str, picture: str):
        (assets / "clip.mp4").write_text(clip)
        (assets / "picture.jpg").write_text(picture)
        examples.provide_example_inputs()
        return tmp_path / "input" / "streamrender_h3"

    return start


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != examples.PROVIDED}


def test_an_update_replaces_our_older_files_and_brings_back_missing_ones(provide):
    folder = provide("clip 1", "picture 1")
    assert content(folder) == {"clip.mp4": "clip 1", "picture.jpg": "picture 1"}
    (folder / "clip.mp4").unlink()
    provide("clip 2", "picture 2")
    assert content(folder) == {"clip.mp4": "clip 2", "picture.jpg": "picture 2"}


def test_a_file_that_a_person_changed_is_never_touched(provide):
    folder = provide("clip 1", "picture 1")
    (folder / "picture.jpg").write_text("mine")
    for version in (2, 3):
        provide(f"clip {version}", f"picture {version}")
        assert content(folder) == {"clip.mp4": f"clip {version}", "picture.jpg": "mine"}


def test_files_from_before_the_record_are_ours_only_when_they_are_the_same(provide):
    folder = provide("clip 1", "picture 1")
    (folder / examples.PROVIDED).unlink()
    (folder / "picture.jpg").write_text("who knows")
    provide("clip 1", "picture 1")
    assert json.loads((folder / examples.PROVIDED).read_text()).keys() == {"clip.mp4"}
    provide("clip 2", "picture 2")
    assert content(folder) == {"clip.mp4": "clip 2", "picture.jpg": "who knows"}


def test_a_folder_that_cannot_be_written_costs_a_warning_and_no_more(provide, tmp_path, caplog):
    (tmp_path / "input").write_text("a file")
    provide("clip 1", "picture 1")
    assert "could not be copied" in caplog.text


@pytest.mark.parametrize("junk", ["{", "[]"])
def test_a_record_that_cannot_be_read_counts_as_none(provide, junk):
    folder = provide("clip 1", "picture 1")
    (folder / examples.PROVIDED).write_text(junk)
    assert content(provide("clip 2", "picture 2")) == {"clip.mp4": "clip 1", "picture.jpg": "picture 1"}
    assert folder.is_dir()
