"""Changed places of the tokens of a picture, and the words that are then right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pictures import COLUMNS, ROWS, Picture
from torch import Tensor


@dataclass(frozen=True)
class MovedPlaces:
    """How the places of an image's tokens are changed, and the words of the picture with them.

    The tower knows places too, and a model that reads them there alone does not notice when those
    of tokens are wrong.

    Attributes:
        exchanged: Whether rows and columns are exchanged, after the others.
        rows: Whether the order of rows is reversed.
        columns: Whether that of columns is.
    """

    exchanged: bool = False
    rows: bool = False
    columns: bool = False

    @staticmethod
    def of(key: tuple[int, int]) -> MovedPlaces:
        """Return the one of a step, given the seed of a run and the number of the step."""
        return MovedPlaces(
            *np.random.default_rng((*key, 1)).integers(2, size=3).astype(bool).tolist()
        )

    def words(self, shown: Picture) -> str:
        """Return the words of a picture whose places are changed."""
        color, glyph, row, column = shown.words.split()
        at = [ROWS.index(row), COLUMNS.index(column)]
        for axis, is_reversed in enumerate((self.rows, self.columns)):
            at[axis] = 2 - at[axis] if is_reversed else at[axis]
        at = at[::-1] if self.exchanged else at
        return f"{color} {glyph} {ROWS[at[0]]} {COLUMNS[at[1]]}"

    def places(self, places: Tensor) -> Tensor:
        """Return changed places of tokens, [time, height and width; tokens]."""
        first = places.amin(1, keepdim=True)
        offsets = places - first
        for axis, is_reversed in ((1, self.rows), (2, self.columns)):
            if is_reversed:
                offsets[axis] = offsets[axis].max() - offsets[axis]
        return first + (offsets[[0, 2, 1]] if self.exchanged else offsets)


PLAIN = MovedPlaces()
