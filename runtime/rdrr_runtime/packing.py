"""Texts packed into one pass without padding: each is a segment, and attends to itself alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EncodedText:
    """The token ids of a text.

    Attributes:
        ids: Token ids, at least one.
        types: Type of each token, in models that have an embedding of it; 0 for all when None.
    """

    ids: Sequence[int]
    types: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.ids)


def packs(texts: Sequence[EncodedText], rows: int) -> Iterator[Sequence[EncodedText]]:
    """Yield runs of consecutive texts that fit a pass of `rows` token rows, in order."""
    first, used = 0, 0
    for at, text in enumerate(texts):
        if at > first and used + len(text) > rows:
            yield texts[first:at]
            first, used = at, 0
        used += len(text)
    if texts:
        yield texts[first:]


def mean_of(rows: F32) -> F32:
    """Return the mean of rows [count, width], [width]; zeros if there are none."""
    # A product takes a fifth of the time of a mean along the first axis.
    mean: F32 = np.full(len(rows), 1.0 / max(1, len(rows)), np.float32) @ rows
    return mean


@dataclass(frozen=True)
class Segments:
    """Which rows of a pass belong to which text, the rows of one text after those of another.

    Attributes:
        ends: Row after the last of each text.
        types: Type of the token of each row.
    """

    ends: I64
    types: I64

    @staticmethod
    def of(texts: Sequence[EncodedText]) -> Segments:
        """Return the segments of texts, one after the other from row 0."""
        types = [np.zeros(len(t), np.int64) if t.types is None else t.types for t in texts]
        return Segments(np.cumsum([len(text) for text in texts]), np.concatenate(types))

    @property
    def starts(self) -> I64:
        """First row of each text."""
        return np.concatenate(([0], self.ends[:-1]))

    @property
    def lengths(self) -> I64:
        """Rows of each text."""
        return self.ends - self.starts

    def positions(self) -> I64:
        """Return the position of each row in its text."""
        return np.arange(self.ends[-1]) - np.repeat(self.starts, self.lengths)

    def ranges(self, part: slice) -> npt.NDArray[np.uint32]:
        """Return the first row of a part of each text and the row after its last, [texts, 2]."""
        ranges = [part.indices(length)[:2] for length in self.lengths.tolist()]
        return np.asarray(np.add(ranges, self.starts[:, None]), np.uint32)

    def split(self, rows: F32) -> list[F32]:
        """Return the rows of each text."""
        return np.split(rows, self.ends[:-1])
