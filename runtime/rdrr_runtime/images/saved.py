"""The images of a sequence as arrays that a file holds, and their ids in the process that reads it.

An image has two arrays, whose names have the id of its first token in the sequence that was saved:
its features, float32 [1 + taps, tokens, width], and its grid, uint32 [3].
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import FormatError

from rdrr_runtime.images.rows import SeenImages
from rdrr_runtime.images.tower import ImageFeatures

Arrays = Mapping[str, npt.NDArray[Any]]

PREFIX = "image."
_GRID = ".grid"
_NAME = re.compile(r"image\.[0-9]{1,10}")


def saved_images(images: SeenImages, ids: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of the images that a sequence has tokens of.

    Raises:
        GenerationError: An image is forgotten.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for _, _, image, _ in images.runs(ids):
        features, name = image.features, f"{PREFIX}{image.first}"
        arrays[name] = np.stack([features.embeddings, *features.taps])
        arrays[f"{name}{_GRID}"] = np.array(features.grid, np.uint32)
    return arrays


def restored_ids(images: SeenImages | None, arrays: Arrays, ids: Sequence[int]) -> list[int]:
    """Return the ids of a saved sequence, in which the tokens of images have their ids of today.

    Args:
        images: The images that the model has seen, to which those of the sequence are added; None
            if it sees none.
        arrays: What `saved_images` returned.
        ids: The ids that the sequence had.

    Raises:
        FormatError: The arrays are not those of images of this model.
    """
    if images is None:
        return list(ids)
    today: dict[int, int] = {}
    for name in [name for name in arrays if not name.endswith(_GRID)]:
        features = _features(images, name, arrays)
        first = int(name.removeprefix(PREFIX))
        today |= {first + at: token for at, token in enumerate(images.add(features))}
    # Such an id without an image of its own would be that of another sequence of this process.
    lost = next((token for token in ids if token >= images.first and token not in today), None)
    if lost is not None:
        raise FormatError(
            "the session has an id that is not in the vocabulary",
            expected=f"below {images.first}, or a token of an image of the file",
            found=lost,
        )
    return [today[token] if token >= images.first else token for token in ids]


def _features(images: SeenImages, name: str, arrays: Arrays) -> ImageFeatures:
    """Return the features of an image.

    Raises:
        FormatError: They are not those of this model.
    """
    values, grid = arrays[name], arrays.get(f"{name}{_GRID}", np.empty(0))
    sizes = [int(size) for size in grid.reshape(-1)]
    expected = (1 + images.taps, prod(sizes), images.width)
    if (
        not _NAME.fullmatch(name)
        or values.dtype != np.float32
        or grid.dtype != np.uint32
        or values.shape != expected
        or grid.shape != (3,)
        or min(sizes) < 1
        or not np.isfinite(values).all()
    ):
        raise FormatError(
            "the session has an image of another model",
            where=name,
            expected=f"finite numbers in float32 {list(expected)}, and a grid of three sizes",
            found=f"{values.dtype} {list(values.shape)} for {grid.dtype} {sizes}",
        )
    first, *taps = np.array(values)  # a copy, since the file may change
    return ImageFeatures(first, tuple(taps), (sizes[0], sizes[1], sizes[2]))
