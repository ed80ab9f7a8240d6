"""The table of block fields describes the same layout as the code of the codecs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from rdrr_format.block_fields import BLOCK_FIELDS, BlockFields, GroupScaleEncoding, ScaleEncoding
from rdrr_format.codecs import CODECS
from rdrr_format.codecs._scales import unpack_scales
from rdrr_format.dtypes import DTYPES
from support.gpu import SCALES

Blocks = npt.NDArray[np.uint8]


def codes(fields: BlockFields, blocks: Blocks, elements: int) -> npt.NDArray[np.int64]:
    """Return the codes of some blocks minus their zero point."""
    values = np.zeros((len(blocks), elements), np.int64)
    at = 0
    for field in fields.codes:
        for element in range(elements):
            bits = blocks[:, field.byte(element)].astype(np.int64) >> field.shift(element)
            values[:, element] |= (bits & ((1 << field.bits) - 1)) << at
        at += field.bits
    if fields.bits == 8:
        values = values.astype(np.uint8).view(np.int8).astype(np.int64)
    if fields.values:
        return np.array(fields.values)[values]
    return values - fields.zero_point


def half(blocks: Blocks, at: int) -> npt.NDArray[np.float64]:
    """Return the f16 value at one byte offset of each block."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float64)


def group_scales(
    fields: BlockFields, blocks: Blocks, elements: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the scale and the minimum of every code."""
    if fields.scale_encoding is ScaleEncoding.E8M0:
        scale = np.ldexp(1.0, blocks[:, fields.scale : fields.scale + 1].astype(np.int64) - 128)
    else:
        scale = half(blocks, fields.scale)
    minimum = np.zeros_like(scale) if fields.minimum is None else half(blocks, fields.minimum)
    if fields.groups is None:
        return scale, -minimum  # added, not subtracted
    at = fields.groups.offset
    if fields.groups.encoding is GroupScaleEncoding.INT8:
        result = blocks[:, at : at + elements // 16].view(np.int8)
        return scale * np.repeat(result, 16, axis=1), minimum
    scales, minimums = unpack_scales(blocks[:, at : at + 12])
    return scale * np.repeat(scales, 32, axis=1), minimum * np.repeat(minimums, 32, axis=1)


def random_blocks(rng: np.random.Generator, name: str) -> Blocks:
    """Return blocks of random bits whose scales are finite."""
    blocks = rng.integers(0, 256, (9, DTYPES[name].block_bytes), dtype=np.uint8)
    for at, size in SCALES.get(name, ()):
        scales = rng.uniform(-1, 1, 9).astype("<f2")
        blocks[:, at : at + size] = scales[:, None].view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(120, 130, 9)
    return blocks


def test_every_block_type_has_its_fields() -> None:
    assert set(BLOCK_FIELDS) == {name for name, kind in DTYPES.items() if kind.is_block}


@pytest.mark.parametrize("name", sorted(BLOCK_FIELDS))
def test_fields_and_codec_agree(rng: np.random.Generator, name: str) -> None:
    fields, elements = BLOCK_FIELDS[name], DTYPES[name].block_elements
    blocks = random_blocks(rng, name)
    scale, minimum = group_scales(fields, blocks, elements)
    values = scale * codes(fields, blocks, elements) - minimum
    decoded = CODECS[name].dequantize(blocks, elements)
    np.testing.assert_allclose(values, decoded, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(BLOCK_FIELDS))
def test_fields_do_not_overlap(name: str) -> None:
    fields, kind = BLOCK_FIELDS[name], DTYPES[name]
    taken = np.zeros((kind.block_bytes, 8), int)
    for field in fields.codes:
        for element in range(kind.block_elements):
            low = field.shift(element)
            taken[field.byte(element), low : low + field.bits] += 1
    size = 1 if fields.scale_encoding is ScaleEncoding.E8M0 else 2
    factors = [fields.scale] + ([] if fields.minimum is None else [fields.minimum])
    for at in factors:
        taken[at : at + size] += 1
    if fields.groups is not None:
        size = 12 if fields.groups.encoding is GroupScaleEncoding.K6 else kind.block_elements // 16
        taken[fields.groups.offset : fields.groups.offset + size] += 1
    assert (taken == 1).all()
