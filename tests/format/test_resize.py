"""Blocks that are scaled to the size of their weights, with the codes that they have."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.codecs import CODECS

LINEAR = [name for name, codec in CODECS.items() if codec.levels]
K = 512


def products(name, rows, stored, columns):
    """The products of blocks with their weights, and of the weights with themselves."""
    values = CODECS[name].dequantize(stored, K).astype(np.float64)
    size = CODECS[name].dtype.block_elements
    return [
        (columns * rows * other).reshape(-1, size).sum(axis=1, dtype=np.float64)
        for other in (values, rows)
    ]


def resized(name, rows, importance=None):
    codec = CODECS[name]
    stored = codec.quantize(rows, importance, "best")
    return stored, codec.resize(stored, rows, importance)


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("name", LINEAR)
def test_the_product_of_a_block_with_its_weights_is_that_of_the_weights(name, guided, rng):
    rows = rng.standard_normal((128, K)).astype(np.float32)
    columns = np.exp(rng.standard_normal(K)).astype(np.float32) if guided else np.ones(K)
    stored, after = resized(name, rows, columns if guided else None)
    # A number in f16 is a two-thousandth off, and a block may be the difference of two of them.
    product, square = products(name, rows, after, columns)
    np.testing.assert_allclose(product, square, rtol=2e-2)
    assert abs(product.sum() / square.sum() - 1) < 1e-4
    if not name.startswith("Q8"):
        product, square = products(name, rows, stored, columns)
        assert product.sum() < 0.9998 * square.sum()  # blocks of least error are smaller


@pytest.mark.parametrize("name", LINEAR)
def test_codes_stay_and_only_scales_change(name, rng):
    codec = CODECS[name]
    rows = rng.standard_normal((8, K)).astype(np.float32)
    stored, after = resized(name, rows)
    assert after.shape == stored.shape
    changed = (after != stored).reshape(-1, codec.dtype.block_bytes).any(axis=0)
    scales = {byte for at in codec.scales for byte in (at, at + 1)}
    assert set(np.flatnonzero(changed)) <= scales
    if not name.startswith("Q8"):
        assert changed.any()


@pytest.mark.parametrize("name", LINEAR)
def test_rows_are_independent(name, rng):
    codec = CODECS[name]
    rows = rng.standard_normal((9, 300)).astype(np.float32)  # with padding
    stored = codec.quantize(rows, quality="best")
    together = codec.resize(stored, rows)
    assert np.array_equal(together[4:6], codec.resize(stored[4:6], rows[4:6]))


@pytest.mark.parametrize("name", LINEAR)
def test_blocks_that_have_nothing_in_common_with_their_weights_stay(name, rng):
    codec = CODECS[name]
    rows = rng.standard_normal((4, K)).astype(np.float32)
    stored = codec.quantize(rows)
    assert np.array_equal(codec.resize(stored, 0 * rows), stored)
    assert np.array_equal(codec.resize(stored, -rows), stored)
    zeros = codec.quantize(0 * rows)
    assert np.array_equal(codec.resize(zeros, rows), zeros)
    huge = rows.copy()
    huge[:, 0] = 60000 * 8  # scales near the largest f16
    stored = codec.quantize(huge)
    assert np.isfinite(codec.dequantize(codec.resize(stored, 1.05 * huge), K)).all()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "MXFP4"])
def test_types_without_a_grid_are_left_as_they_are(name, rng):
    rows = rng.standard_normal((4, K)).astype(np.float32)
    stored, after = resized(name, rows)
    assert np.array_equal(stored, after)
