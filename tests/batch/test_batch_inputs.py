"""What a batch is made of: the looks file, clips and seeds, all checked before anything is queued."""

from __future__ import annotations

import json

import pytest
from streamrender_h3.nodes.batch import (
    BatchError,
    all_items,
    find_clips,
    parse_seeds,
    plain_name,
    read_looks,
    require_files,
)
from streamrender_h3.nodes.batch.client import clip_hash


def looks_file(tmp_path, content):
    path = tmp_path / "looks.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_look_has_words_and_a_picture_of_its_clip(tmp_path):
    (tmp_path / "dusk.txt").write_text(" words of dusk \n", encoding="utf-8")
    entries = [
        {"name": "noon", "prompt": "high sun", "picture": "noon.png"},
        {"name": "dusk", "prompt_file": "dusk.txt", "picture": "pictures/{clip}_dusk.png"},
    ]
    noon, dusk = read_looks(looks_file(tmp_path, {"looks": entries}))
    assert (noon.words("bend"), dusk.words("bend")) == ("high sun", "words of dusk")
    assert noon.picture_path("bend") == tmp_path / "noon.png"
    assert dusk.picture_path("a/bend") == tmp_path / "pictures" / "a" / "bend_dusk.png"
    assert read_looks(looks_file(tmp_path, entries)) == (noon, dusk)  # a bare list is as good


def test_what_a_look_leaves_out_stays_with_the_workflow(tmp_path):
    (look,) = read_looks(looks_file(tmp_path, [{"name": "as it is"}]))
    assert look.words("bend") is None and look.picture_path("bend") is None and look.files("bend") == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no JSON"),
        ({"look": []}, 'no list "looks"'),
        ([], 'no list "looks"'),
        (["noon"], 'look 1: "noon" arrived; a look is an object with name, prompt'),
        ([{"prompt": "x"}], "look 1 has no name"),
        ([{"name": "noon"}, {"name": " "}], "look 2 has no name"),
        ([{"name": "noon", "promt": "x"}], "look 1 (noon): 'promt' is not known; a look has name, prompt"),
        ([{"name": "noon", "prompt": ""}], 'look 1 (noon): prompt is ""; a text is needed'),
        ([{"name": "noon", "picture": 3}], "look 1 (noon): picture is 3"),
        ([{"name": "noon", "prompt": "x", "prompt_file": "y"}], "both prompt and prompt_file; keep one"),
        ([{"name": "noon"}, {"name": "noon"}], "two looks called 'noon'"),
    ],
)
def test_a_looks_file_that_is_none_is_refused_with_its_place(tmp_path, content, words):
    with pytest.raises(BatchError) as caught:
        read_looks(looks_file(tmp_path, content))
    assert words in str(caught.value) and "looks.json" in str(caught.value)


def test_files_that_looks_name_must_be_there_for_every_clip(tmp_path):
    looks = read_looks(looks_file(tmp_path, [{"name": "dusk", "picture": "{clip}.png"}]))
    (tmp_path / "bend.png").write_bytes(b"x")
    require_files(looks, ["bend"])
    with pytest.raises(BatchError, match=r"hill\.png and 1 more, which is not there"):
        require_files(looks, ["bend", "hill", "town"])
    with pytest.raises(BatchError, match="cannot be read"):
        read_looks(tmp_path / "none.json")


def test_clips_are_videos_and_folders_of_frames_in_natural_order(tmp_path):
    for name in ("shot10.mp4", "shot2.MOV", "notes.txt", ".hidden.mp4", "frames/0001.png", "empty/readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [clip.name for clip in find_clips(tmp_path)] == ["frames", "shot2", "shot10"]
    assert [clip.name for clip in find_clips(tmp_path, "*.mp4")] == ["shot10"]
    assert [clip.name for clip in find_clips(tmp_path / "shot10.mp4")] == ["shot10"]
    for folder, words in ((tmp_path / "empty", "no clip that fits"), (tmp_path / "none", "does not exist")):
        with pytest.raises(BatchError, match=words):
            find_clips(folder)


def test_a_clips_hash_is_that_of_its_content(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"frame")
        (tmp_path / f"{name}.mp4").write_bytes(b"video")
    assert clip_hash(tmp_path / "a") == clip_hash(tmp_path / "b")
    assert clip_hash(tmp_path / "a.mp4") == clip_hash(tmp_path / "b.mp4")
    (tmp_path / "b" / "1.png").write_bytes(b"other")
    (tmp_path / "b.mp4").write_bytes(b"other")
    assert clip_hash(tmp_path / "a") != clip_hash(tmp_path / "b")
    assert clip_hash(tmp_path / "a.mp4") != clip_hash(tmp_path / "b.mp4")


def test_seeds_are_numbers_and_ranges():
    assert parse_seeds(["1", "2,3", "5-8", "2"]) == (1, 2, 3, 5, 6, 7, 8)
    assert parse_seeds(["1, 2 ,4-5"]) == (1, 2, 4, 5) and parse_seeds([]) == ()
    for word in ("x", "-1", "8-5", "1.5", str(2**64)):
        with pytest.raises(BatchError, match="the seed"):
            parse_seeds([word])


def test_every_clip_comes_in_every_look_with_every_seed_under_a_name_of_its_own(tmp_path):
    for name in ("bend one.mp4", "hill.mp4", "hill.mov"):
        (tmp_path / name).write_bytes(b"x")
    looks = read_looks(looks_file(tmp_path, [{"name": "noon"}, {"name": "Ab/end!"}]))
    items = all_items(find_clips(tmp_path, "*.mp4"), looks, (1, 2))
    names = ["bend-one_noon_1", "bend-one_noon_2", "bend-one_Ab-end_1", "bend-one_Ab-end_2"]
    assert [item.name for item in items] == names + [name.replace("bend-one", "hill") for name in names]
    with pytest.raises(
        BatchError, match=r"hill\.mov in look 'noon' and hill\.mp4 .* both be called hill_noon_1; rename"
    ):
        all_items(find_clips(tmp_path), looks, (1,))
    with pytest.raises(BatchError, match="has 20000 renders; at most 10000"):
        all_items(find_clips(tmp_path, "*.mp4"), looks, range(5000))
    assert plain_name("../..") == "unnamed"
