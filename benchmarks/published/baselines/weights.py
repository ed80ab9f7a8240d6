"""Matrices in GPU memory in the form in which packages store them, each in one buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout, geometry

ROW_ALIGNMENT = 16
"""Bytes: stored rows are padded with zeros to a multiple of this."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class StoredWeight:
    """A matrix [N, K] whose rows are stored one after another.

    Attributes:
        dtype: Name of the storage type.
        layout: `row` (N stored rows of K) or `column` (K stored rows of N).
        n: Number of outputs.
        k: Number of inputs.
        row_bytes: Bytes per stored row, including padding.
        words: The stored rows.
    """

    dtype: str
    layout: Layout
    n: int
    k: int
    row_bytes: int
    words: BufferSlice

    @property
    def size(self) -> int:
        """Return the bytes of GPU memory."""
        return self.words.size


def upload_stored(
    arena: Arena, dtype: str, layout: Layout, shape: tuple[int, int], data: Bytes, label: str
) -> StoredWeight:
    """Copy a matrix into GPU memory in its stored form.

    Args:
        arena: Owner of the buffer.
        dtype: Name of the storage type.
        layout: `row` or `column`.
        shape: Logical shape (N, K).
        data: The stored bytes.
        label: Name in messages and label of the buffer.

    Raises:
        FormatError: The layout is `flat`, or the data is not a whole number of rows.
        DeviceError: The device has too little memory.
    """
    if layout is Layout.FLAT:
        raise FormatError("no baseline kernel reads this layout", where=label, found=layout.value)
    rows = geometry(DTYPES[dtype], shape, layout).rows
    if data.size % rows:
        raise FormatError(
            "the data is not a whole number of rows",
            where=label,
            expected=f"a multiple of {rows} bytes",
            found=f"{data.size} bytes",
        )
    stored = data.reshape(rows, -1)
    padding = -stored.shape[1] % ROW_ALIGNMENT
    padded = np.pad(stored, ((0, 0), (0, padding)))
    n, k = shape
    words = arena.upload(label, np.ascontiguousarray(padded))
    return StoredWeight(dtype, layout, n, k, padded.shape[1], words)
