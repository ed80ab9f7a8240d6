"""Where the patches of an image are: what rope and position embedding need, made on the host.

Nothing here depends on the pixels, so that images of one grid share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rdrr_format.errors import GenerationError
from rdrr_manifests.models import Vision
from rdrr_manifests.models.vision import PositionSampling

from rdrr_runtime.images.patches import ImagePatches

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Places:
    """The places of the patches of an image, in the order of the patches.

    Attributes:
        frames: Frames in time, which do not attend to each other.
        rows: Row of each patch.
        columns: Column of each patch.
        size: Rows and columns of a frame.
    """

    frames: int
    rows: I32
    columns: I32
    size: tuple[int, int]

    @staticmethod
    def of(vision: Vision, image: ImagePatches) -> Places:
        """Return the places of the patches of an image, which is that of a tower.

        Raises:
            GenerationError: The tower cannot read these patches.
        """
        frames, height, width = image.grid
        square = vision.merge_size
        expected = (frames * height * width, vision.patch_inputs)
        if image.patches.shape != expected or min(image.grid) < 1:
            raise GenerationError(
                "the vision tower cannot read these patches",
                expected=f"{expected[0]} patches of {expected[1]} values, as the grid has",
                found=list(image.patches.shape),
            )
        if height % square or width % square:
            raise GenerationError(
                "the patches of an image make no whole tokens",
                expected=f"a grid in multiples of {square} x {square}",
                found=f"{height} x {width}",
            )
        corner = np.indices((height // square, width // square, square, square), np.int32)
        down, right, row, column = corner.reshape(4, -1)
        rows, columns = down * square + row, right * square + column
        return Places(frames, np.tile(rows, frames), np.tile(columns, frames), (height, width))

    def rope_table(self, theta: float, head_dim: int) -> F32:
        """Return cosines and sines for each patch, float32 [patches, head_dim / 2, 2].

        The first half of the pairs is rotated by the row, the second by the column.
        """
        places = np.stack([self.rows, self.columns], axis=1)
        angles = np.arange(max(self.size))[:, None] * axis_frequencies(theta, head_dim)
        rotations = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
        return rotations[places].reshape(len(places), -1, 2)

    def interpolation(self, grid: int, sampling: PositionSampling = "bilinear") -> tuple[I32, F32]:
        """Return the four rows of a position embedding around each patch, and their weights.

        Args:
            grid: Rows and columns of the embedding, whose corners are those of the image.
            sampling: How it is read, see `Vision.position_sampling`.

        Returns:
            Rows of the embedding, int32 [patches, 4], and weights, float32 [patches, 4].
        """
        if sampling == "separate":
            return self._separate(grid)
        around = _within if sampling == "nearest" else _around
        height, width = self.size
        above, below, low = around(self.rows, height, grid)
        left, right, far = around(self.columns, width, grid)
        indices = [row * grid + column for row in (above, below) for column in (left, right)]
        weights = [down * across for down in (1 - low, low) for across in (1 - far, far)]
        return np.stack(indices, axis=1), np.stack(weights, axis=1).astype(np.float32)

    def _separate(self, grid: int) -> tuple[I32, F32]:
        """Return the row of the column of each patch, and that of its row, and their weights.

        Raises:
            GenerationError: The image has more rows or columns than the embedding.
        """
        if max(self.size) > grid:
            raise GenerationError(
                "the image has more patches in a row or column than the tower has positions",
                expected=f"at most {grid}",
                found=f"{self.size[0]} x {self.size[1]}",
            )
        unused = np.zeros_like(self.rows)
        indices = np.stack([self.columns, grid + self.rows, unused, unused], axis=1)
        return indices, np.tile(np.array([1, 1, 0, 0], np.float32), (len(indices), 1))


def axis_frequencies(theta: float, head_dim: int) -> NDArray[np.float64]:
    """Return the radians per row or column of each pair that one of them rotates."""
    count = head_dim // 4
    frequencies: NDArray[np.float64] = theta ** -(np.arange(count, dtype=np.float64) / count)
    return frequencies


def _around(places: I32, length: int, grid: int) -> tuple[I32, I32, F32]:
    """Return the neighbours of places on an axis of a grid, and the weight of the second."""
    exact = places * (grid - 1) / max(length - 1, 1)
    first = exact.astype(np.int32)
    return first, np.minimum(first + 1, grid - 1), (exact - first).astype(np.float32)


def _within(places: I32, length: int, grid: int) -> tuple[I32, I32, F32]:
    """Return the parts of an axis of a grid in which places begin, with the weight 0 of the second.

    The arithmetic is that of transformers, in float32: a place on a border may be rounded down.
    """
    starts = places.astype(np.float32) * (np.float32(1) / np.float32(length))
    borders = (np.arange(1, grid) / grid).astype(np.float32)
    part = np.searchsorted(borders, starts, side="right").astype(np.int32)
    return part, part, np.zeros(len(part), np.float32)
