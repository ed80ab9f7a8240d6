"""Features of images are forgotten by least use, and not while a prompt needs them."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from rdrr_format.errors import GenerationError
from rdrr_runtime.images.rows import SeenImages
from rdrr_runtime.images.tower import ImageFeatures

FIRST, WIDTH = 100, 8
SIZE = 4 * WIDTH * 4


def features(value: float) -> ImageFeatures:
    return ImageFeatures(np.full((4, WIDTH), value, np.float32), (), (1, 2, 2))


@pytest.fixture
def images() -> SeenImages:
    images = SeenImages(FIRST, 0, WIDTH)
    for value in (1.0, 2.0, 3.0):
        images.add(features(value))
    return images


def known(images: SeenImages) -> list[int]:
    return [first for first in range(FIRST, FIRST + 20, 4) if images.knows(first)]


def test_the_image_that_was_not_used_for_longest_is_forgotten_first(images):
    images.forget(3 * SIZE)
    assert known(images) == [100, 104, 108]
    assert images.add(features(1.0)).start == 100
    images.use(107)
    images.forget(2 * SIZE)
    assert known(images) == [100, 104]
    images.forget(SIZE)
    assert known(images) == [104]
    assert images.add(features(3.0)).start == 112  # encoded again, it is another image


def test_the_images_of_a_prompt_are_known_as_long_as_it_exists(images):
    prompt = images.held([5, *range(104, 108), 6])
    assert prompt == [5, 104, 105, 106, 107, 6]
    images.forget(0)
    assert known(images) == [104]
    assert images.features(prompt)[0, 1:5].tolist() == features(2.0).embeddings.tolist()
    del prompt
    gc.collect()
    assert known(images) == []
    with pytest.raises(GenerationError, match="is forgotten"):
        images.features([104])


def test_a_prompt_of_a_forgotten_image_cannot_be_held(images):
    images.forget(0)
    with pytest.raises(GenerationError, match="is forgotten"):
        images.held([100])
    assert images.held([5, 6]) == [5, 6]
