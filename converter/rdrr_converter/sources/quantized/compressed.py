"""compressed-tensors: packed integers, or 8-bit weights that keep their shape.

    weight_packed      int32 [N, ceil(K * bits / 32)], values plus 2^(bits - 1)
    weight_shape       [N, K]
    weight_scale       [N, groups]
    weight_zero_point  int32 [ceil(N * bits / 32), groups], packed along N; or int8 [N, groups]
    weight_g_idx       [K], the group of each column

    weight, weight_scale, weight_zero_point    int8 or fp8: see `_scaled`

The tensors of a module show whether and how it is quantized; the settings give widths and group
sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.source import F32Array, SourceTensor
from rdrr_converter.sources.quantized._bits import unpack, word_span
from rdrr_converter.sources.quantized._groups import Groups, find_groups
from rdrr_converter.sources.quantized._scaled import decode_scaled
from rdrr_converter.sources.quantized._scales import Scales, scales_of, zeros_of
from rdrr_converter.sources.quantized.exact import Symmetric, as_blocks
from rdrr_converter.sources.quantized.modules import Method, Module, Settings

_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mixed-precision",
    "dense",
)
_WIDTHS = (2, 4, 8)
"""Widths in bits whose packing is the same in all versions of the format."""


@dataclass(frozen=True)
class _Packed:
    """Decodes parts of one packed weight."""

    packed: SourceTensor
    shape: tuple[int, int]
    bits: int
    groups: Groups
    scales: Scales
    zeros: _Zeros

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        first, end, _ = rows.indices(self.shape[0])
        begin, stop, _ = columns.indices(self.shape[1])
        words, start = word_span(begin, stop, self.bits)
        values = unpack(self.packed.stored(slice(first, end), words), self.bits)
        values = values[:, begin - start : stop - start]
        window = self.groups.window(begin, stop)
        part = slice(0, 1) if self.scales.shape[0] == 1 else slice(first, end)
        scales, zeros = self.scales.read(part, window), self.zeros.read(part, window)
        return self.groups.scaled(values, begin, scales, zeros)


@dataclass(frozen=True)
class _Zeros:
    """The numbers to subtract from unpacked values: 2^(bits - 1) plus a zero point.

    Attributes:
        stored: Zero points: packed along N with 2^(bits - 1) included, or int8 without it; None if
            there are none.
        bits: Width of the values.
    """

    stored: SourceTensor | Scales | None
    bits: int

    def read(self, rows: slice, groups: slice) -> F32Array:
        """Return the numbers for some rows [rows, groups], or [1, groups] without zero points."""
        middle = np.float32(1 << (self.bits - 1))
        if self.stored is None:
            return np.full((1, groups.stop - groups.start), middle, np.float32)
        if isinstance(self.stored, Scales):
            return self.stored.read(rows, groups) + middle
        words, start = word_span(rows.start, rows.stop, self.bits)
        values = unpack(self.stored.stored(words, groups).T, self.bits)
        return values[:, rows.start - start : rows.stop - start].T.astype(np.float32)


def _decode(module: Module, settings: Settings) -> SourceTensor:
    if "weight_packed" in module.parts:
        return _decode_packed(module, settings)
    tiles = [size for weights in _weights(settings) for size in _tiles(weights)]
    return decode_scaled(module, "weight_scale", tiles)


def _decode_packed(module: Module, settings: Settings) -> SourceTensor:
    packed = module.matrix("weight_packed", ("I32",))
    shape = _shape(module, packed)
    bits = _bits(module, packed, shape, settings)
    scales = scales_of(module, "weight_scale", _scale_shape(module, shape[0]))
    sizes = tuple(columns for weights in _weights(settings) for _, columns in _tiles(weights))
    groups = find_groups(module, "weight_scale", shape[1], scales.shape[1], sizes, "weight_g_idx")
    zeros = _zeros(module, bits, scales.shape)
    decode = _Packed(packed, shape, bits, groups, scales, zeros)
    tensor = module.decoded(shape, f"int{bits}", decode, packed.file)
    read_zeros = None if zeros.stored is None else zeros.read
    return as_blocks(tensor, Symmetric(bits, groups, scales.read, read_zeros))


def _scale_shape(module: Module, rows: int) -> tuple[int, int]:
    """Return the number of rows and of groups of the scales."""
    part = "weight_scale"
    shape = module[part].shape
    if all(size == 1 for size in shape):
        return 1, 1
    if shape == (rows,):
        return rows, 1
    if len(shape) != 2 or shape[0] != rows or not shape[1]:
        raise module.fault("does not fit the weight", part, f"{rows} rows", list(shape))
    return rows, shape[1]


def _shape(module: Module, packed: SourceTensor) -> tuple[int, int]:
    part = "weight_shape"
    stored = module[part]
    sizes = stored.stored().reshape(-1)
    if stored.dtype not in ("I32", "I64") or sizes.size != 2:
        raise module.fault("cannot be read", part, "two integers", f"{sizes.size} numbers")
    rows, columns = (int(size) for size in sizes)
    if rows != packed.rows or columns < 1:
        raise module.fault("does not fit the weight", part, f"{packed.rows} rows", [rows, columns])
    return rows, columns


def _bits(module: Module, packed: SourceTensor, shape: tuple[int, int], settings: Settings) -> int:
    named = [weights.get("num_bits") for weights in _weights(settings)]
    stated = [bits for bits in _WIDTHS if bits in named]
    fitting = [bits for bits in stated if -(-shape[1] * bits // 32) == packed.columns]
    if len(fitting) != 1:
        known = " or ".join(map(str, _WIDTHS))
        expected = f"{shape[1]} values of {known} bits in a row, as the settings say"
        described = f"{packed.columns} words, num_bits {', '.join(map(str, named)) or 'not given'}"
        raise module.fault("does not fit the settings", "weight_packed", expected, described)
    return fitting[0]


def _zeros(module: Module, bits: int, shape: tuple[int, int]) -> _Zeros:
    part = "weight_zero_point"
    tensor = module.get(part)
    if tensor is None:
        return _Zeros(None, bits)
    if tensor.dtype == "I32" and tensor.shape == (-(-shape[0] * bits // 32), shape[1]):
        return _Zeros(tensor, bits)
    return _Zeros(zeros_of(module, part, shape), bits)


def _weights(settings: Settings) -> Iterator[Mapping[str, Any]]:
    """Yield the weight settings of each group of modules."""
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            yield weights


def _tiles(weights: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    size, block = weights.get("group_size"), weights.get("block_structure")
    if type(size) is int and size > 0:
        yield 1, size
    if isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
        yield block[0], block[1]


def _check(settings: Settings, where: object) -> None:
    groups = settings.get("config_groups")
    formats = [settings.get("format"), *_group_formats(groups)]
    sparsity = settings.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format") not in (None, "dense"):
        formats.append(sparsity["format"])
    unknown = [form for form in formats if form is not None and form not in _FORMATS]
    if unknown:
        raise SourceError(
            "unknown format of compressed-tensors",
            where=where,
            expected=", ".join(_FORMATS),
            found=unknown[0],
        )
    transforms = settings.get("transform_config")
    rotations = transforms.get("config_groups") if isinstance(transforms, Mapping) else None
    if rotations:
        raise SourceError(
            "weights that are rotated at run time are not supported",
            where=where,
            expected="no transform_config",
            found=", ".join(rotations) if isinstance(rotations, Mapping) else rotations,
        )


def _group_formats(groups: object) -> list[object]:
    if not isinstance(groups, Mapping):
        return []
    return [group.get("format") for group in groups.values() if isinstance(group, Mapping)]


METHOD = Method(
    markers=("weight_packed", "weight_scale"),
    parts=(
        "weight",
        "weight_packed",
        "weight_shape",
        "weight_scale",
        "weight_zero_point",
        "weight_g_idx",
    ),
    check=_check,
    decode=_decode,
)
