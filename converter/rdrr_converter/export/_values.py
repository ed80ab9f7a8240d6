"""Encoding the values of one tensor for export: in another type, shifted, or in another order.

A few rows are read at a time. The encoder measures the error of the exported values, whatever
their type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS
from rdrr_format.errors import ConversionError
from rdrr_manifests.logical import F32Array, LogicalTensor, RowReader
from rdrr_manifests.package import Package

from rdrr_converter.checkpoint.outgoing import OutgoingTensor
from rdrr_converter.export._scaled_blocks import scaled_blocks

Bytes = npt.NDArray[np.uint8]
CHUNK_WEIGHTS = 1 << 20

_VIEWS: Mapping[str, str] = MappingProxyType({"F32": "<u4", "F16": "<u2", "BF16": "<u2"})
"""How `arrange` sees the values of each scalar type; those of block types are bytes."""


class Encoder:
    """An encoder of one exported tensor that also measures its error.

    Args:
        package: The package.
        outgoing: The planned tensor.

    Attributes:
        relative_rmse: sqrt(sum (written - stored)^2 / sum stored^2) of the chunks so far.
    """

    def __init__(self, package: Package, outgoing: OutgoingTensor) -> None:
        self._package, self._outgoing = package, outgoing
        self._difference = self._power = 0.0

    @property
    def relative_rmse(self) -> float:
        """Error of the chunks so far; 0 if every value is exact."""
        return sqrt(self._difference / self._power) if self._difference else 0.0

    def chunks(self) -> Iterator[Bytes]:
        """Yield the encoded rows of all parts in order, uint8 [rows, row bytes].

        Raises:
            FormatError: The stored bytes violate the format.
            ShardError: A shard is missing or too short.
            ConversionError: A value does not fit the type.
        """
        out = self._outgoing
        if out.arrange is None:
            for part in out.parts:
                yield from self._chunks(part)
            if out.padding:
                reader = RowReader(self._package, out.parts[0])
                yield np.repeat(self._rows(reader, out.parts[0], 0, 1), out.padding, axis=0)
            return
        width, step = _VIEWS.get(out.dtype, "u1"), out.at_a_time or len(out.parts)
        for first in range(0, len(out.parts), step):
            some = out.parts[first : first + step]
            read = [np.concatenate(list(self._chunks(part))).view(width) for part in some]
            yield np.ascontiguousarray(out.arrange(read)).view(np.uint8)

    def _chunks(self, part: LogicalTensor) -> Iterator[Bytes]:
        out, reader = self._outgoing, RowReader(self._package, part)
        step = max(1, CHUNK_WEIGHTS // max(1, part.columns) // out.row_step) * out.row_step
        for first in range(0, part.rows, step):
            count = min(step, part.rows - first)
            raw = self._rows(reader, part, first, count)
            if out.vector_order is not None:
                raw = raw.view("<f4")[:, out.vector_order].view(np.uint8)
            yield raw if out.order is None else raw[out.order(first, count) - first]

    def _rows(self, reader: RowReader, part: LogicalTensor, first: int, count: int) -> Bytes:
        out = self._outgoing
        if out.is_as_stored:
            return reader.stored(first, count)
        values, factors = reader.values(first, count), self._factors(part, first, count)
        if factors is None or not (part.dtype.is_block and out.keeps_type):
            return self._encode(part, values, factors)
        raw = scaled_blocks(reader.stored(first, count), part.dtype, factors)
        self._compare(values * factors[:, None], CODECS[out.dtype].dequantize(raw, part.columns))
        return raw

    def _factors(
        self, part: LogicalTensor, first: int, count: int
    ) -> npt.NDArray[np.float64] | None:
        """Return the factors of some rows of a part, if there are any."""
        out = self._outgoing
        if out.factors is None:
            return None
        first += sum(before.rows for before in out.parts[: out.parts.index(part)])
        return out.factors[first : first + count]

    def _encode(
        self, part: LogicalTensor, values: F32Array, factors: npt.NDArray[np.float64] | None
    ) -> Bytes:
        out = self._outgoing
        exact = values.astype(np.float64)
        if factors is not None:
            exact *= factors[:, None]
            values = exact.astype(np.float32)
        if out.shift:
            values = values + np.float32(out.shift)
            exact += out.shift
        if out.transform is not None:
            exact = out.transform(exact)
            values = exact.astype(np.float32)
        codec = CODECS[out.dtype]
        with np.errstate(over="ignore"):
            raw = codec.quantize(values)
        is_changed = out.shift or out.transform is not None or factors is not None
        if out.dtype == "F32" and not is_changed:
            return raw
        written = codec.dequantize(raw, values.shape[1])
        if not np.isfinite(written).all():
            raise ConversionError(
                f"a value does not fit {out.dtype}",
                where=part.name,
                found=f"{np.abs(values).max():.6g}",
                hint="export with `dtype` f32 or `dtype` bf16",
            )
        self._compare(exact, written)
        return raw

    def _compare(self, exact: npt.NDArray[np.float64], written: F32Array) -> None:
        self._power += float(np.vdot(exact, exact))
        difference = exact - written
        self._difference += float(np.vdot(difference, difference))
