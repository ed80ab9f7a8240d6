"""Quantizing values that were already quantized to the same type loses little or nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rdrr_format.codecs import CODECS

EXACT = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "MXFP4")
SEARCHED = ("Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q6_K")

ROWS = {
    "seed": st.integers(0, 2**32 - 1),
    "K": st.integers(1, 600),
    "scale": st.sampled_from([1e-3, 0.02, 1.0, 300.0]),
}


def twice(codec, rows):
    """Return rows after quantizing once, and after quantizing again."""
    K = rows.shape[1]
    once = codec.dequantize(codec.quantize(rows), K)
    return once, codec.dequantize(codec.quantize(once), K)


def random_rows(seed, K, scale):
    return (np.random.default_rng(seed).standard_t(3, (3, K)) * scale).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(EXACT), **ROWS)
def test_quantizing_again_changes_nothing_where_the_scale_follows_from_the_extreme(
    name, seed, K, scale
):
    rows = random_rows(seed, K, scale)
    once, again = twice(CODECS[name], rows)
    assert np.array_equal(once, again)
    assert once.shape == rows.shape


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(SEARCHED), seed=ROWS["seed"], scale=ROWS["scale"])
def test_quantizing_again_loses_far_less_where_scales_are_searched(name, seed, scale):
    """The bound holds over many blocks; a single one may lose more the second time."""
    rows = random_rows(seed, 2048, scale)
    once, again = twice(CODECS[name], rows)
    first, second = (float(np.sqrt(np.mean(miss**2))) for miss in (once - rows, again - once))
    assert first > 0
    assert second < 0.5 * first


@settings(max_examples=40, deadline=None)
@given(seed=ROWS["seed"], blocks=st.integers(1, 20), exponent=st.integers(-6, 3))
def test_q8_0_represents_multiples_of_its_step_exactly(seed, blocks, exponent):
    random = np.random.default_rng(seed)
    codes = random.integers(-127, 128, (blocks, 32)).astype(np.float32)
    codes[:, random.integers(32)] = 127  # so that the step is the one meant
    rows = (codes * np.float32(2.0**exponent)).reshape(1, -1)
    codec = CODECS["Q8_0"]
    assert np.array_equal(codec.dequantize(codec.quantize(rows), rows.size), rows)
