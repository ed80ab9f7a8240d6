"""Images as patches of pixels, which a vision tower reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rdrr_manifests.models import Processor
from rdrr_manifests.models.processor import RESAMPLING

from rdrr_runtime.images.sizes import resized

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class ImagePatches:
    """The patches of an image.

    Attributes:
        patches: Their values, [patches, values of a patch] in float32, in the order of the recipe.
        grid: Patches in time, in height and in width; their product is the number of patches.
    """

    patches: NDArray[np.float32]
    grid: tuple[int, int, int]


def image_patches(processor: Processor, image: Image, where: object = None) -> ImagePatches:
    """Return the patches of an image.

    Args:
        processor: The recipe.
        image: The image, in mode RGB.
        where: What an error message calls the image.

    Raises:
        GenerationError: The image is too narrow for the model.
    """
    height, width = resized(processor, (image.height, image.width), where)
    filtered = image.resize((width, height), RESAMPLING.index(processor.resample))
    planes = np.moveaxis(np.asarray(filtered), -1, 0)
    values = _values(processor)
    normalized = np.stack([row[plane] for row, plane in zip(values, planes, strict=True)])
    grid = (1, height // processor.patch_size, width // processor.patch_size)
    return ImagePatches(_cut(processor, normalized, grid[1:]), grid)


def _values(processor: Processor) -> NDArray[np.float32]:
    """Return what each of the values 0 to 255 becomes, for each channel.

    The arithmetic is that of transformers: the factor in float64, the rest in float32.
    """
    scaled = (np.arange(256, dtype=np.float64) * processor.rescale_factor).astype(np.float32)
    mean, deviation = (
        np.array(numbers, dtype=np.float32)[:, None]
        for numbers in (processor.mean, processor.deviation)
    )
    return (scaled - mean) / deviation


def _cut(
    processor: Processor, image: NDArray[np.float32], grid: tuple[int, int]
) -> NDArray[np.float32]:
    """Return the patches of an image, [patches, values of a patch].

    Args:
        processor: The recipe.
        image: [channels, height, width].
        grid: Patches in height and in width.
    """
    size, frames = processor.patch_size, processor.temporal_patch_size
    square = processor.merge_size if processor.patch_order == "merged" else 1
    rows, columns = grid[0] // square, grid[1] // square
    cut = image.reshape(-1, rows, square, size, columns, square, size)
    # Axes: rows and columns of squares, rows and columns within, then those of a patch.
    inner = (3, 6, 0) if processor.channel_order == "last" else (0, 3, 6)
    cut = cut.transpose(1, 4, 2, 5, *inner).reshape(grid[0] * grid[1], *_patch_shape(processor))
    if processor.channel_order == "last":
        return np.repeat(cut[:, None], frames, axis=1).reshape(len(cut), -1)
    return np.repeat(cut[:, :, None], frames, axis=2).reshape(len(cut), -1)


def _patch_shape(processor: Processor) -> tuple[int, int, int]:
    size = processor.patch_size
    return (size, size, 3) if processor.channel_order == "last" else (3, size, size)
