"""What every kind of checkpoint offers to the rest of the converter.

A source knows names, shapes and bytes. It does not know what a tensor is for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

F32Array = npt.NDArray[np.float32]
SCAN_ELEMENTS = 1 << 22
"""Weights that a pass over a tensor holds at once."""


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of a checkpoint, seen as a matrix and read in parts.

    Attributes:
        name: Name in the checkpoint.
        shape: Logical shape.
        dtype: Storage type, one of F32, F16, BF16.
        file: File that holds it, for messages.
        native: Opens the stored values: [rows, columns], BF16 as uint16. Cheap; maps, not reads.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    native: Callable[[], npt.NDArray[Any]]

    @property
    def rows(self) -> int:
        """Rows of the matrix view: all dimensions but the last (1 for a vector)."""
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Columns of the matrix view: the last dimension."""
        return self.shape[-1] if self.shape else 1

    def read(self, rows: slice = slice(None), columns: slice = slice(None)) -> F32Array:
        """A part of the matrix as float32, which holds every source type exactly."""
        return self._to_f32(self.native()[rows, columns])

    def read_transposed(self, columns: slice) -> F32Array:
        """Some columns as rows, float32 [columns, rows]; turned while the values are small."""
        return self._to_f32(np.ascontiguousarray(self.native()[:, columns].T))

    def _to_f32(self, stored: npt.NDArray[Any]) -> F32Array:
        if self.dtype != "BF16":
            return stored.astype(np.float32)
        bits = stored.astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32)

    def magnitude(self) -> float:
        """Largest absolute value; infinite or NaN where any value is.

        Compared as bit patterns without their sign, which are ordered as the values are, with
        infinity above every number and NaN above infinity.
        """
        stored = self.native()
        width = np.dtype(f"u{stored.dtype.itemsize}")
        mask = width.type((1 << (8 * width.itemsize - 1)) - 1)
        step = max(1, SCAN_ELEMENTS // max(1, self.columns))
        largest = width.type(0)
        for first in range(0, self.rows, step):
            bits = stored[first : first + step].view(width) & mask
            largest = max(largest, bits.max(initial=0))
        if self.dtype == "BF16":
            return float((np.uint32(largest) << np.uint32(16)).view(np.float32))
        return float(largest.view(stored.dtype))


def same_values(a: SourceTensor, b: SourceTensor) -> bool:
    """Whether two tensors hold the same bits, read in parts until one differs."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    step = max(1, SCAN_ELEMENTS // max(1, a.columns))
    unsigned = np.dtype(f"u{a.native().dtype.itemsize}")
    return all(
        np.array_equal(
            a.native()[first : first + step].view(unsigned),
            b.native()[first : first + step].view(unsigned),
        )
        for first in range(0, a.rows, step)
    )


@dataclass(frozen=True)
class Source:
    """An opened checkpoint.

    Attributes:
        path: The directory that holds the configuration and tokenizer.
        kind: Word for the kind of checkpoint, as `safetensors`.
        config: `config.json`.
        generation_config: `generation_config.json`; empty when there is none.
        tensors: By name, in the order of the files.
    """

    path: Path
    kind: str
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    generation_config: Mapping[str, Any] = field(default_factory=dict)

    def file(self, name: str) -> Path | None:
        """A file beside the weights, or None."""
        path = self.path / name
        return path if path.is_file() else None


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        SourceError: It cannot be read, is not JSON, or is not an object.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise SourceError("cannot be read", where=path, found=error.strerror) from error
    except (ValueError, RecursionError) as error:
        raise SourceError("is not JSON", where=path, found=error) from error
    if not isinstance(value, dict):
        raise SourceError("is not a JSON object", where=path, found=type(value).__name__)
    return value
