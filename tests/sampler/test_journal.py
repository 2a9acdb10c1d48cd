"""The journal: what is complete survives whatever happens, what is not is cut off, and nothing else is ever continued."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from streamrender_h3.nodes.preview import VideoFileError
from streamrender_h3.nodes.sampler import journal as journals
from streamrender_h3.nodes.sampler.filelock import FileLock
from streamrender_h3.nodes.sampler.fingerprint import differences, fingerprint_id
from streamrender_h3.nodes.sampler.journal import JournalError, open_at, open_in, read_state, sweep

PARTS = {"clip": "c", "look": "l", "seed": "1"}
TENSORS = {"index": torch.tensor(3), "noise": torch.arange(5, dtype=torch.uint8)}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def temporary(tmp_path):
    return lambda: tmp_path / "temporary"


def committed(store, temporary, parts=PARTS, chunk=3):
    journal = open_in(store, parts, temporary)
    journal.commit(TENSORS, {"chunk": chunk})
    journal.close(finished=False)
    return journal.folder


def test_what_was_committed_is_found_again(store, temporary):
    folder = committed(store, temporary)
    again = open_in(store, PARTS, temporary)
    assert again.folder == folder and again.entry.facts == {"chunk": 3}
    assert all(torch.equal(again.entry.tensors[name], tensor) for name, tensor in TENSORS.items())
    again.close(finished=True)
    assert list(store.iterdir()) == []


def test_a_journal_without_a_chunk_leaves_nothing(store, temporary):
    open_in(store, PARTS, temporary).close(finished=False)
    assert list(store.iterdir()) == []


def test_a_state_that_was_cut_counts_as_none(store, temporary, caplog):
    folder = committed(store, temporary)
    state = folder / journals.STATE
    state.write_bytes(state.read_bytes()[:-9])
    (folder / "video_0.mp4").write_bytes(b"frames")
    again = open_in(store, PARTS, temporary)
    assert again.entry is None and "cannot be read" in caplog.text
    assert [path.name for path in folder.iterdir()] == [journals.LOCK]
    again.close(finished=True)


def test_a_commit_that_fails_leaves_the_chunk_before(store, temporary, monkeypatch):
    folder = committed(store, temporary)
    again = open_in(store, PARTS, temporary)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VideoFileError, match=r"journal in .*No space left on device.*goes on from here"):
        again.commit(TENSORS, {"chunk": 4})
    assert read_state(folder)[1].facts == {"chunk": 3}
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"seed": "2"}, "seed"), ({"look": "m", "clip": "d"}, "clip, look"), ({"versions": "new"}, "versions")],
)
def test_a_journal_of_another_render_is_refused_by_name(tmp_path, changes, words):
    journal = open_at(tmp_path / "v.mp4.journal", PARTS, resume=False)
    journal.commit(TENSORS, {})
    journal.close(finished=False)
    with pytest.raises(JournalError, match=rf"another one: {words} differ"):
        open_at(tmp_path / "v.mp4.journal", {**PARTS, **changes}, resume=True)
    same = open_at(tmp_path / "v.mp4.journal", PARTS, resume=True)  # the refusal did no harm
    assert same.entry is not None
    same.close(finished=False)
    afresh = open_at(tmp_path / "v.mp4.journal", {**PARTS, **changes}, resume=False)
    assert afresh.entry is None and not (afresh.folder / journals.STATE).exists()
    afresh.close(finished=True)


def test_in_the_store_another_render_starts_afresh_and_says_why(store, temporary, caplog):
    committed(store, temporary)
    with caplog.at_level("INFO", "streamrender_h3"):
        other = open_in(store, {**PARTS, "look": "other", "seed": "9"}, temporary)
    assert other.entry is None and "because of another look, seed; starting afresh" in caplog.text
    assert caplog.text.count("\n") == 1
    other.close(finished=False)
    assert open_in(store, PARTS, temporary).entry is not None  # the first one is still there


def test_a_finished_render_whose_folder_still_lies_there_is_no_near_miss(store, temporary, caplog):
    journal = open_in(store, PARTS, temporary)
    journal.commit(TENSORS, {"chunk": 3})
    journal.finish()
    with caplog.at_level("INFO", "streamrender_h3"):
        open_in(store, {**PARTS, "seed": "9"}, temporary).close(finished=True)
    assert caplog.text == "" and open_in(store, PARTS, temporary).entry is not None  # it could still be taken up


def test_differences_are_named_in_order():
    assert differences(PARTS, {**PARTS, "seed": "2", "extra": "x"}) == ["seed", "extra"]
    assert differences({**PARTS, "old": "x"}, PARTS) == ["old"] and differences(PARTS, dict(PARTS)) == []
    assert fingerprint_id(PARTS) == fingerprint_id(dict(reversed(PARTS.items())))
    assert fingerprint_id(PARTS) != fingerprint_id({**PARTS, "seed": "2"})


def test_the_same_render_twice_at_once_does_not_collide(store, temporary, caplog):
    first = open_in(store, PARTS, temporary)
    second = open_in(store, PARTS, temporary)
    assert first.durable and not second.durable and first.folder != second.folder
    assert "keeps no journal" in caplog.text
    with pytest.raises(JournalError, match="another render writes to"):
        open_at(first.folder, PARTS, resume=True)
    second.close(finished=False)
    first.commit(TENSORS, {})
    first.close(finished=False)
    assert open_in(store, PARTS, temporary).entry is not None


def test_a_lock_goes_with_its_holder(tmp_path):
    held = FileLock.take(tmp_path / "lock")
    assert held and FileLock.take(tmp_path / "lock") is None
    held.release()
    again = FileLock.take(tmp_path / "lock")
    assert again
    again.release()


def test_a_store_that_cannot_be_written_costs_the_journal_and_not_the_render(tmp_path, temporary, caplog):
    (tmp_path / "file").write_text("x")
    journal = open_in(tmp_path / "file" / "store", PARTS, temporary)
    assert not journal.durable and journal.folder.is_dir() and "an interruption loses it" in caplog.text
    journal.commit(TENSORS, {})
    journal.close(finished=False)
    assert not journal.folder.exists()


def aged(folder: Path, age: float) -> Path:
    for path in (folder / journals.STATE, folder):
        if path.exists():
            os.utime(path, (time.time() - age, time.time() - age))
    return folder


def test_journals_are_bounded_in_number_and_bytes_and_the_longest_unused_go_first(store, temporary):
    made = [aged(committed(store, temporary, {**PARTS, "seed": str(k)}), 1000 * (9 - k)) for k in range(6)]
    sweep(store, keep="", limit=5)
    assert sorted(store.iterdir()) == sorted(made[2:])  # one place is for the render that asks
    (made[5] / "video_0.mp4").write_bytes(b"x" * 50_000)
    (made[4] / "video_0.mp4").write_bytes(b"x" * 50_000)
    sweep(store, keep="", limit=5, size=80_000)
    assert list(store.iterdir()) == [made[5]]


def test_what_nobody_can_continue_is_swept_and_what_is_in_use_is_not(store, temporary):
    stale, young = store / "stale", store / "young"
    stale.mkdir()
    (stale / "video_0.mp4").write_bytes(b"x")
    aged(stale, 3600)
    young.mkdir()
    in_use = open_in(store, {**PARTS, "seed": "5"}, temporary)
    aged(in_use.folder, 7200)
    sweep(store, keep="", limit=1)
    assert sorted(store.iterdir()) == sorted([young, in_use.folder])
    in_use.close(finished=True)


def test_a_state_of_another_format_is_not_used(store, temporary, monkeypatch):
    monkeypatch.setattr(journals, "FORMAT", 0)
    folder = committed(store, temporary)
    monkeypatch.undo()
    assert read_state(folder) is None and open_in(store, PARTS, temporary).entry is None


def test_facts_are_plain_json(store, temporary):
    folder = committed(store, temporary)
    parts, entry = read_state(folder)
    assert parts == PARTS and json.loads(json.dumps(entry.facts)) == {"chunk": 3}
