"""The images of a prompt, as patches, within a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rdrr_format.errors import GenerationError
from rdrr_manifests.models import Processor

from rdrr_runtime.images.decode import read_image
from rdrr_runtime.images.frames import open_frames
from rdrr_runtime.images.patches import ImagePatches, image_patches
from rdrr_runtime.images.sizes import resized, token_count, video_size
from rdrr_runtime.images.sources import ImageSource, VideoSource, image_content
from rdrr_runtime.images.video import chosen_frames, frame_pixels, video_patches

Layout = tuple[int, int, int] | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class PromptImages:
    """The images of a prompt, in its order.

    Attributes:
        processor: The recipe that they follow.
        patches: Their patches, of a video those of each of its parts.
        layouts: What each image and video is in the prompt: tokens of a tile, rows and columns of
            tiles, without tiles 0 of both; of a video the tokens of the frames of a patch, and the
            seconds of each.
    """

    processor: Processor
    patches: tuple[ImagePatches, ...]
    layouts: tuple[Layout, ...]


def read_images(
    processor: Processor,
    sources: Sequence[ImageSource | VideoSource],
    *,
    max_tokens: int,
    files: bool = True,
) -> PromptImages:
    """Read the images and videos of a prompt.

    Args:
        processor: The recipe.
        sources: Where the images are: data URLs, paths of files, or bytes; and videos.
        max_tokens: Most tokens of all of them together.
        files: Whether a path is allowed.

    Raises:
        GenerationError: A file is no image that is read, or is too large or too narrow; or the
            images have too many tokens; or the recipe has no videos.
        StoreError: A file cannot be read.
        UsageError: Pillow is not installed, or a source is none of these.
    """
    read = _Reader(processor, max_tokens, files)
    for number, source in enumerate(sources, 1):
        if isinstance(source, VideoSource):
            read.video(source, f"video {number}")
        else:
            read.image(source, _name(source, number))
    return PromptImages(processor, tuple(read.patches), tuple(read.layouts))


class _Reader:
    """Reads the images of a prompt one after the other.

    Args:
        processor: The recipe.
        max_tokens: Most tokens of all images together.
        files: Whether a path is allowed.
    """

    def __init__(self, processor: Processor, max_tokens: int, files: bool) -> None:
        self._processor, self._most, self._files = processor, max_tokens, files
        self._total = 0
        self.patches: list[ImagePatches] = []
        self.layouts: list[Layout] = []

    def image(self, source: ImageSource, where: str) -> None:
        """Add an image."""
        processor = self._processor
        image = read_image(image_content(source, where, files=self._files), where)
        size = resized(processor, (image.height, image.width), where)
        self._count(
            token_count(processor, size), f"the image needs {{}} tokens at {_of(size)}", where
        )
        patches = image_patches(processor, image, where)
        self.patches.append(patches)
        tokens = patches.grid[1] * patches.grid[2] // processor.merge_size**2
        self.layouts.append((tokens, *patches.tiles))

    def video(self, source: VideoSource, where: str) -> None:
        """Add a video."""
        processor = self._processor
        if processor.video is None:
            raise GenerationError(
                "the model does not see videos: its package has no recipe for them",
                where=where,
                expected="`processor.video` in the manifest",
                hint="give frames as images",
            )
        frames = open_frames(source, where, files=self._files)
        chosen = chosen_frames(processor.video, frames.count, frames.rate, where)
        size = video_size(processor, len(chosen.numbers), frames.size, where)
        seconds = chosen.seconds(processor.temporal_patch_size)
        tokens = size[0] // processor.side * (size[1] // processor.side)
        what = f"the video needs {{}} tokens, of {len(chosen.numbers)} frames at {_of(size)}"
        self._count(tokens * len(seconds), what, where)
        pixels = [frame_pixels(processor, frames.read(number), size) for number in chosen.numbers]
        self.patches += video_patches(processor, pixels)
        self.layouts.append((tokens, seconds))

    def _count(self, tokens: int, what: str, where: str) -> None:
        """Count tokens before memory is taken for them.

        Raises:
            GenerationError: They do not fit.
        """
        self._total += tokens
        if self._total > self._most:
            raise GenerationError(
                f"{what.format(tokens)}, which do not fit the context",
                where=where,
                expected=f"at most {self._most} tokens of all images",
                found=self._total,
                hint="take a smaller one, or load the model with a larger context",
            )


def _of(size: tuple[int, int]) -> str:
    return f"{size[1]} x {size[0]} pixels"


def _name(source: ImageSource, number: int) -> str:
    """Return what an error message calls an image: its file, or its place in the prompt."""
    is_file = not isinstance(source, bytes) and str(source)[:5].lower() != "data:"
    return str(source) if is_file else f"image {number}"
