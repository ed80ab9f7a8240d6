"""`processor`: the recipe by which an image file becomes pixels, patches and tokens of a prompt."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from rdrr_manifests.models.base import WRITTEN_IF_SET, Block

Resample = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
RESAMPLING: Final[tuple[Resample, ...]] = (
    "nearest",
    "lanczos",
    "bilinear",
    "bicubic",
    "box",
    "hamming",
)
"""The filters in the order of the numbers that checkpoints and Pillow have for them."""

MAX_IMAGE_PIXELS: Final = 1 << 26
"""Most pixels of an image after it is resized; the largest published bound is a quarter of it."""

Deviation = Annotated[float, Field(gt=0)]


class Tiles(Block):
    """How an image that is larger than a tile is cut, and what stands around its tiles.

    Attributes:
        longest_side: Length in pixels of the longer side before both become whole tiles.
        before: Text that the tokens of a tile follow; `{row}` and `{column}` count from 1.
        row_after: Text that follows the tiles of a row.
        after: Text that follows all tiles, before the image as a whole.
    """

    longest_side: int = Field(gt=0, le=4096)
    before: Annotated[str, WRITTEN_IF_SET] = ""
    row_after: Annotated[str, WRITTEN_IF_SET] = ""
    after: Annotated[str, WRITTEN_IF_SET] = ""


class Video(Block):
    """How the frames of a video are chosen and resized, and what stands around their tokens.

    Frames that make a patch together become tokens like those of an image. They have the same
    filter, mean and patches.

    Attributes:
        placeholder: Text that the chat template writes where a video is.
        before: Text that the tokens of a patch's frames follow; `{seconds}` is the mean of the
            times of the first and the last, with one decimal.
        after: Text that follows them.
        frames_per_second: Frames that are taken of a second, evenly from the first to the last.
        min_frames: Fewest frames that are taken, if there are as many.
        max_frames: Most frames that are taken.
        min_pixels: Fewest pixels of all frames together after resizing.
        max_pixels: Most pixels of all frames together after resizing.
    """

    placeholder: str = Field(min_length=1)
    before: str
    after: str
    frames_per_second: float = Field(gt=0, le=1000)
    min_frames: int = Field(gt=0, le=1 << 12)
    max_frames: int = Field(gt=0, le=1 << 12)
    min_pixels: int = Field(gt=0, le=MAX_IMAGE_PIXELS)
    max_pixels: int = Field(gt=0, le=MAX_IMAGE_PIXELS)


class Processor(Block):
    """How an image becomes patches, and what stands for them in a prompt. Written by rdrr only.

    Attributes:
        sizing: How the size is chosen to which an image is resized. `pixel_bounds`: its own, in
            multiples of `patchSize * mergeSize`, made larger or smaller so that its pixels lie
            within the bounds. `token_budget`: the largest of its shape, in the same multiples, of
            at most `maxTokens` tokens. `fixed`: always `height` and `width`. `tiles`: its own, in
            multiples of `height` and `width`, which are those of a tile; the tiles are followed by
            the whole image in the size of one, unless it is one.
        resample: Filter that resizes, as Pillow defines it.
        min_pixels: Fewest pixels after resizing; for `pixel_bounds`.
        max_pixels: Most pixels after resizing; for `pixel_bounds`.
        max_tokens: Most tokens of an image; for `token_budget`.
        height: Height in pixels after resizing, or of a tile; for `fixed` and `tiles`.
        width: Width in pixels after resizing, or of a tile; for `fixed` and `tiles`.
        tiles: How an image is cut; for `tiles`.
        rescale_factor: Factor of the values 0 to 255, before the mean is subtracted.
        mean: Mean of red, green and blue, which is subtracted.
        deviation: Standard deviation of red, green and blue, by which values are divided.
        patch_size: Height and width of a patch in pixels.
        temporal_patch_size: Frames of a patch; an image is repeated as often.
        merge_size: Height and width, in patches, of the square that becomes one token.
        patch_order: `merged` if the patches of a token follow each other, `raster` if patches are
            in rows of the image.
        channel_order: `first` if a patch holds a plane for each channel, `last` if the channels of
            each pixel.
        placeholder: Control token that the chat template writes where an image is.
        token: Control token that is repeated, once for each token of an image, in its place.
        before: Text that the first of them follows; with tiles, the first of the whole image.
        after: Text that follows the last of them.
        video: How videos are read; for `pixel_bounds`.
    """

    sizing: Literal["pixel_bounds", "token_budget", "fixed", "tiles"]
    resample: Resample
    min_pixels: Annotated[int | None, WRITTEN_IF_SET] = Field(
        default=None, gt=0, le=MAX_IMAGE_PIXELS
    )
    max_pixels: Annotated[int | None, WRITTEN_IF_SET] = Field(
        default=None, gt=0, le=MAX_IMAGE_PIXELS
    )
    max_tokens: Annotated[int | None, WRITTEN_IF_SET] = Field(
        default=None, gt=0, le=MAX_IMAGE_PIXELS
    )
    height: Annotated[int | None, WRITTEN_IF_SET] = Field(default=None, gt=0, le=MAX_IMAGE_PIXELS)
    width: Annotated[int | None, WRITTEN_IF_SET] = Field(default=None, gt=0, le=MAX_IMAGE_PIXELS)
    tiles: Annotated[Tiles | None, WRITTEN_IF_SET] = None
    rescale_factor: float = Field(gt=0)
    mean: tuple[float, float, float]
    deviation: tuple[Deviation, Deviation, Deviation]
    patch_size: int = Field(gt=0, le=1024)
    temporal_patch_size: int = Field(default=1, gt=0, le=4)
    merge_size: int = Field(gt=0, le=64)
    patch_order: Literal["merged", "raster"] = "raster"
    channel_order: Literal["first", "last"] = "first"
    placeholder: str = Field(min_length=1)
    token: str = Field(min_length=1)
    before: Annotated[str, WRITTEN_IF_SET] = ""
    after: Annotated[str, WRITTEN_IF_SET] = ""
    video: Annotated[Video | None, WRITTEN_IF_SET] = None

    @property
    def side(self) -> int:
        """Height and width in pixels of the square that becomes one token."""
        return self.patch_size * self.merge_size
