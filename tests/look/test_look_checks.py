"""A Look and a ComfyUI CONDITIONING are refused, readably, before any model work when something does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streamrender_h3.nodes.look import (
    Look,
    LookError,
    TextStates,
    check_look,
    make_look,
    states_from_clip,
    states_from_conditioning,
    with_picture_latent,
)

WIDTH, ROWS = 5120, 20
TAGS = torch.tensor([1] * 6 + [0] * 8 + [1] * 6)
PICTURE_REFERENCE = {"kind": "image", "latent_h": 4, "latent_w": 6, "latent": torch.zeros(1, 24, 1, 4, 6)}


def conditioning(cond: Any = None, **extras: Any) -> list[Any]:
    values = {"pooled_output": None, "minimax_token_tags": TAGS, "minimax_refs": [PICTURE_REFERENCE]}
    return [[torch.zeros(1, ROWS, WIDTH) if cond is None else cond, {**values, **extras}]]


def test_the_native_reference_to_video_conditioning_is_accepted() -> None:
    cond = torch.randn(1, ROWS, WIDTH)
    states = states_from_conditioning(conditioning(cond), text_dim=WIDTH)
    assert torch.equal(states.text, cond[0])
    assert torch.equal(states.tags, TAGS) and states.tags.dtype == torch.int64
    assert states.media_rows == 14


def test_without_tags_every_row_is_text() -> None:
    states = states_from_conditioning([[torch.zeros(1, 5, 32), {}]])
    assert states.tags.tolist() == [1] * 5 and states.media_rows == 0


@pytest.mark.parametrize(
    ("positive", "says"),
    [
        (None, "is a NoneType"),
        ([], "has 0 entries"),
        (conditioning() * 2, "has 2 entries"),
        ([torch.zeros(1, 5, 32)], "not a tensor with its settings"),
        (conditioning(torch.zeros(2, ROWS, WIDTH)), r"\[2, 20, 5120\].*batch of one"),
        (conditioning(torch.zeros(ROWS, WIDTH)), "batch of one"),
        (conditioning(torch.zeros(1, ROWS, 4096)), "4096 wide.*text_dim 5120"),
        (conditioning(minimax_token_tags=TAGS[:-1]), "19 modality tags for 20 text rows"),
        (conditioning(minimax_token_tags=TAGS + 1), r"contain \[2\]"),
        (conditioning(minimax_token_tags=TAGS.float()), "one integer per text row"),
        (conditioning(minimax_token_tags="none"), "one integer per text row"),
        (conditioning(minimax_keyframes=[{"resolved_frame_index": 0}]), "keyframes.*ref_image_0"),
        (conditioning(minimax_refs=[PICTURE_REFERENCE, {"kind": "video"}]), "video reference.*Semantic Palette Encode"),
        (conditioning(minimax_refs=[{"kind": "video_audio"}]), "video and audio reference"),
        (conditioning(minimax_refs=[{"kind": "audio"}]), "audio reference"),
        (conditioning(minimax_refs=[PICTURE_REFERENCE] * 2), "2 reference pictures"),
    ],
)
def test_unusable_conditionings_are_refused(positive: Any, says: str) -> None:
    with pytest.raises(LookError, match=says):
        states_from_conditioning(positive, text_dim=WIDTH)


class MinimaxClip:
    def __init__(self, tags: torch.Tensor) -> None:
        self.tags = tags

    def tokenize(self, prompt: str, images: list[torch.Tensor]) -> Any:
        self.seen = (prompt, images)
        return "tokens"

    def encode_from_tokens_scheduled(self, tokens: Any) -> Any:
        assert tokens == "tokens"
        return conditioning(minimax_token_tags=self.tags)


class PlainClip:
    def tokenize(self, prompt: str) -> Any:
        return prompt


def test_a_clip_is_shown_the_picture_and_the_prompt() -> None:
    clip, image = MinimaxClip(TAGS), torch.rand(1, 64, 96, 3)
    assert states_from_clip(clip, "a road", image).media_rows == 14
    assert clip.seen[0] == "a road" and clip.seen[1][0] is image


@pytest.mark.parametrize("clip", [PlainClip(), MinimaxClip(torch.ones(ROWS, dtype=torch.int64))])
def test_a_clip_of_another_type_is_refused(clip: Any) -> None:
    with pytest.raises(LookError, match="'minimax'"):
        states_from_clip(clip, "a road", torch.rand(1, 64, 96, 3))


def states(width: int = 32) -> TextStates:
    return TextStates(torch.randn(ROWS, width), TAGS, 14)


def test_a_look_of_the_wrong_width_names_both_widths() -> None:
    look = make_look(states(32), picture=torch.zeros(24, 1, 4, 6))
    check_look(look, text_dim=32, size=(64, 96))
    with pytest.raises(LookError, match="32 wide, but the model needs text_dim 5120"):
        check_look(look, text_dim=5120, size=(64, 96))


@pytest.mark.parametrize(
    ("picture", "says"),
    [(torch.zeros(24, 1, 4, 8), "128x64, but the output is 96x64"), (torch.zeros(16, 1, 4, 6), "16 channels")],
)
def test_a_look_with_another_picture_is_refused(picture: torch.Tensor, says: str) -> None:
    with pytest.raises(LookError, match=says):
        check_look(make_look(states(), picture=picture), text_dim=32, size=(64, 96))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({}, "no picture"),
        ({"picture": torch.zeros(24, 1, 4, 6), "rgb": torch.zeros(64, 96, 3, dtype=torch.uint8)}, "both"),
        ({"picture": torch.zeros(24, 2, 4, 6)}, r"\[24, 2, 4, 6\]"),
        ({"picture": torch.zeros(24, 1, 4, 6, dtype=torch.float16)}, "float16"),
        ({"rgb": torch.zeros(64, 96, 3)}, "uint8"),
    ],
)
def test_a_look_needs_one_picture_of_the_right_form(parts: dict[str, torch.Tensor], says: str) -> None:
    with pytest.raises(LookError, match=says):
        make_look(states(), **parts)


@pytest.mark.parametrize(
    ("text", "tags", "media", "says"),
    [
        (torch.zeros(1, ROWS, 8), TAGS, 14, "rows, width"),
        (torch.zeros(ROWS, 8, dtype=torch.int64), TAGS, 14, "float tensor"),
        (torch.zeros(ROWS, 8), TAGS[:-1], 14, "19 modality tags"),
        (torch.zeros(ROWS, 8), TAGS, 21, "21 rows of 20"),
    ],
)
def test_text_states_must_fit_each_other(text: torch.Tensor, tags: torch.Tensor, media: int, says: str) -> None:
    with pytest.raises(LookError, match=says):
        TextStates(text, tags, media)


class MeanEncoder:
    """Block means of the picture, repeated over 24 channels."""

    def encode_picture(self, rgb: torch.Tensor) -> torch.Tensor:
        assert rgb.dtype == torch.float32 and rgb.min() >= 0 and rgb.max() <= 1
        return torch.nn.functional.avg_pool2d(rgb, 16).mean(0).expand(24, 1, -1, -1)


def test_the_picture_is_encoded_once_and_rounded_through_float16() -> None:
    rgb = torch.randint(0, 256, (64, 96, 3), dtype=torch.uint8)
    look = make_look(states(), rgb=rgb, prompt="p", note="n")
    encoded = with_picture_latent(look, MeanEncoder())
    assert isinstance(encoded, Look) and encoded.rgb is None and encoded.picture is not None
    assert encoded.picture.shape == (24, 1, 4, 6) and encoded.size == look.size == (64, 96)
    assert torch.equal(encoded.picture, encoded.picture.half().float())
    assert (encoded.prompt, encoded.note) == ("p", "n")
    assert with_picture_latent(encoded, MeanEncoder()) is encoded
