"""Tokens of images in a sequence: where it may be cut, and which slots they attend to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rdrr_format.errors import GenerationError
from rdrr_runtime.exec.image_inputs import ImageInputs
from rdrr_runtime.images.rows import SeenImages, SequencePositions
from rdrr_runtime.images.tower import ImageFeatures

WIDTH = 8
TEXT = [5, 6, 7]


def seeing(*sizes: int, **options: Any) -> tuple[SeenImages, list[list[int]]]:
    """Return images of some numbers of tokens, and the ids of each."""
    images = SeenImages(100, 0, WIDTH, **options)
    ids = [
        [*images.add(ImageFeatures(np.full((size, WIDTH), at, np.float32), (), (1, 1, size)))]
        for at, size in enumerate(sizes)
    ]
    return images, ids


@pytest.fixture(params=["all", "sliding"])
def prompt(request: pytest.FixtureRequest) -> tuple[SeenImages, list[int]]:
    """Images that rows see whole, and a prompt with them in the slots 3 to 6 and 10 to 15."""
    images, (first, second) = seeing(4, 6, seen_whole=request.param)
    return images, [*TEXT, *first, *TEXT, *second, *TEXT]


def lengths(parts: Sequence[Sequence[int]]) -> list[int]:
    return [len(part) for part in parts]


def test_a_part_ends_before_an_image_that_it_would_cut(prompt):
    images, ids = prompt
    assert [images.border(ids, 0, end) for end in (3, 4, 6, 7, 8, 10, 12, 15, 16)] == [
        *(3, 3, 3, 7, 8, 10, 10, 10, 16)
    ]


def test_a_part_that_begins_with_an_image_ends_behind_it(prompt):
    images, ids = prompt
    assert [images.border(ids, 3, end) for end in (4, 6, 7)] == [7, 7, 7]
    assert images.border(ids, 7, 12) == 10


@pytest.mark.parametrize(
    ("most", "expected"), [(19, [19]), (12, [10, 9]), (6, [3, 6, 1, 6, 3]), (4, [3, 4, 3, 6, 3])]
)
def test_a_prompt_is_divided_around_its_images(prompt, most, expected):
    images, ids = prompt
    parts = [*images.parts(ids, most)]
    assert lengths(parts) == expected
    assert [token for part in parts for token in part] == ids


def test_an_image_that_is_longer_than_a_pass_is_refused_with_the_numbers(prompt):
    images, ids = prompt
    assert lengths([*ImageInputs(images, (), (), WIDTH, (), 100, 6).parts(ids)]) == [3, 6, 1, 6, 3]
    with pytest.raises(
        GenerationError, match=r"more tokens than a pass.*at most 5 tokens, found 6"
    ):
        list(ImageInputs(images, (), (), WIDTH, (), 100, 5).parts(ids))


def test_images_whose_rows_attend_to_earlier_ones_only_may_be_cut():
    images, (first, _) = seeing(4, 6)
    ids = [*TEXT, *first, *TEXT]
    assert lengths([*images.parts(ids, 5)]) == [5, 5]
    rows = SequencePositions(images).of_pass(ids[:5], 0)
    assert rows.ends.tolist() == [0, 0, 0, 7, 7]


def test_rows_attend_up_to_the_slot_behind_their_image(prompt):
    images, ids = prompt
    rows = SequencePositions(images).of_pass(ids, 20)
    assert rows.ends.tolist() == [*[0] * 3, *[27] * 4, *[0] * 3, *[36] * 6, *[0] * 3]


@pytest.mark.parametrize("part", [slice(0, 5), slice(4, 9)])
def test_a_pass_with_a_part_of_an_image_that_is_seen_whole_is_refused(prompt, part):
    images, ids = prompt
    with pytest.raises(GenerationError, match=r"must run in one pass.*all 4 tokens"):
        SequencePositions(images).of_pass(ids[part], part.start)


def test_only_layers_with_a_window_see_images_whole_where_that_is_stated():
    cases = {"all": [True, True], "sliding": [False, True], None: [False, False]}
    for stated, expected in cases.items():
        images, _ = seeing(seen_whole=stated)
        assert [images.are_seen_whole(window) for window in (None, 64)] == expected


def test_positions_are_slots_unless_they_count_in_three_directions():
    for has_axes, expected in ((False, [3, 4, 5, 6, 7, 8, 9]), (True, [3, 3, 3, 3, 7, 8, 9])):
        images, (first,) = seeing(4, has_axes=has_axes)
        positions = SequencePositions(images).of([*TEXT, *first, *TEXT], 0)
        assert positions[3:, 0].tolist() == expected
