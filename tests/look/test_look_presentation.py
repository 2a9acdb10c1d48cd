"""What Qwen is shown: label, image block, prompt, each tokenised apart, with the right tags and no marker leaking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from streamrender_h3.nodes.look import EXAMPLE, EXAMPLE_CLASSES, SpecialIds, build_prompt, present, special_ids

PROMPT = build_prompt(EXAMPLE, EXAMPLE_CLASSES)


@pytest.fixture(scope="module")
def tokenize(qwen_folder: Path) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(qwen_folder / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def test_pieces_are_joined_as_ids_and_not_as_text(tokenize: Callable[[str], list[int]]) -> None:
    special = SpecialIds(1001, 1002, 1003, 1004)
    shown = present(tokenize, PROMPT, 5, special)
    label, text = tokenize("<Picture 1>: "), tokenize(PROMPT)
    assert shown.ids.tolist() == [*label, 1001, *[1003] * 5, 1002, *text]
    assert tokenize("<Picture 1>: " + "a road") != label + tokenize("a road")  # why it matters


def test_label_takes_six_ids_and_the_deployed_prefix_1016(tokenize: Callable[[str], list[int]]) -> None:
    shown = present(tokenize, PROMPT, 1008)
    assert len(tokenize("<Picture 1>: ")) == 6
    assert shown.media_rows == 1016
    words = len(tokenize(PROMPT))
    assert shown.tags.tolist() == [1] * 6 + [0] * 1010 + [1] * words
    assert shown.ids.dtype == shown.tags.dtype == torch.int64


def test_no_marker_appears_outside_the_image_block(tokenize: Callable[[str], list[int]], qwen_folder: Path) -> None:
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(qwen_folder / "tokenizer.json"))
    special = SpecialIds(*(vocabulary.token_to_id(f"<|{name}|>") for name in _NAMES))
    shown = present(tokenize, PROMPT, 12, special)
    outside = torch.cat([shown.ids[:6], shown.ids[shown.media_rows :]]).tolist()
    assert not set(outside) & {vocabulary.token_to_id(f"<|{name}|>") for name in (*_NAMES, "endoftext")}
    assert (shown.ids == special.image_pad).sum() == 12 and special.video_pad not in shown.ids.tolist()
    assert shown.token_types.tolist() == [0] * 7 + [1] * 12 + [0] * (len(shown.ids) - 19)


_NAMES = ("vision_start", "vision_end", "image_pad", "video_pad")


def test_a_prompt_that_spells_a_marker_is_refused(tokenize: Callable[[str], list[int]], qwen_folder: Path) -> None:
    from tokenizers import Tokenizer

    pad = Tokenizer.from_file(str(qwen_folder / "tokenizer.json")).token_to_id("<|image_pad|>")
    with pytest.raises(ValueError, match="marker"):
        present(tokenize, "a road <|image_pad|>", 4, SpecialIds(image_pad=pad))


def test_an_empty_prompt_is_refused(tokenize: Callable[[str], list[int]]) -> None:
    with pytest.raises(ValueError, match="empty"):
        present(tokenize, " \n", 4)


def test_marker_ids_come_from_config_then_tokenizer_then_the_qwen_family() -> None:
    tokenizer = SimpleNamespace(get_vocab=lambda: {"<|image_pad|>": 11, "<|vision_end|>": 12})
    config = SimpleNamespace(image_token_id=9, vision_end_token_id=None)
    assert special_ids(config, tokenizer) == SpecialIds(151652, 12, 9, 151656)
    assert special_ids(SimpleNamespace()) == SpecialIds(151652, 151653, 151655, 151656)


def test_the_trained_tokenizer_returns_every_prompt(tokenize: Callable[[str], list[int]], qwen_folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(qwen_folder / "tokenizer.json"))
    for text in (PROMPT, "Grüße, 東京 at 5 o'clock\n\n  ok", "hero_car = red; 12%"):
        assert tokenizer.decode(tokenize(text)) == text
    assert 1000 <= tokenizer.get_vocab_size() <= 2000
