"""Images as patches of pixels, which a vision tower reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rdrr_manifests.models import Processor
from rdrr_manifests.models.processor import RESAMPLING

from rdrr_runtime.images.sizes import first_size, resized, tile_grid

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class ImagePatches:
    """The patches of an image.

    Attributes:
        patches: Their values, [patches, values of a patch] in float32, in the order of the recipe.
        grid: Patches in time, in height and in width; their product is the number of patches. An
            image of tiles has them in place of time: rows of tiles, then the whole image.
        tiles: Rows and columns of tiles; zeros without.
    """

    patches: NDArray[np.float32]
    grid: tuple[int, int, int]
    tiles: tuple[int, int] = (0, 0)


def image_patches(processor: Processor, image: Image, where: object = None) -> ImagePatches:
    """Return the patches of an image.

    Args:
        processor: The recipe.
        image: The image, in mode RGB.
        where: What an error message calls the image.

    Raises:
        GenerationError: The image is too narrow for the model.
    """
    size = resized(processor, (image.height, image.width), where)
    tiles = tile_grid(processor, size)
    steps = [first_size(processor, (image.height, image.width)), size]
    for height, width in steps:
        if (image.height, image.width) != (height, width):
            image = image.resize((width, height), RESAMPLING.index(processor.resample))
    pieces = list(_pieces(processor, image, tiles))
    frames = processor.temporal_patch_size
    cut = [patches_of_frames(processor, [piece] * frames) for piece in pieces]
    grid = cut[0].grid[1:]
    return ImagePatches(np.concatenate([piece.patches for piece in cut]), (len(cut), *grid), tiles)


def patches_of_frames(processor: Processor, frames: Sequence[NDArray[np.uint8]]) -> ImagePatches:
    """Return the patches that frames make together.

    Args:
        processor: The recipe.
        frames: As many as a patch has, each [height, width, channels], in the size of the recipe.
    """
    height, width = (length // processor.patch_size for length in frames[0].shape[:2])
    values = _values(processor)
    # A frame that is repeated is cut once.
    distinct = {id(frame): frame for frame in frames}
    cut = {
        key: _cut(processor, _normalized(frame, values), (height, width))
        for key, frame in distinct.items()
    }
    axis = 1 if processor.channel_order == "last" else 2
    patches = np.stack([cut[id(frame)] for frame in frames], axis=axis)
    return ImagePatches(patches.reshape(height * width, -1), (1, height, width))


def _pieces(
    processor: Processor, image: Image, tiles: tuple[int, int]
) -> Iterator[NDArray[np.uint8]]:
    """Yield the tiles of an image in rows and the image in the size of one; without, the image.

    Each is [height, width, channels].
    """
    tall, wide = processor.height or 0, processor.width or 0
    pixels = np.asarray(image)
    for row, column in product(range(tiles[0]), range(tiles[1])):
        yield pixels[row * tall : (row + 1) * tall, column * wide : (column + 1) * wide]
    if any(tiles):
        pixels = np.asarray(image.resize((wide, tall), RESAMPLING.index(processor.resample)))
    yield pixels


def _normalized(pixels: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return pixels as the model reads them, [channels, height, width]."""
    planes = np.moveaxis(pixels, -1, 0)
    return np.stack([row[plane] for row, plane in zip(values, planes, strict=True)])


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
    """Return the patches of a frame, [patches, *_patch_shape].

    Args:
        processor: The recipe.
        image: [channels, height, width].
        grid: Patches in height and in width.
    """
    size = processor.patch_size
    square = processor.merge_size if processor.patch_order == "merged" else 1
    rows, columns = grid[0] // square, grid[1] // square
    cut = image.reshape(-1, rows, square, size, columns, square, size)
    # Axes: rows and columns of squares, rows and columns within, then those of a patch.
    inner = (3, 6, 0) if processor.channel_order == "last" else (0, 3, 6)
    return cut.transpose(1, 4, 2, 5, *inner).reshape(grid[0] * grid[1], *_patch_shape(processor))


def _patch_shape(processor: Processor) -> tuple[int, int, int]:
    size = processor.patch_size
    return (size, size, 3) if processor.channel_order == "last" else (3, size, size)
