"""The images of a prompt, as patches, within a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rdrr_format.errors import GenerationError
from rdrr_manifests.models import Processor

from rdrr_runtime.images.decode import read_image
from rdrr_runtime.images.patches import ImagePatches, image_patches
from rdrr_runtime.images.sizes import resized, token_count
from rdrr_runtime.images.sources import image_content


@dataclass(frozen=True)
class PromptImages:
    """The images of a prompt, in its order.

    Attributes:
        processor: The recipe that they follow.
        patches: Their patches.
    """

    processor: Processor
    patches: tuple[ImagePatches, ...]

    @property
    def layouts(self) -> list[tuple[int, int, int]]:
        """Tokens of a tile, rows and columns of tiles of each image; without tiles 0 of both."""
        square = self.processor.merge_size**2
        return [(image.grid[1] * image.grid[2] // square, *image.tiles) for image in self.patches]


def read_images(
    processor: Processor,
    sources: Sequence[str | Path | bytes],
    *,
    max_tokens: int,
    files: bool = True,
) -> PromptImages:
    """Read the images of a prompt.

    Args:
        processor: The recipe.
        sources: Where the images are: data URLs, paths of files, or bytes.
        max_tokens: Most tokens of all images together.
        files: Whether a path is allowed.

    Raises:
        GenerationError: A file is no image that is read, or is too large or too narrow; or the
            images have too many tokens.
        StoreError: A file cannot be read.
        UsageError: Pillow is not installed, or a source is none of these.
    """
    patches: list[ImagePatches] = []
    total = 0
    for number, source in enumerate(sources, 1):
        where = f"image {number}" if isinstance(source, bytes) else _name(source, number)
        image = read_image(image_content(source, where, files=files), where)
        size = resized(processor, (image.height, image.width), where)
        tokens = token_count(processor, size)
        total += tokens
        if total > max_tokens:
            raise GenerationError(
                f"the image needs {tokens} tokens at {size[1]} x {size[0]} pixels, which do not "
                "fit the context",
                where=where,
                expected=f"at most {max_tokens} tokens of all images",
                found=total,
                hint="take a smaller image, or load the model with a larger context",
            )
        patches.append(image_patches(processor, image, where))
    return PromptImages(processor, tuple(patches))


def _name(source: str | Path, number: int) -> str:
    """Return what an error message calls an image: its file, or its place in the prompt."""
    text = str(source)
    return f"image {number}" if text[:5].lower() == "data:" else text
