"""Patches equal those of transformers' processors that use Pillow, which need no torchvision."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from rdrr_manifests.models import Processor
from rdrr_runtime.images.patches import image_patches
from rdrr_runtime.images.sizes import token_count
from support.images import GEMMA3, GEMMA4, QWEN, drawn_image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
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
    for at, patch in enumerate(result.patches):
        row, column = 14 * (at // 4), 14 * (at % 4)
        square = expected[:, row : row + 14, column : column + 14]
        np.testing.assert_allclose(patch.reshape(square.shape), square, atol=1e-5, rtol=0)


def test_an_image_that_is_too_narrow_is_refused_and_the_narrowest_is_not() -> None:
    from rdrr_format.errors import GenerationError

    assert len(image_patches(QWEN, Image.new("RGB", (200, 1))).patches)
    with pytest.raises(GenerationError, match=r"too narrow.*factor of 200.*found 201 x 1"):
        image_patches(QWEN, Image.new("RGB", (201, 1)))


@pytest.mark.parametrize("processor", [QWEN, GEMMA3, GEMMA4])
def test_a_recipe_survives_writing_and_reading(processor: Processor) -> None:
    assert Processor.model_validate_json(processor.model_dump_json()) == processor
