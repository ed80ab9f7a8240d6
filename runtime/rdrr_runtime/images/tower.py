"""What a vision tower makes of an image: the interface that its implementations fulfil."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from rdrr_manifests.models import Vision

from rdrr_runtime.images.patches import ImagePatches


@dataclass(frozen=True)
class ImageFeatures:
    """The features of an image, a row for each of its tokens in a prompt.

    Attributes:
        embeddings: What stands in place of the embeddings of the tokens, [tokens, hidden size of
            the text model] in float32.
        taps: What is added to the hidden states of these tokens after the first layers of the text
            model, one of the same shape for each of them; empty for most models.
        grid: Tokens in time, in height and in width; their product is the number of tokens.
    """

    embeddings: NDArray[np.float32]
    taps: tuple[NDArray[np.float32], ...]
    grid: tuple[int, int, int]

    @property
    def parts(self) -> tuple[NDArray[np.float32], ...]:
        """The embeddings and the taps."""
        return (self.embeddings, *self.taps)

    @property
    def digest(self) -> bytes:
        """Digest of grid and values."""
        return content_digest(self.grid, *self.parts)


def content_digest(grid: tuple[int, int, int], *parts: NDArray[np.float32]) -> bytes:
    """Return a digest of a grid and values, by which an image is known again."""
    from blake3 import blake3

    digest = blake3(repr(grid).encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part).view(np.uint8).data)
    return digest.digest()


def merged_grid(vision: Vision, image: ImagePatches) -> tuple[int, int, int]:
    """Return the grid of the tokens that a tower makes of the patches of an image."""
    frames, height, width = image.grid
    return frames, height // vision.merge_size, width // vision.merge_size


class Tower(Protocol):
    """A vision tower, ready to be run."""

    def encode(self, image: ImagePatches) -> ImageFeatures:
        """Return the features of an image."""
