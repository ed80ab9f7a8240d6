"""The sizes to which images are resized, and what an image costs in tokens.

The formulas are those of transformers' processors, rounding included, because a model was trained
with the sizes that they give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from rdrr_format.errors import GenerationError
from rdrr_manifests.models import Processor

Size = tuple[int, int]
"""Height and width in pixels."""

MAX_ASPECT = 200
"""Most times that one side of an image may be as long as the other, in a size of `pixel_bounds`."""


def resized(processor: Processor, size: Size, where: object = None) -> Size:
    """Return the height and width that an image has at last.

    Args:
        processor: The recipe.
        size: Height and width of the image.
        where: What an error message calls the image.

    Raises:
        GenerationError: The image is too narrow for the model.
    """
    height, width = _SIZINGS[processor.sizing](processor, first_size(processor, size))
    if not height or not width:
        raise _too_narrow(size, where)
    return height, width


def first_size(processor: Processor, size: Size) -> Size:
    """Return the height and width to which an image is resized first, before it has whole tiles.

    Without tiles that is its own size.
    """
    if processor.tiles is None:
        return size
    height, width = size
    aspect, longest = width / height, processor.tiles.longest_side
    if width >= height:
        return max(_even(int(longest / aspect)), 1), longest
    return longest, max(_even(int(longest * aspect)), 1)


def _even(length: int) -> int:
    return length + length % 2


def tile_grid(processor: Processor, size: Size) -> tuple[int, int]:
    """Return the rows and columns of tiles of an image that has been resized; zeros without."""
    if processor.tiles is None:
        return 0, 0
    grid = size[0] // (processor.height or 1), size[1] // (processor.width or 1)
    return (0, 0) if grid == (1, 1) else grid


def token_count(processor: Processor, size: Size) -> int:
    """Return the number of tokens of an image that has been resized."""
    rows, columns = tile_grid(processor, size)
    if rows * columns:
        size = processor.height or 0, processor.width or 0
    return size[0] // processor.side * (size[1] // processor.side) * (rows * columns + 1)


def video_size(processor: Processor, frames: int, size: Size, where: object = None) -> Size:
    """Return the height and width to which the frames of a video are resized.

    Args:
        processor: The recipe, which has one of videos.
        frames: Number of frames.
        size: Their height and width.
        where: What an error message calls the video.

    Raises:
        GenerationError: They are too narrow for the model.
    """
    assert processor.video is not None, "the caller has asked for it"
    side, most = processor.side, processor.video.max_pixels
    scale = max(1.0, side / size[0], side / size[1])
    height, width = (int(length * scale) for length in size) if scale > 1 else size
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise _too_narrow(size, where)
    new = round(height / side) * side, round(width / side) * side
    of_patch = processor.temporal_patch_size
    pixels = round(frames / of_patch) * of_patch * new[0] * new[1]
    if pixels > most:
        shrink = math.sqrt(frames * height * width / most)
        lengths = [math.floor(length / shrink / side) * side for length in (height, width)]
        return max(side, lengths[0]), max(side, lengths[1])
    if pixels < processor.video.min_pixels:
        grow = math.sqrt(processor.video.min_pixels / (frames * height * width))
        return math.ceil(height * grow / side) * side, math.ceil(width * grow / side) * side
    return new


def _too_narrow(size: Size, where: object) -> GenerationError:
    return GenerationError(
        "the image is too narrow for this model",
        where=where,
        expected=f"sides that differ at most by a factor of {MAX_ASPECT}",
        found=f"{size[1]} x {size[0]}",
        hint="cut the image, or put it on a wider canvas",
    )


def most_patches(processor: Processor, tokens: int) -> int:
    """Return how many patches an image has at most.

    Args:
        processor: The recipe.
        tokens: Most tokens of an image, besides what the recipe says.
    """
    of_token = processor.merge_size**2
    tile = (processor.height or 0) * (processor.width or 0)
    pixels = processor.max_pixels or tile
    if processor.tiles is not None:
        # Both sides become whole tiles, and the image as a whole is another tile.
        sides = (processor.height or 1, processor.width or 1)
        pixels += tile * math.prod(-(-processor.tiles.longest_side // side) for side in sides)
    patches = pixels // processor.patch_size**2 or (processor.max_tokens or 0) * of_token
    return min(patches, tokens * of_token)


def _within_bounds(processor: Processor, size: Size) -> Size:
    (height, width), side = size, processor.side
    if max(size) > MAX_ASPECT * min(size):
        return 0, 0
    least, most = processor.min_pixels or 1, processor.max_pixels or 1
    new = round(height / side) * side, round(width / side) * side
    if new[0] * new[1] > most:
        shrink = math.sqrt(height * width / most)
        lengths = (math.floor(length / shrink / side) * side for length in size)
        return max(side, next(lengths)), max(side, next(lengths))
    if new[0] * new[1] < least:
        grow = math.sqrt(least / (height * width))
        return math.ceil(height * grow / side) * side, math.ceil(width * grow / side) * side
    return new


def _within_budget(processor: Processor, size: Size) -> Size:
    (height, width), side, most = size, processor.side, processor.max_tokens or 1
    factor = math.sqrt(most * side**2 / (height * width))
    rows, columns = math.floor(factor * height / side), math.floor(factor * width / side)
    if not rows and columns:
        rows, columns = 1, min(width // height, most)
    elif not columns and rows:
        rows, columns = min(height // width, most), 1
    return rows * side, columns * side


def _fixed(processor: Processor, _size: Size) -> Size:
    return processor.height or 0, processor.width or 0


def _whole_tiles(processor: Processor, size: Size) -> Size:
    (height, width), tall, wide = size, processor.height or 1, processor.width or 1
    aspect = width / height
    if width >= height:
        width = _multiple(width, wide)
        return _multiple(int(width / aspect), tall), width
    height = _multiple(height, tall)
    return height, _multiple(int(height * aspect), wide)


def _multiple(length: int, step: int) -> int:
    return max(math.ceil(length / step), 1) * step


_SIZINGS: Mapping[str, Callable[[Processor, Size], Size]] = MappingProxyType(
    {
        "pixel_bounds": _within_bounds,
        "token_budget": _within_budget,
        "fixed": _fixed,
        "tiles": _whole_tiles,
    }
)
