"""Pictures of a shape or a digit, and the words that say what is to be seen in them.

It is in one of 3 x 3 places, in one of six colours. No flip, turn or exchange of channels leaves
the words of most pictures right, so a model that says them shows that it sees pixels, places and
colours as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

COLORS = {
    "red": (225, 30, 30),
    "green": (30, 200, 30),
    "blue": (40, 60, 235),
    "yellow": (225, 215, 30),
    "cyan": (30, 215, 225),
    "magenta": (225, 40, 215),
}
SHAPES = ("circle", "square", "triangle", "cross")
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "center", "right")
DIGITS = (
    "111101101101111",
    "010110010010111",
    "111001111100111",
    "111001011001111",
    "101101111001001",
    "111100111001111",
    "111100111101111",
    "111001001001001",
    "111101111101111",
    "111101111001111",
)
"""The digits in 5 rows of 3 points."""

GLYPHS = (*SHAPES, *map(str, range(10)))
"""What is in pictures: the shapes and the digits."""

SIZES = ((48, 48), (48, 64), (64, 48))
"""Heights and widths of pictures."""


@dataclass(frozen=True)
class Picture:
    """A picture and its words.

    Attributes:
        pixels: [height, width, 3].
        words: What is to be seen, such as `red circle top left` or `blue 7 middle right`.
    """

    pixels: NDArray[np.uint8]
    words: str

    @property
    def image(self) -> Image:
        """The picture as Pillow has it."""
        from PIL import Image

        return Image.fromarray(self.pixels)


def picture(rng: np.random.Generator, size: tuple[int, int] | None = None) -> Picture:
    """Return a random picture.

    Args:
        rng: Source of what is in it.
        size: Height and width; one of `SIZES` when None.
    """
    height, width = size or SIZES[rng.integers(len(SIZES))]
    color, glyph = list(COLORS)[rng.integers(len(COLORS))], GLYPHS[rng.integers(len(GLYPHS))]
    row, column = rng.integers(3, size=2).tolist()
    pixels = np.full((height, width, 3), rng.integers(0, 50), np.int16)
    cell = (height // 3, width // 3)
    mask = _mask(glyph, min(cell) - int(rng.integers(2)))
    spans = []
    for index, length, extent in zip((row, column), cell, mask.shape, strict=True):
        start = index * length + int(rng.integers(min(length - extent, 2) + 1))
        spans.append(slice(start, start + extent))
    pixels[tuple(spans)][mask] = np.array(COLORS[color]) + rng.integers(-25, 26, 3)
    pixels += rng.integers(-8, 9, pixels.shape, np.int16)
    words = f"{color} {glyph} {ROWS[row]} {COLUMNS[column]}"
    return Picture(pixels.clip(0, 255).astype(np.uint8), words)


def _mask(glyph: str, side: int) -> NDArray[np.bool_]:
    """Return the points of a shape or of a digit in a square."""
    if glyph.isdigit():
        points = np.array([point == "1" for point in DIGITS[int(glyph)]]).reshape(5, 3)
        return points.repeat(side // 5, 0).repeat(side // 4, 1)
    down, across = (np.mgrid[0:side, 0:side] + 0.5) / side - 0.5
    masks: dict[str, NDArray[np.bool_]] = {
        "circle": down**2 + across**2 <= 0.25,
        "square": np.ones((side, side), bool),
        "triangle": np.abs(across) <= (down + 0.5) / 2,
        "cross": np.minimum(np.abs(down), np.abs(across)) <= 0.15,
    }
    return masks[glyph]
