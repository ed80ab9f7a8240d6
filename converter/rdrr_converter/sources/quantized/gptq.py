"""GPTQ: values packed along K, with a scale and a zero point per group of columns.

    qweight  int32 [K * bits / 32, N]
    qzeros   int32 [groups, N * bits / 32]
    scales   float [groups, N]
    g_idx    int32 [K], the group of each column; in any order if "act order" was used

The first version of the format stores zero points minus 1. AutoGPTQ subtracts within each value,
with wrap-around. GPTQModel, when it writes the first version, subtracts from whole words, so a
value can borrow from the next one, which must be undone. Bits, K and groups are derived from the
shapes, which also works for single modules that are quantized differently from the rest. Early
versions of AutoGPTQ stored a bias of zeros for every module without a bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.source import SCALARS, F32Array, SourceTensor
from rdrr_converter.sources.quantized._bits import WIDTHS, unpack, word_span
from rdrr_converter.sources.quantized._groups import Groups, find_groups
from rdrr_converter.sources.quantized.exact import Symmetric, as_blocks
from rdrr_converter.sources.quantized.modules import Method, Module, Settings, first_integer

_FORMATS = ("gptq", "gptq_v2")
_FORMAT_KEYS = ("checkpoint_format", "format")
"""Keys for the packing; newer versions of GPTQModel write the second."""


@dataclass(frozen=True)
class _Weight:
    """Decodes parts of one weight.

    Attributes:
        zero_offset: Number to add to stored zero points: 1 in the first version of the format.
        borrows: Whether that number was subtracted from whole words.
    """

    qweight: SourceTensor
    qzeros: SourceTensor
    scales: SourceTensor
    bits: int
    groups: Groups
    zero_offset: int
    borrows: bool

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        first, end, _ = rows.indices(self.scales.columns)
        begin, stop, _ = columns.indices(self.qweight.rows * 32 // self.bits)
        words, start = word_span(begin, stop, self.bits)
        packed = self.qweight.stored(words, slice(first, end))
        values = unpack(packed.T, self.bits)[:, begin - start : stop - start]
        window, outputs = self.groups.window(begin, stop), slice(first, end)
        scales, zeros = self.scales_of(outputs, window), self.zeros_of(outputs, window)
        return self.groups.scaled(values, begin, scales, zeros)

    def scales_of(self, rows: slice, groups: slice) -> F32Array:
        """Return scales [rows, groups]."""
        return self.scales.read(groups, rows).T

    def zeros_of(self, rows: slice, groups: slice) -> F32Array:
        """Return zero points [rows, groups]."""
        first, end = rows.start, rows.stop
        words, start = word_span(first, end, self.bits)
        packed: npt.NDArray[np.uint32] = np.ascontiguousarray(self.qzeros.stored(groups, words))
        packed = packed.view("<u4")
        offset = self.zero_offset
        if self.borrows and offset:
            packed = packed + np.uint32(sum(1 << shift for shift in range(0, 32, self.bits)))
            offset = 0
        zeros = unpack(packed, self.bits)[:, first - start : end - start]
        if offset:
            zeros = (zeros + np.uint8(offset)) & np.uint8((1 << self.bits) - 1)
        return zeros.T.astype(np.float32)


def _decode(module: Module, settings: Settings) -> SourceTensor:
    integers = ("I32", "U32")
    qweight, qzeros = module.matrix("qweight", integers), module.matrix("qzeros", integers)
    scales = module.matrix("scales", SCALARS)
    count, outputs = scales.shape
    bits = qzeros.columns * 32 // max(1, outputs)
    if bits not in WIDTHS or qzeros.shape != (count, -(-outputs * bits // 32)):
        expected = f"{count} rows for {outputs} values of {', '.join(map(str, WIDTHS))} bits"
        raise module.fault("does not fit the scales", "qzeros", expected, list(qzeros.shape))
    columns = qweight.rows * 32 // bits
    if qweight.columns != outputs or qweight.rows * 32 % bits:
        expected = f"{outputs} columns of {bits}-bit values"
        raise module.fault("does not fit the scales", "qweight", expected, list(qweight.shape))
    size = first_integer(settings, "group_size")
    stated = () if size is None else (size,)
    groups = find_groups(module, "scales", columns, count, stated, "g_idx")
    old = _packings(settings) == [_FORMATS[0]]
    borrows = 32 % bits == 0 and "gptqmodel" in str(_maker(settings)).lower()
    decode = _Weight(qweight, qzeros, scales, bits, groups, int(old), borrows)
    tensor = module.decoded((outputs, columns), f"GPTQ {bits}-bit", decode, qweight.file)
    return as_blocks(tensor, Symmetric(bits, groups, decode.scales_of, decode.zeros_of))


def _maker(settings: Settings) -> object:
    meta = settings.get("meta")
    return meta.get("quantizer") if isinstance(meta, dict) else None


def _check(settings: Settings, where: object) -> None:
    packings = _packings(settings)
    if settings.get("is_marlin_format"):
        packings = ["marlin"]
    if len(packings) > 1 or packings[0] not in _FORMATS:
        raise SourceError(
            "unknown packing of GPTQ weights",
            where=where,
            expected=f"{_FORMAT_KEYS[0]} {' or '.join(_FORMATS)}",
            found=" and ".join(map(str, packings)),
        )


def _packings(settings: Settings) -> list[object]:
    """Return how weights are packed: the value of either key, or both where they differ."""
    stated = [settings[key] for key in _FORMAT_KEYS if settings.get(key) is not None]
    return [*stated[:1], *(value for value in stated[1:] if value != stated[0])] or [_FORMATS[0]]


METHOD = Method(
    markers=("qweight",),
    parts=("qweight", "qzeros", "scales", "g_idx"),
    check=_check,
    decode=_decode,
    empty_biases=True,
)
