"""Text states are kept by content: a hit loads no model, a broken entry is made again, nothing is half written."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from streamrender_h3.nodes.look import (
    LookCache,
    LookError,
    TextStates,
    cache,
    encode_cached,
    load_look,
    load_states,
    look_key,
    make_look,
    save_look,
)
from streamrender_h3.workflows.nano.qwen import write_qwen


def some_states(rows: int = 10, dtype: torch.dtype = torch.bfloat16) -> TextStates:
    tags = torch.tensor([1] * 2 + [0] * 4 + [1] * (rows - 6))
    return TextStates(torch.randn(rows, 32).to(dtype), tags, 6)


def same(one: TextStates, other: TextStates) -> bool:
    return (
        torch.equal(one.text, other.text)
        and one.text.dtype == other.text.dtype
        and torch.equal(one.tags, other.tags)
        and one.media_rows == other.media_rows
    )


def test_second_encoding_of_the_same_content_loads_no_model(
    qwen_folder: Path, picture: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = LookCache(tmp_path)
    first = encode_cached(looks, qwen_folder, "a wet road", picture)

    def refuse(*_args: object, **_options: object) -> TextStates:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(cache, "encode_text", refuse)
    assert same(first, encode_cached(looks, qwen_folder, "a wet road", picture))
    with pytest.raises(AssertionError, match="loaded"):
        encode_cached(looks, qwen_folder, "a dry road", picture)


def test_a_broken_entry_is_made_again_with_one_log_line(
    qwen_folder: Path, picture: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looks = LookCache(tmp_path)
    first = encode_cached(looks, qwen_folder, "a wet road", picture)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:100])
    with caplog.at_level(logging.WARNING, logger=cache.__name__):
        again = encode_cached(looks, qwen_folder, "a wet road", picture)
    assert same(first, again)
    assert [record.name for record in caplog.records] == [cache.__name__] and "broken" in caplog.text
    assert same(first, load_states(entry))


def test_the_key_follows_every_part_of_the_content(
    qwen_folder: Path, picture: np.ndarray, other_picture: np.ndarray, tmp_path: Path
) -> None:
    base = look_key(qwen_folder, "road", picture, torch.bfloat16)
    moved = shutil.copytree(qwen_folder, tmp_path / "moved")
    os.utime(moved / "model.safetensors", (1, 1))
    assert look_key(moved, "road", picture.copy(), torch.bfloat16) == base
    other_weights = write_qwen(tmp_path / "other", 8, hidden_text=64, layers=4)  # same header, same sizes
    changed_tokenizer = shutil.copytree(qwen_folder, tmp_path / "words")
    (changed_tokenizer / "tokenizer.json").write_text((qwen_folder / "tokenizer.json").read_text() + " ")
    variants = [
        look_key(qwen_folder, "roads", picture, torch.bfloat16),
        look_key(qwen_folder, "road", other_picture, torch.bfloat16),
        look_key(qwen_folder, "road", picture.reshape(320, 256, 3), torch.bfloat16),
        look_key(qwen_folder, "road", picture, torch.float32),
        look_key(other_weights, "road", picture, torch.bfloat16),
        look_key(changed_tokenizer, "road", picture, torch.bfloat16),
    ]
    assert len({base, *variants}) == 1 + len(variants)


def test_entries_are_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = LookCache(tmp_path)
    old = some_states()
    looks.save("k", old)

    def fail(*_args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    looks.save("k", some_states(12))  # costs a log line, not the render
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["k.safetensors"]
    kept = looks.load("k")
    assert kept is not None and same(kept, old)
    assert looks.load("unknown") is None


def test_the_longest_unused_entries_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEPT_ENTRIES", 2)
    looks = LookCache(tmp_path)
    for age, key in ((30, "a"), (20, "b")):
        looks.save(key, some_states())
        os.utime(looks.path(key), (os.path.getmtime(looks.path(key)) - age,) * 2)
    looks.load("a")
    looks.save("c", some_states())
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c"]


@pytest.mark.parametrize("form", ["latent", "rgb"])
def test_a_saved_look_comes_back_whole(form: str, tmp_path: Path) -> None:
    latent = torch.randn(24, 1, 4, 6) if form == "latent" else None
    rgb = torch.randint(0, 256, (64, 96, 3), dtype=torch.uint8) if form == "rgb" else None
    look = make_look(some_states(dtype=torch.float32), picture=latent, rgb=rgb, prompt="düster", note="as it is")
    save_look(tmp_path / "look.safetensors", look)
    back = load_look(tmp_path / "look.safetensors")
    assert same(look, back) and (back.prompt, back.note, back.size) == ("düster", "as it is", (64, 96))
    for name in ("picture", "rgb"):
        ours, theirs = getattr(look, name), getattr(back, name)
        assert (ours is None) == (theirs is None) and (ours is None or torch.equal(ours, theirs))


def test_files_that_are_no_look_are_refused(tmp_path: Path, qwen_folder: Path) -> None:
    looks = LookCache(tmp_path)
    looks.save("states", some_states())
    with pytest.raises(LookError, match="no picture"):
        load_look(looks.path("states"))
    with pytest.raises(LookError, match="is not a look"):
        load_look(qwen_folder / "model.safetensors")
    with pytest.raises(LookError, match="is not there"):
        load_look(tmp_path / "none.safetensors")
