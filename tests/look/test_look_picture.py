"""Picture preparation is a plain LANCZOS stretch; patch rows equal those of the library's own processor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from streamrender_h3.nodes.look import (
    ImageRules,
    PictureError,
    fitted_size,
    image_rows,
    load_picture,
    picture_from_image,
    prepare_picture,
    read_rules,
)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_a_picture_of_the_output_size_is_untouched() -> None:
    image = noise(128, 192)
    prepared = prepare_picture(image, (128, 192))
    assert np.array_equal(prepared.rgb, image)
    assert "as it is" in prepared.note


def test_another_size_is_stretched_with_lanczos_and_not_cropped() -> None:
    image = noise(100, 150)
    prepared = prepare_picture(image, (128, 192))
    assert np.array_equal(prepared.rgb, np.asarray(Image.fromarray(image).resize((192, 128), Image.Resampling.LANCZOS)))
    assert "150x100 to 192x128" in prepared.note and "aspect" not in prepared.note


@pytest.mark.parametrize(("size", "says"), [((128, 192), "50 % too wide"), ((192, 128), "50 % too tall")])
def test_a_wrong_aspect_says_what_is_done(size: tuple[int, int], says: str) -> None:
    note = prepare_picture(noise(100, 100), size).note
    assert "stretched" in note and says in note


def test_aspects_within_one_percent_are_not_mentioned() -> None:
    assert "aspect" not in prepare_picture(noise(768, 1336), (768, 1344)).note
    assert "aspect" in prepare_picture(noise(768, 1326), (768, 1344)).note


@pytest.mark.parametrize("size", [(100, 192), (128, 200), (32, 64)])
def test_output_sizes_the_model_cannot_take_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(PictureError, match="multiples of 32 and at least 64"):
        prepare_picture(noise(64, 64), size)


@pytest.mark.parametrize("image", [np.zeros((64, 64, 3), np.float32), np.zeros((64, 64), np.uint8)])
def test_pictures_that_are_not_8_bit_rgb_are_refused(image: np.ndarray) -> None:
    with pytest.raises(PictureError, match="uint8"):
        prepare_picture(image, (64, 64))


def test_files_are_turned_upright_by_exif(tmp_path: Path) -> None:
    image = Image.fromarray(noise(20, 40))
    exif = image.getexif()
    exif[0x0112] = 6  # stored lying on its side: rotate by 90 degrees clockwise to show
    image.save(tmp_path / "side.png", exif=exif)
    upright = load_picture(tmp_path / "side.png")
    assert upright.shape == (40, 20, 3)
    assert np.array_equal(upright, np.rot90(noise(20, 40), k=-1))


def test_unreadable_pictures_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(PictureError, match=r"text\.png could not be read"):
        load_picture(tmp_path / "text.png")
    with pytest.raises(PictureError, match="not there"):
        load_picture(tmp_path / "none.png")


def test_image_tensors_return_to_their_bytes() -> None:
    image = noise(64, 96)
    assert np.array_equal(picture_from_image(torch.from_numpy(image)[None] / 255.0), image)
    assert picture_from_image(torch.full((8, 8, 4), 0.999)).tolist()[0][0] == [254, 254, 254]


def test_image_batches_are_refused() -> None:
    with pytest.raises(PictureError, match="holds 5 images"):
        picture_from_image(torch.zeros(5, 8, 8, 3))


def test_the_deployed_picture_gives_1008_tokens_without_resampling() -> None:
    image = noise(768, 1344)
    rows = image_rows(image)
    assert rows.grid == (1, 48, 84) and rows.tokens == 1008 and rows.rows.shape == (4032, 1536)
    corner = torch.from_numpy(image[:16, :16].copy()).permute(2, 0, 1).float() / 255 * 2 - 1  # [C, y, x]
    first = rows.rows[0].reshape(3, 2, 16, 16)
    torch.testing.assert_close(first[:, 0], corner, rtol=0, atol=1e-6)
    assert torch.equal(first[:, 0], first[:, 1])
    below = torch.from_numpy(image[16:32, :16].copy()).permute(2, 0, 1).float() / 255 * 2 - 1
    torch.testing.assert_close(rows.rows[2].reshape(3, 2, 16, 16)[:, 1], below, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "fitted"),
    [
        ((768, 1344), (768, 1344)),
        ((720, 1280), (704, 1280)),  # 22.5 blocks round half to even
        ((64, 64), (256, 256)),  # below the smallest area
        ((8000, 8000), (4096, 4096)),  # above the largest
    ],
)
def test_sizes_follow_the_factor_and_the_area_bounds(size: tuple[int, int], fitted: tuple[int, int]) -> None:
    assert fitted_size(*size) == fitted


def test_needle_thin_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="aspect ratio below 200"):
        fitted_size(10, 2000)


@pytest.mark.parametrize("size", [(256, 320), (768, 1344), (250, 333), (64, 96)])
def test_patch_rows_equal_the_library_processor(size: tuple[int, int], qwen_folder: Path) -> None:
    processors = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    theirs = processors.Qwen2VLImageProcessorPil.from_pretrained(qwen_folder, local_files_only=True)
    image = noise(*size)
    expected = theirs(images=[Image.fromarray(image)], return_tensors="pt")
    ours = image_rows(image, read_rules(qwen_folder / "preprocessor_config.json"))
    assert list(ours.grid) == expected["image_grid_thw"][0].tolist()
    torch.testing.assert_close(ours.rows, expected["pixel_values"], rtol=0, atol=1e-6)


def test_rules_come_from_the_file_with_h3_defaults(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"size": {"shortest_edge": 4096}, "merge_size": 2}')
    assert read_rules(tmp_path / "p.json") == ImageRules(smallest=4096)
