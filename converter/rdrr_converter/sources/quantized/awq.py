"""AWQ, version gemm: 4-bit values packed along N; of each eight, even columns before odd ones.

qweight  int32 [K, N / 8]
qzeros   int32 [groups, N / 8]
scales   float [groups, N]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.source import SCALARS, F32Array, SourceTensor
from rdrr_converter.sources.quantized._bits import unpack
from rdrr_converter.sources.quantized._groups import Groups, find_groups
from rdrr_converter.sources.quantized.exact import Symmetric, as_blocks
from rdrr_converter.sources.quantized.modules import Method, Module, Settings, first_integer

_BITS = 4
_PACKED = 32 // _BITS
_NIBBLE_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position in the word of each of eight consecutive values."""

_MIDDLE = 8.0
"""Zero point if none are stored."""


@dataclass(frozen=True)
class _Weight:
    """Decodes parts of one weight."""

    qweight: SourceTensor
    qzeros: SourceTensor | None
    scales: SourceTensor
    groups: Groups

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        first, end, _ = rows.indices(self.scales.columns)
        begin, stop, _ = columns.indices(self.qweight.rows)
        values = _unpack_transposed(self.qweight, slice(begin, stop), first, end)
        window = self.groups.window(begin, stop)
        scales = self.scales_of(slice(first, end), window)
        if self.qzeros is None:
            zeros = np.full(scales.shape, _MIDDLE, np.float32)
        else:
            zeros = _unpack_transposed(self.qzeros, window, first, end).astype(np.float32)
        return self.groups.scaled(values, begin, scales, zeros)

    def scales_of(self, rows: slice, groups: slice) -> F32Array:
        """Return scales [rows, groups]."""
        return self.scales.read(groups, rows).T


def _unpack_transposed(
    tensor: SourceTensor, rows: slice, first: int, end: int
) -> npt.NDArray[np.uint8]:
    """Unpack columns `first` to `end` of some rows, transposed: uint8 [columns, rows]."""
    words = slice(first // _PACKED, -(-end // _PACKED))
    values = unpack(tensor.stored(rows, words), _BITS)
    eights = values.reshape(values.shape[0], values.shape[1] // _PACKED, _PACKED)[
        ..., _NIBBLE_ORDER
    ]
    start = words.start * _PACKED
    return np.ascontiguousarray(eights.reshape(values.shape)[:, first - start : end - start].T)


def _decode(module: Module, settings: Settings) -> SourceTensor:
    integers = ("I32", "U32")
    qweight, scales = module.matrix("qweight", integers), module.matrix("scales", SCALARS)
    count, outputs = scales.shape
    if qweight.columns * _PACKED != outputs:
        expected = f"{outputs} columns of {_BITS}-bit values"
        raise module.fault("does not fit the scales", "qweight", expected, list(qweight.shape))
    qzeros = None
    if settings.get("zero_point", True) or module.get("qzeros") is not None:
        qzeros = module.matrix("qzeros", integers)
        if qzeros.shape != (count, qweight.columns):
            raise module.fault(
                "does not fit the scales",
                "qzeros",
                [count, qweight.columns],
                list(qzeros.shape),
            )
    size = first_integer(settings, "group_size", "q_group_size")
    groups = find_groups(
        module, "scales", qweight.rows, count, () if size is None else (size,), "g_idx"
    )
    decode = _Weight(qweight, qzeros, scales, groups)
    shape = (outputs, qweight.rows)
    tensor = module.decoded(shape, f"AWQ {_BITS}-bit", decode, qweight.file)
    if qzeros is not None:
        return tensor
    return as_blocks(tensor, Symmetric(_BITS, groups, decode.scales_of))


def _check(settings: Settings, where: object) -> None:
    version = str(settings.get("version", "gemm")).lower()
    bits = first_integer(settings, "bits", "w_bit")
    if version != "gemm" or bits not in (None, _BITS):
        raise SourceError(
            "unknown packing of AWQ weights",
            where=where,
            expected=f"version gemm of {_BITS} bits",
            found=f"version {version}" + (f" of {bits} bits" if bits else ""),
        )


METHOD = Method(
    markers=("qweight",), parts=("qweight", "qzeros", "scales"), check=_check, decode=_decode
)
