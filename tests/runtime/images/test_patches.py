"""Patches equal those of transformers' processors that use Pillow, which need no torchvision."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from rdrr_manifests.models import Processor, Tiles
from rdrr_runtime.images.patches import image_patches
from rdrr_runtime.images.sizes import resized, token_count
from support.images import GEMMA3, GEMMA4, IDEFICS3, QWEN, drawn_image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SIZES = [(33, 41), (200, 90), (90, 200), (64, 64), (1, 30), (301, 7), (512, 640)]
"""Heights and widths: odd, within the bounds, below and above them."""


@pytest.mark.parametrize("size", SIZES)
def test_patches_within_pixel_bounds_equal_those_of_qwen(size: tuple[int, int]) -> None:
    image = drawn_image(*size)
    judge = Qwen2VLImageProcessorPil(
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": QWEN.min_pixels, "longest_edge": QWEN.max_pixels},
        image_mean=[0.48, 0.46, 0.41],
        image_std=[0.27, 0.26, 0.28],
    )
    expected = judge(images=[image], return_tensors="np")
    result = image_patches(QWEN, image)
    assert result.grid == tuple(expected["image_grid_thw"][0])
    np.testing.assert_allclose(result.patches, expected["pixel_values"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", SIZES)
def test_patches_within_a_token_budget_equal_those_of_gemma_4(size: tuple[int, int]) -> None:
    image = drawn_image(*size)
    expected = Gemma4ImageProcessorPil(max_soft_tokens=70)(images=[image], return_tensors="np")
    result = image_patches(GEMMA4, image)
    count = len(result.patches)
    values = expected["pixel_values"][0]
    np.testing.assert_allclose(result.patches, values[:count], atol=1e-5, rtol=0)
    assert not values[count:].any()
    shape = (result.grid[1] * 16, result.grid[2] * 16)
    assert token_count(GEMMA4, shape) == expected["num_soft_tokens_per_image"][0]


def test_patches_of_a_fixed_size_are_the_squares_of_the_image_of_gemma_3() -> None:
    image = drawn_image(33, 41)
    judge = Gemma3ImageProcessorPil(size={"height": 112, "width": 56})
    expected = judge(images=[image], return_tensors="np")["pixel_values"][0]
    result = image_patches(GEMMA3, image)
    assert result.grid == (1, 8, 4)
    _assert_squares(result.patches, expected[None], 14)


@pytest.mark.parametrize("size", [*SIZES, (3, 900)])
def test_tiles_and_the_whole_image_equal_those_of_idefics_3(size: tuple[int, int]) -> None:
    image = drawn_image(*size)
    judge = Idefics3ImageProcessorPil(
        size={"longest_edge": 160}, max_image_size={"longest_edge": 56}, return_row_col_info=True
    )
    expected = judge(images=[image], return_tensors="np")
    result = image_patches(IDEFICS3, image)
    assert result.tiles == (expected["rows"][0][0], expected["cols"][0][0])
    assert result.grid == (result.tiles[0] * result.tiles[1] + 1, 4, 4)
    _assert_squares(result.patches, expected["pixel_values"][0], 14)
    shape = resized(IDEFICS3, size)
    assert token_count(IDEFICS3, shape) == len(result.patches) // 4


def test_an_image_of_one_tile_has_no_others() -> None:
    small = IDEFICS3.with_(tiles=Tiles(longest_side=56))
    assert image_patches(small, drawn_image(30, 41)).tiles == (0, 0)
    assert image_patches(small, drawn_image(30, 41)).grid == (1, 4, 4)


def _assert_squares(patches: np.ndarray, images: np.ndarray, side: int) -> None:
    """Check that patches are the squares of images, [images, channels, height, width], in rows."""
    across = images.shape[-1] // side
    for at, patch in enumerate(patches):
        number, place = divmod(at, across * (images.shape[-2] // side))
        row, column = side * (place // across), side * (place % across)
        square = images[number, :, row : row + side, column : column + side]
        np.testing.assert_allclose(patch.reshape(square.shape), square, atol=1e-5, rtol=0)


def test_an_image_that_is_too_narrow_is_refused_and_the_narrowest_is_not() -> None:
    from rdrr_format.errors import GenerationError

    assert len(image_patches(QWEN, Image.new("RGB", (200, 1))).patches)
    with pytest.raises(GenerationError, match=r"too narrow.*factor of 200.*found 201 x 1"):
        image_patches(QWEN, Image.new("RGB", (201, 1)))


@pytest.mark.parametrize("processor", [QWEN, GEMMA3, GEMMA4, IDEFICS3])
def test_a_recipe_survives_writing_and_reading(processor: Processor) -> None:
    assert Processor.model_validate_json(processor.model_dump_json()) == processor
