"""Codecs on random rows: compared with a slow reference, and properties of every codec."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rdrr_format.codecs import CODECS
from rdrr_format.errors import FormatError
from support import ggml_reference

BLOCK_TYPES = [name for name, codec in CODECS.items() if codec.dtype.is_block]
# Largest relative root-mean-square error on normally distributed weights: a little above what each
# type has, and far below the effect of a wrong bit.
NORMAL_ERROR = {
    "F32": 0,
    "F16": 3e-4,
    "BF16": 3e-3,
    "Q8_0": 0.007,
    "Q6_K": 0.022,
    "Q5_K": 0.042,
    "Q5_1": 0.05,
    "Q5_0": 0.055,
    "Q4_K": 0.08,
    "Q4_1": 0.1,
    "Q4_0": 0.11,
    "MXFP4": 0.13,
}

DISTRIBUTIONS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: rng.standard_t(2, shape),
    "positive": lambda rng, shape: rng.random(shape) + 0.5,
    "negative": lambda rng, shape: -rng.random(shape) - 0.5,
    "tiny": lambda rng, shape: rng.standard_normal(shape) * 1e-6,
    "zeros between": lambda rng, shape: (
        rng.standard_normal(shape)
        * (rng.random((*shape[:-1], shape[-1] // 16)) < 0.5).repeat(16, -1)
    ),
    "next to nothing between": lambda rng, shape: (
        rng.standard_normal(shape) * rng.choice([1e-20, 1e-14, 1], (*shape[:-1], 8)).repeat(32, -1)
    ),
    "large": lambda rng, shape: rng.standard_normal(shape) * 1e4,
}


@pytest.mark.parametrize("draw", DISTRIBUTIONS)
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_blocks_equal_the_slow_reference(name, draw, rng):
    rows = DISTRIBUTIONS[draw](rng, (24, 256)).astype(np.float32)
    expected = getattr(ggml_reference, name.lower())(rows)
    blocks = CODECS[name].quantize(rows)
    different = np.flatnonzero((blocks != expected).any(axis=1))
    assert not different.size, f"blocks {different.tolist()} of {len(rows)} differ"


def test_an_exponent_of_mxfp4_follows_from_the_logarithm_in_f32():
    """ggml takes it in f32, where that of the number before 16 is 4."""
    rows = np.zeros((2, 32), np.float32)
    rows[:, 0] = np.nextafter(np.float32(16), np.float32(0)), 16
    below, equal = CODECS["MXFP4"].quantize(rows)[:, 0]
    assert below == equal


@pytest.mark.parametrize("name", CODECS)
def test_the_error_on_normal_weights_is_within_the_bound_of_the_type(name, rng):
    rows = rng.standard_normal((8, 1024)).astype(np.float32)
    codec = CODECS[name]
    back = codec.dequantize(codec.quantize(rows), 1024)
    error = float(np.sqrt(np.mean((back - rows) ** 2) / np.mean(rows**2)))
    assert error <= NORMAL_ERROR[name]
    assert error >= NORMAL_ERROR[name] / 4  # control: the bound is not loose


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("K", [1, 31, 33, 255, 257, 384, 576])
def test_a_partial_block_is_padded_with_zeros_and_the_padding_is_dropped(name, K, rng):
    codec = CODECS[name]
    rows = rng.standard_normal((3, K)).astype(np.float32)
    padding = -K % codec.dtype.block_elements
    stored = codec.quantize(rows)
    assert stored.shape == (3, codec.row_bytes(K))
    assert np.array_equal(stored, codec.quantize(np.pad(rows, ((0, 0), (0, padding)))))
    whole = codec.dequantize(stored, K + padding)
    assert np.array_equal(codec.dequantize(stored, K), whole[:, :K])


@pytest.mark.parametrize("name", CODECS)
def test_rows_do_not_depend_on_other_rows(name, rng):
    codec = CODECS[name]
    rows = rng.standard_normal((97, 512)).astype(np.float32)
    whole = codec.quantize(rows)
    apart = [codec.quantize(rows[i : i + 1])[0] for i in range(0, 97, 13)]
    assert np.array_equal(whole[::13], np.stack(apart))


@pytest.mark.parametrize("name", CODECS)
def test_a_transposed_view_gives_the_bytes_of_its_copy(name, rng):
    matrix = rng.standard_normal((256, 5)).astype(np.float32)
    codec = CODECS[name]
    assert np.array_equal(codec.quantize(matrix.T), codec.quantize(matrix.T.copy()))


@pytest.mark.parametrize("name", CODECS)
def test_empty_matrices_are_allowed(name):
    codec = CODECS[name]
    assert codec.quantize(np.zeros((0, 256), np.float32)).shape == (0, codec.row_bytes(256))
    assert codec.dequantize(np.zeros((3, 0), np.uint8), 0).shape == (3, 0)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(BLOCK_TYPES),
    rows=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 300)),
        elements=st.floats(-1000, 1000, width=32),
    ),
)
def test_every_weight_is_decoded_within_one_step_of_its_block(name, rows):
    codec = CODECS[name]
    back = codec.dequantize(codec.quantize(rows), rows.shape[1])
    assert np.isfinite(back).all()
    # The coarsest type has 16 codes over twice the largest magnitude of a block; searches may
    # trade a little of the largest error for a smaller sum, and scales themselves are rounded.
    block = codec.dtype.block_elements
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % block)))
    peak = np.abs(padded).reshape(len(rows), -1, block).max(axis=2).repeat(block, axis=1)
    allowed = peak[:, : rows.shape[1]] * (0.01 if name == "Q8_0" else 0.25) + 1e-5
    assert (np.abs(back - rows) <= allowed).all()


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(BLOCK_TYPES),
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 4),
)
def test_any_bytes_decode_without_an_exception(name, seed, count):
    codec = CODECS[name]
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (2, count * codec.dtype.block_bytes), np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        assert codec.dequantize(raw, count * codec.dtype.block_elements).dtype == np.float32


@pytest.mark.parametrize("name", BLOCK_TYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_block_types_refuse_what_they_cannot_hold(name, value, rng):
    rows = rng.standard_normal((2, 256)).astype(np.float32)
    assert CODECS[name].quantize(rows).size  # control
    rows[1, 7] = value
    with pytest.raises(FormatError, match=r"cannot hold NaN or infinity.*1 such"):
        CODECS[name].quantize(rows)


@pytest.mark.parametrize("name", [name for name in BLOCK_TYPES if name != "MXFP4"])
def test_weights_whose_scale_is_beyond_f16_are_refused(name):
    with pytest.raises(FormatError, match="too large"):
        CODECS[name].quantize(np.linspace(-3e38, 3e38, 256, dtype=np.float32)[None] / 4)


@pytest.mark.parametrize(
    ("importance", "fault"),
    [
        (np.ones(255, np.float32), "shape"),
        (np.full(256, -1, np.float32), "finite"),
        (np.full(256, np.nan, np.float32), "finite"),
    ],
)
def test_importance_is_checked(importance, fault, rng):
    rows = rng.standard_normal((1, 256)).astype(np.float32)
    assert CODECS["Q4_K"].quantize(rows, np.ones(256)).size  # control
    with pytest.raises(FormatError, match=fault):
        CODECS["Q4_K"].quantize(rows, importance)


def test_importance_lowers_the_error_of_the_columns_that_matter(rng):
    rows = rng.standard_normal((64, 256)).astype(np.float32)
    importance = np.where(np.arange(256) % 8 == 0, 100.0, 1.0).astype(np.float32)
    codec = CODECS["Q4_K"]

    def error(stored):
        return float(((codec.dequantize(stored, 256) - rows)[:, ::8] ** 2).mean())

    assert error(codec.quantize(rows, importance)) < 0.8 * error(codec.quantize(rows))


@pytest.mark.parametrize("name", CODECS)
def test_rows_of_another_length_are_refused(name):
    codec = CODECS[name]
    with pytest.raises(FormatError, match="K = 256"):
        codec.dequantize(np.zeros((1, codec.row_bytes(256) + 1), np.uint8), 256)
    with pytest.raises(FormatError, match="n, K"):
        codec.quantize(np.zeros(256, np.float32))


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_threads_give_the_bytes_of_one_thread(name, rng):
    rows = rng.standard_normal((32, 1024)).astype(np.float32)
    codec = CODECS[name]
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(codec.quantize, np.split(rows, 8)))
    assert np.array_equal(np.concatenate(parts), codec.quantize(rows))
