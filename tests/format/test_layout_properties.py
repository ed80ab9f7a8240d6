"""The position of each weight, compared with loops that follow the definition of each layout."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES
from rdrr_format.encoding import decode_rows, decode_tensor, encode_tensor
from rdrr_format.layouts import Layout, geometry

NAMES = st.sampled_from(sorted(CODECS))
LAYOUTS = st.sampled_from(list(Layout))
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 300))


def block_of(layout, shape, block, n, k):
    """Return the index of the block that holds weight (n, k)."""
    N, K = shape
    if layout is Layout.ROW:
        return n * -(-K // block) + k // block
    if layout is Layout.COLUMN:
        return k * -(-N // block) + n // block
    return (n * K + k) // block


@settings(max_examples=80, deadline=None)
@given(name=NAMES, layout=LAYOUTS, shape=SHAPES, seed=st.integers(0, 2**32 - 1), data=st.data())
def test_a_weight_is_in_the_block_that_its_layout_says(name, layout, shape, seed, data):
    dtype = DTYPES[name]
    if data.draw(st.booleans()):
        shape = shape[::-1]
    weights = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    n = data.draw(st.integers(0, shape[0] - 1))
    k = data.draw(st.integers(0, shape[1] - 1))
    changed = weights.copy()
    changed[n, k] = 50.0  # beyond all others, so that the block's bytes must change
    before, after = (
        encode_tensor(values, dtype, layout).reshape(-1, dtype.block_bytes)
        for values in (weights, changed)
    )
    different = np.flatnonzero((before != after).any(axis=1))
    assert different.tolist() == [block_of(layout, shape, dtype.block_elements, n, k)]
    assert len(before) * dtype.block_bytes == geometry(dtype, shape, layout).size


@settings(max_examples=60, deadline=None)
@given(layout=LAYOUTS, shape=SHAPES, seed=st.integers(0, 2**32 - 1), name=NAMES)
def test_every_weight_is_decoded_at_its_index(layout, shape, seed, name):
    """The loop encodes each stored row on its own, as the layout is defined."""
    weights = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    dtype, codec = DTYPES[name], CODECS[name]
    naive = np.empty(shape, np.float32)
    if layout is Layout.FLAT:
        flat = codec.dequantize(codec.quantize(weights.reshape(1, -1)), weights.size)
        for index in range(weights.size):
            naive[divmod(index, shape[1])] = flat[0, index]
    elif layout is Layout.ROW:
        for n in range(shape[0]):
            naive[n] = codec.dequantize(codec.quantize(weights[n : n + 1].copy()), shape[1])[0]
    else:
        for k in range(shape[1]):
            column = weights[:, k].copy()[None]
            naive[:, k] = codec.dequantize(codec.quantize(column), shape[0])[0]
    raw = encode_tensor(weights, dtype, layout)
    assert np.array_equal(decode_tensor(raw, dtype, shape, layout), naive)


@settings(max_examples=60, deadline=None)
@given(name=NAMES, layout=LAYOUTS, shape=SHAPES, seed=st.integers(0, 2**32 - 1), data=st.data())
def test_any_rows_decode_as_in_the_whole_tensor(name, layout, shape, seed, data):
    dtype = DTYPES[name]
    geo = geometry(dtype, shape, layout)
    weights = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    raw = encode_tensor(weights, dtype, layout)
    first = data.draw(st.integers(0, geo.rows))
    count = data.draw(st.integers(0, geo.rows - first))
    whole = decode_rows(raw, dtype, geo, 0, geo.rows)
    assert np.array_equal(decode_rows(raw, dtype, geo, first, count), whole[first : first + count])
    assert geo.padding == (geo.rows * geo.row_blocks * dtype.block_elements - weights.size)
