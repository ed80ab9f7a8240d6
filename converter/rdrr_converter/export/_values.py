"""The values of one tensor on their way out: in another type, shifted, or in another order.

Reads a few rows at a time. Whatever the target type, it is known afterwards whether every value
survived, and how far off the others are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS
from rdrr_format.errors import ConversionError
from rdrr_manifests.logical import F32Array, LogicalTensor, RowReader
from rdrr_manifests.package import Package

Bytes = npt.NDArray[np.uint8]
RowOrder = Callable[[int, int], npt.NDArray[np.intp]]
"""The rows of the model that stand at rows `first` to `first + count` of the checkpoint."""

CHUNK_WEIGHTS = 1 << 20


@dataclass(frozen=True)
class Outgoing:
    """One tensor of the checkpoint to be written.

    Attributes:
        name: Name in the checkpoint.
        parts: The package's tensors that it is made of, from the top down; of equal columns.
        shape: Shape in the checkpoint; a stack may count its parts in a dimension of their own.
        dtype: Type to write: a scalar type, or the stored block type for blocks as they are.
        why: Reason for a type that holds less than what is stored; empty for others.
        shift: Added to every value.
        order: Order of the rows of a tensor of one part; None for the model's.
        row_step: Rows that `order` moves among each other.
        vector_order: The same for the values of a vector in F32.
    """

    name: str
    parts: tuple[LogicalTensor, ...]
    shape: tuple[int, ...]
    dtype: str
    why: str = ""
    shift: float = 0.0
    order: RowOrder | None = None
    row_step: int = 1
    vector_order: npt.NDArray[np.intp] | None = None

    @property
    def is_as_stored(self) -> bool:
        """Whether the stored bytes are written."""
        return not self.shift and all(one.dtype.name == self.dtype for one in self.parts)

    @property
    def columns(self) -> int:
        """Columns of the matrix view."""
        return self.parts[0].columns

    @property
    def weights(self) -> int:
        """Values."""
        return sum(one.rows for one in self.parts) * self.columns

    @property
    def size(self) -> int:
        """Bytes in the checkpoint."""
        row_bytes = CODECS[self.dtype].row_bytes(self.columns)
        return sum(one.rows for one in self.parts) * row_bytes


class Encoder:
    """Writes one tensor, and knows afterwards what was lost.

    Args:
        package: Where it is.
        outgoing: What to make of it.

    Attributes:
        relative_rmse: sqrt(sum (written - stored)^2 / sum stored^2), once all chunks were taken.
    """

    def __init__(self, package: Package, outgoing: Outgoing) -> None:
        self._package, self._outgoing = package, outgoing
        self._difference = self._power = 0.0

    @property
    def relative_rmse(self) -> float:
        """0 where every value survived."""
        return sqrt(self._difference / self._power) if self._difference else 0.0

    def chunks(self) -> Iterator[Bytes]:
        """The tensor's bytes in order, uint8 [rows, row bytes]; the parts one after the other.

        Raises:
            FormatError: Stored bytes do not follow the format.
            ShardError: A shard is missing or too short.
            ConversionError: A value does not fit the type.
        """
        for part in self._outgoing.parts:
            yield from self._chunks(part)

    def _chunks(self, part: LogicalTensor) -> Iterator[Bytes]:
        out, reader = self._outgoing, RowReader(self._package, part)
        step = max(1, CHUNK_WEIGHTS // max(1, out.columns) // out.row_step) * out.row_step
        for first in range(0, part.rows, step):
            count = min(step, part.rows - first)
            raw = (
                reader.stored(first, count)
                if out.is_as_stored
                else self._encode(part, reader.values(first, count))
            )
            if out.vector_order is not None:
                raw = raw.view("<f4")[:, out.vector_order].view(np.uint8)
            yield raw if out.order is None else raw[out.order(first, count) - first]

    def _encode(self, part: LogicalTensor, values: F32Array) -> Bytes:
        out = self._outgoing
        exact = values.astype(np.float64)
        if out.shift:
            values = values + np.float32(out.shift)
            exact += out.shift
        codec = CODECS[out.dtype]
        with np.errstate(over="ignore"):
            raw = codec.quantize(values)
        if out.dtype == "F32" and not out.shift:
            return raw
        written = codec.dequantize(raw, values.shape[1])
        if not np.isfinite(written).all():
            raise ConversionError(
                f"a value does not fit {out.dtype}",
                where=part.name,
                found=f"{np.abs(values).max():.6g}",
                hint="export to another type: `dtype` f32 or bf16",
            )
        self._power += float(np.vdot(exact, exact))
        exact -= written
        self._difference += float(np.vdot(exact, exact))
        return raw
