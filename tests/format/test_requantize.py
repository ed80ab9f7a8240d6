"""Codes that are exchanged while the scales of a block stay."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.codecs import CODECS

DISTRIBUTIONS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.random(shape) + 0.5,
    "zero": lambda rng, shape: 0 * rng.random(shape),
    "denormal": lambda rng, shape: rng.standard_normal(shape) * 1e-40,
    "large": lambda rng, shape: rng.standard_normal(shape) * 1e4,
}
LINEAR = [name for name, codec in CODECS.items() if codec.levels]


def test_block_types_except_floats_have_codes():
    assert set(CODECS) - set(LINEAR) == {"F32", "F16", "BF16", "MXFP4"}


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("name", LINEAR)
def test_decoded_values_give_the_same_values_again(name, kind, rng):
    codec = CODECS[name]
    rows = DISTRIBUTIONS[kind](rng, (3, 300)).astype(np.float32)
    stored = codec.quantize(rows)
    values = codec.dequantize(stored, 300)
    again = codec.requantize(stored, values)
    assert again.shape == stored.shape
    np.testing.assert_array_equal(codec.dequantize(again, 300), values)


@pytest.mark.parametrize("name", LINEAR)
def test_other_values_get_the_nearest_codes_of_the_grid(name, rng):
    codec = CODECS[name]
    rows, others = rng.standard_normal((2, 4, 512)).astype(np.float32)
    stored = codec.quantize(rows)
    lowest, step = codec.grid(stored, 512)
    codes = np.arange(codec.levels)[:, None, None]
    expected = np.abs(lowest + codes * step - others).min(axis=0)
    values = codec.dequantize(codec.requantize(stored, others), 512)
    np.testing.assert_allclose(np.abs(values - others), expected, atol=1e-5)
    assert not np.array_equal(values, codec.dequantize(stored, 512))
